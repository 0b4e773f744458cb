"""Cooldown: attest the model, offer it to joiners, and have a durable checkpoint saved.

If writing the checkpoint fails, for example on a full disk, it is retried until the cooldown ends.
"""

from __future__ import annotations

from collections.abc import Callable

from aftermath.base.concurrency import Worker, first_of
from aftermath.base.rate_limit import Backoff
from aftermath.events import event_types
from aftermath.events.stream import hexed
from aftermath.member.checkpoint_writer import CheckpointWriter
from aftermath.member.ports import Ports, Role
from aftermath.member.private_state import PrivateState
from aftermath.member.retry import Duty
from aftermath.member.status_events import report_traffic
from aftermath.replica.model_sharing import ModelShare, snapshot
from aftermath.replica.replica import Replica
from aftermath.rules.committee import levels_to_attest
from aftermath.rules.run import Run
from aftermath.rules.state import RunState

_FIRST_RETRY = 1.0
_LONGEST_RETRY = 15.0  # seconds


class Cooldown:
    """One member's cooldown of one epoch."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        compute: Worker,
        share: ModelShare,
        replica: Replica,
        checkpoints: CheckpointWriter,
        private: PrivateState,
        seat: int,
        attested: Callable[[], None],
    ) -> None:
        """`attested`: called when the member has nothing more to attest."""
        self._ports = ports
        self._role = role
        self._compute = compute
        self._share = share
        self._replica = replica
        self._checkpoints = checkpoints
        self._private = private
        self._seat = seat
        self._attested = attested

    async def live(self, run: Run) -> None:
        """Run the cooldown of the epoch that `run` ended. Return when the chain has left it."""
        # Every elected member attests the hashes of the levels it holds. A quorum per level puts
        # them on chain. The snapshot for joiners follows, and earlier joiners retry until then.
        hashes = await self._compute(self._replica.hashes)
        self._ports.events.emit(
            event_types.CooldownStarted(
                epoch=run.epoch, step=run.trained_steps, hashes=hexed(hashes)
            )
        )
        await self._attest(run, hashes)
        self._attested()
        replica = self._replica
        shared = self._role.schema.shared
        tier = self._role.tier
        self._share.offer(
            await self._compute(lambda: snapshot(replica.shared, shared, tier, run.step))
        )
        saved = await self._checkpoints.keep(run, replica, hashes)
        await self._private.keep(replica, run.epoch, hashes)
        report_traffic(self._ports)
        pauses = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        while not saved:
            await first_of(self._until_over(run), self._ports.clock.sleep(pauses.next()))
            saved = self._over(run, self._ports.feed.run) or await self._checkpoints.keep(
                run, replica, hashes
            )
        await self._until_over(run)

    async def _until_over(self, started: Run) -> None:
        await self._ports.feed.until(lambda now: self._over(started, now))

    def _over(self, started: Run, now: Run) -> bool:
        return now.epoch != started.epoch or now.state is not RunState.COOLDOWN

    async def _attest(self, run: Run, hashes: dict[int, bytes]) -> None:
        elected = levels_to_attest(run, self._ports.feed.members, self._seat)
        if elected:
            duty = Duty(
                self._ports,
                "the attestation of the model",
                still_wanted=lambda: not self._over(run, self._ports.feed.run),
            )
            await duty.fulfil(
                lambda: self._ports.coordinator.attest(
                    self._seat, run.round_id, {level: hashes[level] for level in elected}
                )
            )
