"""Readiness: who has the model in this warm-up, and what an elected witness tells the chain about it.

Choices: a member's readiness counts under the key that signed it, never under a slot it merely names; a witness waits
for everybody who can be reached, and only a little for the others.
"""

from __future__ import annotations

from aftermath.run import bitmap
from aftermath.run.accounts import Members, Run
from aftermath.run.commitment import Ready, encode_announcement
from aftermath.run.committee import witnesses
from aftermath.run.state import MemberState
from aftermath.train.context import Context
from aftermath.train.persist import Duty
from aftermath.train.wait import Pulse, first_of
from aftermath.train.warmup import warmup_over

_PATIENCE = 5.0  # seconds a ready witness waits for members it cannot reach
_LOOK_AGAIN = 1.0


class Readiness:
    """The p2p keys of those who announced that they are ready, by epoch."""

    def __init__(self) -> None:
        self.changed = Pulse()
        self._ready: dict[int, set[bytes]] = {}

    def hear(self, said: Ready) -> None:
        """Take an announcement whose signature is checked."""
        self._ready.setdefault(said.epoch, set()).add(said.sender)
        self.changed.fire()

    def of(self, epoch: int) -> frozenset[bytes]:
        return frozenset(self._ready.get(epoch, ()))

    def forget_before(self, epoch: int) -> None:
        """Forget earlier epochs. The running one stays: a warm-up may be tried again under its number."""
        for old in [one for one in self._ready if one < epoch]:
            del self._ready[old]


async def announce_ready(context: Context, readiness: Readiness, run: Run, slot: int) -> None:
    """Tell the others, and as an elected witness tell the chain once all are ready (or out of reach)."""
    me = Ready(
        sender=context.transport.node_id,
        signer=context.coordinator.wallet,
        run_id=context.run_id,
        epoch=run.epoch,
        slot=slot,
    )
    readiness.hear(me)
    await context.transport.announce(encode_announcement(me, context.p2p_secret))
    await _witness(context, readiness, run, slot)


async def _witness(context: Context, readiness: Readiness, run: Run, slot: int) -> None:
    """Tell the chain when all are ready, if this member is a witness, or becomes one because others leave."""
    duty = Duty(
        context,
        "the report that this member is ready",
        wanted=lambda: not warmup_over(run, context.feed.run),
    )
    patient_until = context.clock.monotonic() + _PATIENCE
    while not duty.refused and not warmup_over(run, now := context.feed.run):
        members = context.feed.members
        elected = slot in witnesses(now.current, members.mask(MemberState.HEALTHY))
        impatient = context.clock.monotonic() >= patient_until
        if elected and duty.due and _all_ready(context, readiness, run, members, impatient):
            reported = await duty.fulfil(lambda: context.coordinator.warmup_witness(slot))
            if reported or bitmap.contains(context.feed.run.current.attested, slot):
                return
        await first_of(readiness.changed.wait(), context.feed.after(now.seq), context.clock.sleep(_LOOK_AGAIN))


def _all_ready(context: Context, readiness: Readiness, run: Run, members: Members, impatient: bool) -> bool:
    waiting = run.current.roster & members.mask(MemberState.HEALTHY)
    keys = {members.slots[slot].p2p for slot in bitmap.slots(waiting)} - readiness.of(run.epoch)
    return not (keys & context.transport.reachable() if impatient else keys)
