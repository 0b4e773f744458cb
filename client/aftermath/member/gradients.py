"""The results this member applies, kept as files for whoever looks into the run (`optim.gradientfile`).

Decided
- written by a thread of their own after a round is applied, so neither training nor fetching waits for a disk;
- a file appears under its name when all of it is on disk; a step that is trained again replaces its files;
- whatever the disk says is a warning, told once until it takes files again; training goes on, files that are missing
  are missing;
- rounds wait for a slow disk only as many as the chain stores, since their payloads take memory; more are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from aftermath.base.files import replacing
from aftermath.base.wait import cancel
from aftermath.base.worker import Worker
from aftermath.member.payloads import Candidate
from aftermath.model.store import writing
from aftermath.optim.gradientfile import About, GradientFile
from aftermath.optim.schema import Schema
from aftermath.rules.run import STORED_ROUNDS
from aftermath.watch import kinds
from aftermath.watch.events import Events


class GradientFiles:
    """Writes what one member applies, if it was asked to."""

    def __init__(self, events: Events, write: Worker, schema: Schema, directory: Path | None) -> None:
        self._events, self._disk, self._schema, self._directory = events, write, schema, directory
        self._writing: set[asyncio.Task[None]] = set()
        self._failing = False

    def keep(self, applied: Iterable[Candidate], learning_rate: float) -> None:
        """Have the accepted results of a round, which was applied at this rate, written in the background."""
        if (directory := self._directory) is None:
            return
        found = [candidate for candidate in applied if candidate.valid]
        if not found:
            return
        step = found[0].said.step
        if len(self._writing) >= STORED_ROUNDS:
            self._warn(step, f"{directory} takes them more slowly than rounds go on")
            return
        task = asyncio.ensure_future(self._write(directory, step, found, learning_rate))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def settle(self) -> None:
        """Wait for what is being written."""
        if self._writing:
            await asyncio.wait(self._writing)

    async def close(self) -> None:
        """Give up what is not written yet."""
        await cancel(self._writing)

    def _file(self, candidate: Candidate, learning_rate: float) -> GradientFile:
        said = candidate.said
        about = About(
            run_id=said.run_id,
            epoch=said.epoch,
            round=said.height,
            step=said.step,
            seat=said.seat,
            tier=said.tier,
            learning_rate=learning_rate,
        )
        return GradientFile(self._schema, about, candidate.unmasked())

    async def _write(self, directory: Path, step: int, found: Sequence[Candidate], learning_rate: float) -> None:
        try:
            await self._disk(lambda: write_files(directory, (self._file(one, learning_rate) for one in found)))
            self._failing = False
        except Exception as error:  # nobody awaits this task, so it has to be told here
            self._warn(step, str(error))

    def _warn(self, step: int, why: str) -> None:
        if not self._failing:
            self._events.emit(kinds.Warning(message=f"not all results of step {step} were kept as files: {why}"))
        self._failing = True


def write_files(directory: Path, files: Iterable[GradientFile]) -> None:
    """Put results under their names into a directory, which is made if need be. Raises CheckpointError."""
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for file in files:
            with replacing(directory / file.name) as stream:
                stream.write(file.to_bytes())
