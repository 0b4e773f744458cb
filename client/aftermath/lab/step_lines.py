"""Print a training's events as lines of text."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from aftermath.base.text import counted
from aftermath.events.event_types import Event, Warning
from aftermath.events.printable import printable
from aftermath.events.progress import span
from aftermath.lab import lab_events


class StepLines:
    """A sink that prints one line for each event, or if `quiet` for each warning."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._steps = 0
        self._seconds = 0.0

    def __call__(self, event: Event) -> None:
        line = self._line(event)
        if line is not None and (isinstance(event, Warning) or not self._quiet):
            self._console.print(escape(printable(line)), highlight=False, emoji=False)

    def _line(self, event: Event) -> str | None:
        match event:
            case lab_events.Started():
                return self._started(event)
            case lab_events.Step():
                return self._step(event)
            case lab_events.HeldOut():
                loss = f"{event.loss:.4f}" if event.loss is not None else "not finite"
                return f"step {event.step:,}  held out, tier {event.tier}: {loss} nats per token"
            case Warning():
                return f"warning: {event.message}"
            case lab_events.Finished():
                place = f"; the checkpoint is in {event.checkpoint}" if event.checkpoint else ""
                return f"finished: {counted(event.step, 'step')}, {event.tokens:,} tokens{place}"
        return None

    def _started(self, event: lab_events.Started) -> str:
        self._steps = event.steps
        members = counted(len(event.tiers), "member")
        tiers = ", ".join(map(str, event.tiers))
        after = f", resumed from step {event.done:,}" if event.done else ""
        return (
            f"{event.optimizer}, {members} (tier {tiers}), {event.parameters:,} parameters; "
            f"{counted(event.steps, 'step')}{after}"
        )

    def _step(self, event: lab_events.Step) -> str:
        seconds = event.seconds
        left = self._steps - event.step
        self._seconds = 0.9 * self._seconds + 0.1 * seconds if self._seconds else seconds
        loss = f"{event.loss:.4f}" if event.loss is not None else "not finite"
        speed = f"{event.tokens / max(seconds, 1e-6):,.0f} tokens/s"
        after = f", {span(left * self._seconds)} left" if left else ""
        return f"step {event.step:,} of {self._steps:,}  loss {loss}  lr {event.lr:.3g}  {speed}{after}"
