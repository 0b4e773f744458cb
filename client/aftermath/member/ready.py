"""Readiness: who has the model in this warm-up, and what an elected witness tells the chain about it.

Choices: a member's readiness counts under the key that signed it and the wallet that it speaks for, never under a slot
it merely names: several slots of the chain may claim one key, which is one member's only; a witness waits for everybody
who can be reached, and only a little for the others.
"""

from __future__ import annotations

from aftermath.base.wait import Pulse, first_of
from aftermath.member.persist import Duty
from aftermath.member.ports import Ports, Role
from aftermath.member.warmup import warmup_over
from aftermath.rules import bitmap
from aftermath.rules.accounts import Members, Run
from aftermath.rules.commitment import Ready, encode_announcement
from aftermath.rules.committee import witnesses
from aftermath.rules.state import MemberState

_PATIENCE = 5.0  # seconds a ready witness waits for members it cannot reach
_LOOK_AGAIN = 1.0


class Readiness:
    """The p2p keys and wallets of those who announced that they are ready, by epoch."""

    def __init__(self) -> None:
        self.changed = Pulse()
        self._ready: dict[int, set[tuple[bytes, bytes]]] = {}

    def hear(self, said: Ready) -> None:
        """Take an announcement whose signature is checked."""
        self._ready.setdefault(said.epoch, set()).add((said.sender, said.signer))
        self.changed.fire()

    def of(self, epoch: int) -> frozenset[tuple[bytes, bytes]]:
        return frozenset(self._ready.get(epoch, ()))

    def forget_before(self, epoch: int) -> None:
        """Forget earlier epochs. The running one stays: a warm-up may be tried again under its number."""
        for old in [one for one in self._ready if one < epoch]:
            del self._ready[old]


async def announce_ready(ports: Ports, role: Role, readiness: Readiness, run: Run, slot: int) -> None:
    """Tell the others, and as an elected witness tell the chain once all are ready (or out of reach)."""
    me = Ready(
        sender=ports.transport.node_id,
        signer=ports.coordinator.wallet,
        run_id=role.run_id,
        epoch=run.epoch,
        slot=slot,
    )
    readiness.hear(me)
    await ports.transport.announce(encode_announcement(me, role.p2p_secret))
    await _witness(ports, readiness, run, slot)


async def _witness(ports: Ports, readiness: Readiness, run: Run, slot: int) -> None:
    """Tell the chain when all are ready, if this member is a witness, or becomes one because others leave."""
    duty = Duty(
        ports,
        "the report that this member is ready",
        wanted=lambda: not warmup_over(run, ports.feed.run),
    )
    patient_until = ports.clock.monotonic() + _PATIENCE
    while not duty.refused and not warmup_over(run, now := ports.feed.run):
        members = ports.feed.members
        elected = now.seed_is_drawn and slot in witnesses(now.current, members.mask(MemberState.HEALTHY))
        impatient = ports.clock.monotonic() >= patient_until
        if elected and duty.due and _all_ready(ports, readiness, run, members, impatient):
            reported = await duty.fulfil(lambda: ports.coordinator.warmup_witness(slot, now.place))
            if reported or bitmap.contains(ports.feed.run.current.attested, slot):
                return
        await first_of(readiness.changed.wait(), ports.feed.after(now.seq), ports.clock.sleep(_LOOK_AGAIN))


def _all_ready(ports: Ports, readiness: Readiness, run: Run, members: Members, impatient: bool) -> bool:
    waiting = run.current.roster & members.mask(MemberState.HEALTHY)
    whose = {(members.slots[slot].p2p, members.slots[slot].signer) for slot in bitmap.slots(waiting)}
    missing = whose - readiness.of(run.epoch)
    return not ({key for key, _ in missing} & ports.transport.reachable() if impatient else missing)
