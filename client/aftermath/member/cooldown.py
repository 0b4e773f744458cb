"""Cooldown: attest the model, offer it to joiners, and have a durable checkpoint kept.

Decided
- every elected member reports the hashes of the levels it holds, before anything else, and until the cooldown's last
  moment if it was refused for a reason that may pass: a level that too few report goes back to the durable checkpoint;
  a quorum per level puts them on chain;
- the snapshot for joiners is taken next; whoever joins the next epoch before it is there asks again.
"""

from __future__ import annotations

from aftermath.base.wait import first_of
from aftermath.base.worker import Worker
from aftermath.member.archive import Keeper
from aftermath.member.persist import Duty
from aftermath.member.ports import Ports, Role
from aftermath.member.private import PrivateState
from aftermath.member.traffic import report_traffic
from aftermath.replica.modelshare import ModelShare, snapshot
from aftermath.replica.replica import Replica
from aftermath.rules.committee import levels_to_attest
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from aftermath.watch import kinds
from aftermath.watch.events import hexed

_LOOK_AGAIN = 1.0


class Cooldown:
    """One member's cooldown of one epoch."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        compute: Worker,
        share: ModelShare,
        replica: Replica,
        keeper: Keeper,
        private: PrivateState,
        seat: int,
    ) -> None:
        self._ports, self._role, self._compute, self._share, self._replica = ports, role, compute, share, replica
        self._keeper, self._private, self._seat = keeper, private, seat

    async def live(self, run: Run) -> None:
        """Go through the cooldown of the epoch that `run` ended; returns when the chain has left it."""
        hashes = await self._compute(self._replica.hashes)
        self._ports.events.emit(kinds.Cooldown(epoch=run.epoch, step=run.trained_steps, hashes=hexed(hashes)))
        duty = Duty(
            self._ports, "the attestation of the model", wanted=lambda: not self._over(run, self._ports.feed.run)
        )
        done = await self._attest(duty, run, hashes)
        replica, state, tier = self._replica, self._role.schema.state, self._role.tier
        self._share.offer(await self._compute(lambda: snapshot(replica.params, state, tier, run.step)))
        await self._keeper.keep(run, replica, hashes)
        await self._private.keep(replica, run.epoch, hashes)
        report_traffic(self._ports)
        while not done and not self._over(run, now := self._ports.feed.run):
            await first_of(self._ports.feed.after(now.seq), self._ports.clock.sleep(_LOOK_AGAIN))
            done = duty.due and await self._attest(duty, run, hashes)
        await self._ports.feed.until(lambda now: self._over(run, now))

    def _over(self, started: Run, now: Run) -> bool:
        return now.epoch != started.epoch or now.state is not RunState.COOLDOWN

    async def _attest(self, duty: Duty, run: Run, hashes: dict[int, bytes]) -> bool:
        """Report the levels that this member is elected for; False if it is to be tried again."""
        elected = levels_to_attest(run, self._ports.feed.members, self._seat)
        if not elected:
            return True
        stated = {level: hashes[level] for level in elected}
        sent = await duty.fulfil(lambda: self._ports.coordinator.attest(self._seat, run.round_id, stated))
        return sent or duty.refused or duty.due  # what is settled is due at once, what may pass is not
