"""Keep the model of a finished run until it is saved here or recorded on chain."""

from __future__ import annotations

import contextlib

from aftermath.base.rate_limit import Backoff
from aftermath.base.text import counted
from aftermath.coordinator.errors import Unavailable
from aftermath.events import event_types
from aftermath.member.checkpoint_writer import CheckpointWriter
from aftermath.member.ports import Ports, Workers
from aftermath.replica.replica import Replica
from aftermath.rules.contents import unsaved_steps
from aftermath.rules.model import Model
from aftermath.rules.run import Run

_FIRST_RETRY = 1.0
_CONFIRMED = "To leave and lose these steps, press Ctrl-C twice or send SIGTERM"
_UNASKED = (
    "The next Ctrl-C or SIGTERM ends this member, and loses these steps unless the model can be "
    "saved first"
)
_LONGEST_HOLD = 60.0  # longest pause between tries to save a finished run; a try may upload


class FinishedRun:
    """One member's part after the end of its run."""

    def __init__(
        self, ports: Ports, workers: Workers, checkpoints: CheckpointWriter, *, confirms: bool
    ) -> None:
        """`confirms`: whether a second Ctrl-C is needed before trained steps are lost."""
        self._ports = ports
        self._workers = workers
        self._checkpoints = checkpoints
        self._confirms = confirms

    async def hold(self, ended_run: Run, replica: Replica) -> None:
        """Keep a finished run's model in memory until it is saved here or recorded on chain."""
        pauses = Backoff(_FIRST_RETRY, _LONGEST_HOLD)
        warned = False
        while True:
            await self._checkpoints.settle()
            unsaved = unsaved_steps(ended_run, await self.newest_model())
            if not unsaved or self._checkpoints.saved_step == ended_run.trained_steps:
                return
            if not warned:
                warned = True
                message = (
                    f"{counted(unsaved, 'trained step is', 'trained steps are')} in no "
                    "checkpoint: this member keeps the model in memory and tries again until it "
                    f"is saved\n{_CONFIRMED if self._confirms else _UNASKED}"
                )
                self._ports.events.emit(event_types.Warning(message=message, until="checkpoint"))
            hashes = await self._workers.compute(replica.hashes)
            await self._checkpoints.keep(ended_run, replica, hashes)
            if self._checkpoints.saved_step is None:  # not written yet, or still uploading
                await self._ports.clock.sleep(pauses.next())

    async def newest_model(self) -> Model:
        """Return the chain's newest model account, or the feed's if the chain does not answer."""
        with contextlib.suppress(Unavailable):
            return (await self._ports.coordinator.view(fresh=True)).model
        return self._ports.feed.model
