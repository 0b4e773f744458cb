"""The loop of a training: train, measure, log, save and resume.

A resumed training continues from its last saved state. Events after that state are removed, because
their steps are repeated with equal numbers. The first state is saved before the first step, so that
a full disk shows at once. Only the same command resumes a training; any other is refused.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from aftermath.base.files import sync
from aftermath.base.outputs import OutputError, check_directory
from aftermath.events.event_types import Warning
from aftermath.events.plot import step_plot
from aftermath.events.stream import Events, JsonLines, Sink
from aftermath.lab import lab_events
from aftermath.lab.data_split import DataSplit
from aftermath.lab.held_out import loss_on
from aftermath.lab.lab_events import EVENTS
from aftermath.lab.recipe import Recipe
from aftermath.lab.saved_state import LOCK, STATE, Counters, load_state, only_here, save_state
from aftermath.lab.settings import options_of
from aftermath.lab.setup import Start
from aftermath.lab.trainer import Stepped
from aftermath.model.json_documents import CheckpointError
from aftermath.model.save_checkpoint import read_companions, write_checkpoint, writing
from aftermath.optim.gradient_clip import Diverged
from aftermath.optim.interfaces import BadState
from aftermath.rules.optimizers import optimizers

MADE_BY = "train-local"
PLOT = "loss.png"
CHECKPOINT = "checkpoint"
_NOT_FINITE = 3
_RESTARTED = "the training ended before it saved a state, so it starts again; lower --save-every to save sooner"


class TrainingLoop:
    """Trains a recipe to its end, from the start or from the state saved in `out`."""

    def __init__(
        self, recipe: Recipe, begun: Start, screen: Sink, out: Path | None, save_every: int
    ) -> None:
        self._recipe = recipe
        self._begun = begun
        self._screen = screen
        self._out = out
        self._save_every = save_every
        self._data_split = DataSplit(recipe)
        self._done = 0
        self._curves: dict[str, list[tuple[int, float]]] = {"training": []}
        self._events = Events(_elapsed(), [screen])
        self._tokens = 0
        self._not_finite = 0
        """Steps in a row without a finite loss."""
        self._stopping = self._restarts = False

    def stop(self) -> None:
        """Make `run` save its state and end after the current step."""
        self._stopping = True

    def run(self) -> None:
        """Train to the end. Raises an AftermathError, or KeyboardInterrupt after `stop`."""
        if self._out is not None:
            _check_place(self._out)
        with only_here(self._out) if self._out is not None else contextlib.nullcontext():
            if (finished := self._take_up()) is not None:
                self._events.emit(finished)
                return
            recipe = self._recipe
            model = self._begun.trainer
            self._events.emit(
                lab_events.Started(
                    optimizer=recipe.optimizer,
                    tiers=recipe.tiers,
                    parameters=sum(
                        p.numel() for p in model.models()[min(recipe.tiers)].parameters()
                    ),
                    sequences=self._begun.data.sequences,
                    steps=recipe.steps,
                    done=self._done,
                )
            )
            if self._restarts:
                self._events.emit(Warning(message=_RESTARTED))
            for step in range(self._done + 1, recipe.steps + 1):
                self._check_finite(self._step(step), step)
                if recipe.eval_every and step % recipe.eval_every == 0 and step < recipe.steps:
                    self._measure(step)
                if (step % self._save_every == 0 or self._stopping) and step < recipe.steps:
                    self._save(step)
                if self._stopping and step < recipe.steps:
                    raise KeyboardInterrupt
            self._finish()

    # --- one step
    def _check_finite(self, loss: float | None, step: int) -> None:
        """Raise Diverged after `_NOT_FINITE` steps without a finite loss, or at the last step."""
        self._not_finite = self._not_finite + 1 if loss is None else 0
        if self._not_finite >= _NOT_FINITE or (self._not_finite and step == self._recipe.steps):
            raise self._diverged(
                f"the loss has not been finite since step {step - self._not_finite + 1}"
            )

    def _diverged(self, what: str) -> Diverged:
        recipe = self._recipe
        other = (
            ", and name another --out, because this one holds the diverged training"
            if self._out is not None
            else ""
        )
        return Diverged(
            f"the training has diverged: {what}",
            f"Lower --lr (the highest rate was {recipe.schedule.base_lr:g}) or raise --warmup-steps{other}",
        )

    def _step(self, step: int) -> float | None:
        """Train one step. Return its loss, or None if it is not finite."""
        started = time.perf_counter()
        indices = self._data_split.shares(step)
        shares = [torch.from_numpy(self._begun.data.read(share)) for share in indices]
        accepted = [self._data_split.accepted(step, member) for member in range(len(shares))]
        result = self._begun.trainer.step(step, shares, accepted)
        counted = [
            took and loss is not None for took, loss in zip(accepted, result.losses, strict=True)
        ]
        for share, counts in zip(indices, counted, strict=True):
            if not counts:
                self._data_split.requeue(step, share)
        for sentence in result.left_out:
            self._events.emit(Warning(message=f"step {step}: skipped a result: {sentence}"))
        tokens = sum(share.numel() for share in shares)
        self._tokens += tokens
        loss = _mean(result, indices)
        self._note(
            lab_events.Step(
                step=step,
                loss=loss,
                losses=result.losses,
                lr=self._recipe.rate(step),
                tokens=tokens,
                seconds=round(time.perf_counter() - started, 4),
                bytes=result.bytes,
                accepted=sum(counted),
            )
        )
        return loss

    def _measure(self, step: int) -> dict[str, float]:
        """Compare the replicas, then return the held-out loss of every tier."""
        self._begun.trainer.check()
        sequences = self._begun.held_out
        if sequences is None:
            return {}
        losses = {
            str(tier): loss_on(model, sequences)
            for tier, model in self._begun.trainer.models().items()
        }
        for tier, loss in losses.items():
            self._note(
                lab_events.HeldOut(step=step, tier=int(tier), loss=loss, sequences=len(sequences))
            )
        return losses

    def _note(self, event: lab_events.Step | lab_events.HeldOut) -> None:
        self._events.emit(event)
        self._draw(event)

    def _draw(self, event: lab_events.Step | lab_events.HeldOut) -> None:
        """Add a loss to the curves."""
        name = (
            f"held out, tier {event.tier}" if isinstance(event, lab_events.HeldOut) else "training"
        )
        if event.loss is not None and math.isfinite(event.loss):
            self._curves.setdefault(name, []).append((event.step, event.loss))

    # --- the end
    def _finish(self) -> None:
        """Apply pending results, save the checkpoint and report the end."""
        recipe = self._recipe
        trainer = self._begun.trainer
        trainer.settle()
        if not all(
            bool(parameter.isfinite().all())
            for parameter in trainer.models()[min(recipe.tiers)].parameters()
        ):
            raise self._diverged("its weights are not finite")
        losses = self._measure(recipe.steps)
        place = None
        if self._out is not None:
            tier = min(recipe.tiers)
            place = self._out / CHECKPOINT
            params = dict(trainer.models()[tier].named_parameters())
            companions = read_companions(Path(recipe.model))
            write_checkpoint(
                place, params, self._begun.config, tier=tier, companions=companions, made_by=MADE_BY
            )
            members = f", {len(recipe.tiers)} members" if len(recipe.tiers) > 1 else ""
            with writing(self._out):
                step_plot(self._out / PLOT, self._curves, [], f"{recipe.optimizer}{members}")
        checkpoint = str(place) if place else None
        by_tier = dict[str, float | None](losses)
        finished = lab_events.Finished(
            step=recipe.steps, tokens=self._tokens, held_out_by_tier=by_tier, checkpoint=checkpoint
        )
        self._events.emit(finished)
        self._save(recipe.steps, finished)

    # --- saving
    def _save(self, step: int, finished: lab_events.Finished | None = None) -> None:
        if self._out is None:
            return
        log = self._out / EVENTS
        with writing(self._out):
            if log.exists():
                sync(log)
            size = log.stat().st_size if log.exists() else 0
        fresh, again = self._data_split.state()
        counters = Counters(self._begun.bound, step, fresh, again, size, finished)
        save_state(self._out, self._begun.trainer.state(), counters)

    def _take_up(self) -> lab_events.Finished | None:
        """Resume a saved state, or save the first one. Return the last event if all is done."""
        if self._out is None:
            return None
        log = self._out / EVENTS
        state = load_state(self._out)
        if state is None:
            if log.exists():
                raise CheckpointError(
                    f"{self._out} has {log.name} but no saved state", "Name another --out"
                )
            self._save(0)
        else:
            tensors, counters = state
            _same(counters.bound, self._begun.bound, self._out)
            if counters.finished is not None:
                return counters.finished
            try:
                self._begun.trainer.restore(tensors)
            except BadState as error:
                raise CheckpointError(
                    f"the saved state does not match this training: {error.message}",
                    "Name another --out",
                ) from None
            self._data_split.restore(counters.new_sequences, counters.retry_queue)
            self._done = counters.step
            if log.exists():
                self._restarts = not counters.step and log.stat().st_size > counters.events
                self._recall(log, counters.events)
        with writing(self._out):
            self._events = Events(_elapsed(), [self._screen, JsonLines(log, now)])
        return None

    def _recall(self, log: Path, size: int) -> None:
        """Remove the events after the saved state, and restore the curves from the others."""
        with writing(log.parent):
            if size < log.stat().st_size:
                os.truncate(log, size)
        try:
            for line in log.read_text(encoding="utf-8").splitlines():
                event = msgspec.json.decode(line, type=lab_events.LAB_EVENTS)
                if isinstance(event, lab_events.Step | lab_events.HeldOut):
                    self._draw(event)
                self._tokens += event.tokens if isinstance(event, lab_events.Step) else 0
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OSError) as error:
            raise CheckpointError(
                f"{log} is damaged: {error!r}", "Pass another --out, or remove this directory"
            ) from None


def _check_place(out: Path) -> None:
    """Raise OutputError unless `out` is new, empty, or a directory of train-local."""
    if out.exists() and not out.is_dir():
        raise OutputError(
            f"cannot write to {out}: it is not a directory", "Name a new directory with --out"
        )
    check_directory(out / CHECKPOINT, MADE_BY)
    if out.is_dir() and not (out / STATE).exists():
        foreign = sorted(
            path.name
            for path in out.iterdir()
            if path.name not in (LOCK, EVENTS) and path.name[0] != "."
        )
        if foreign:
            raise OutputError(
                f"{out} contains {foreign[0]}, which train-local did not write",
                "Name a new directory with --out",
            )


def _same(theirs: dict[str, Any], ours: dict[str, Any], out: Path) -> None:
    """Raise CheckpointError with the changed options unless recipe and files are the same."""
    differing = _differing(theirs, ours)
    if not differing:
        return
    if "optimizer" in differing:  # other fields follow from this one
        differing = ["optimizer"]
    elif "settings" in differing and isinstance(theirs.get("settings"), dict):
        differing.remove("settings")
        differing += _differing(theirs["settings"], ours["settings"])
        theirs = theirs | theirs["settings"]
    if "seed" in differing:
        differing = [name for name in differing if name != "shuffle_seed"]
    if "files" in differing and not {"data", "held_out", "model"}.isdisjoint(differing):
        differing.remove("files")  # if the paths differ, so do the files
    if "schedule" in differing:
        differing = _schedule_fields(differing, theirs.get("schedule"), ours["schedule"])
        # The kind is a number, which no user types.
        theirs = theirs | (theirs.get("schedule") or {}) | {"kind": None}
    settings = options_of(optimizers()[ours["optimizer"]])
    flags = {setting.name: "--" + name.replace("_", "-") for name, setting in settings.items()}
    differences = ", ".join(_option(name, theirs.get(name), flags) for name in differing)
    raise CheckpointError(
        f"{out} holds a training with other options: {differences}",
        "Pass the same options as for that training, or name another --out",
    )


_OPTIONS = {
    "batch": "--total-batch",
    "data": "--data-path",
    "held_out": "--held-out-path",
    "base_lr": "--lr",
    "kind": "--lr-schedule",
    "shuffle_seed": "--seed",
    "files": "the contents of its files",
    "clip": "the config file",
    "weight_decay": "the config file",
    "cold_start_steps": "the config file",
    "levels": "the config file",
}
"""The option for a field of a recipe, if the option has another name than the field."""


def _option(name: str, before: object, of_optimizer: dict[str, str]) -> str:
    """Name the option that differs, with its old value if the user can type it."""
    options = _OPTIONS | of_optimizer
    option = options.get(name, "--" + name.replace("_", "-"))
    if isinstance(before, list) and all(isinstance(one, int) for one in before):
        before = ",".join(map(str, before))
    plain = (
        isinstance(before, str | int | float)
        and not isinstance(before, bool)
        and name != "shuffle_seed"
    )
    return f"{option} was {before}" if option.startswith("--") and plain else f"{option} differed"


def _schedule_fields(
    differing: list[str], theirs: dict[str, Any] | None, ours: dict[str, Any]
) -> list[str]:
    """Replace "schedule" by its first field that differs and that an option sets.

    The other fields follow from that field or from --steps, or a config file sets them.
    """
    before = theirs or {}
    by_option = ("kind", "base_lr", "warmup_steps")
    fields = [name for name in by_option if before.get(name) != ours[name]][:1]
    others = [name for name in differing if name != "schedule"]
    return (others + fields) or ["kind"]


def _differing(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    return sorted(
        name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)
    )


def _mean(result: Stepped, shares: list[list[int]]) -> float | None:
    """Return the mean loss over all sequences whose loss is known, or None."""
    known = [
        (loss, len(share))
        for loss, share in zip(result.losses, shares, strict=True)
        if loss is not None
    ]
    return (
        sum(loss * count for loss, count in known) / sum(count for _, count in known)
        if known
        else None
    )


def _elapsed() -> Callable[[], float]:
    started = time.monotonic()
    return lambda: time.monotonic() - started


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)
