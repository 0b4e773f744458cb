"""Save the results that this member applies as files (`optim.result_file`), if requested.

A separate thread writes after a round is applied, so training and fetching never wait for a disk. A
file gets its final name when it is complete. Consecutive failures cause only one warning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from aftermath.base.concurrency import Worker, cancel
from aftermath.base.files import replacing
from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.member.payloads import Candidate
from aftermath.model.save_checkpoint import writing
from aftermath.optim.result_file import GradientFile, ResultOrigin
from aftermath.optim.schema import Schema
from aftermath.rules.run import STORED_ROUNDS


class GradientFiles:
    """Writes the results that one member applies, if requested."""

    def __init__(
        self, events: Events, write: Worker, schema: Schema, directory: Path | None
    ) -> None:
        self._events = events
        self._disk = write
        self._schema = schema
        self._directory = directory
        self._writing: set[asyncio.Task[None]] = set()
        self._failing = False

    def keep(self, applied: Iterable[Candidate], learning_rate: float) -> None:
        """Write the accepted results of a round, applied at this rate, in the background."""
        if (directory := self._directory) is None:
            return
        results = [candidate for candidate in applied if candidate.valid]
        if not results:
            return
        step = results[0].commitment.step
        # Queued payloads take memory, so the queue holds at most as many rounds as the chain does.
        if len(self._writing) >= STORED_ROUNDS:
            self._warn(step, f"{directory} is slower than the rounds")
            return
        task = asyncio.ensure_future(self._write(directory, step, results, learning_rate))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def settle(self) -> None:
        """Wait until all writes have ended."""
        if self._writing:
            await asyncio.wait(self._writing)

    async def close(self) -> None:
        """Cancel all writes, and accept no more results."""
        self._directory = None
        await cancel(self._writing)

    def _file(self, candidate: Candidate, learning_rate: float) -> GradientFile:
        commitment = candidate.commitment
        origin = ResultOrigin(
            run_id=commitment.run_id,
            epoch=commitment.epoch,
            round=commitment.height,
            step=commitment.step,
            seat=commitment.seat,
            tier=commitment.tier,
            learning_rate=learning_rate,
        )
        return GradientFile(self._schema, origin, candidate.unmasked())

    async def _write(
        self, directory: Path, step: int, results: Sequence[Candidate], learning_rate: float
    ) -> None:
        try:
            await self._disk(
                lambda: write_files(
                    directory, (self._file(result, learning_rate) for result in results)
                )
            )
            self._failing = False
        except Exception as error:  # nobody awaits this task, so report the error here
            self._warn(step, str(error))

    def _warn(self, step: int, why: str) -> None:
        if not self._failing:
            self._events.emit(
                event_types.Warning(
                    message=f"not all results of step {step} were written to files: {why}"
                )
            )
        self._failing = True


def write_files(directory: Path, files: Iterable[GradientFile]) -> None:
    """Write results to files in a directory, and create it if needed. Raises CheckpointError."""
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for file in files:
            with replacing(directory / file.name) as stream:
                stream.write(file.to_bytes())
