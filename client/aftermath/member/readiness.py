"""Readiness: which members have the model in this warm-up, and the witness's report of it.

A witness waits for all reachable members, and a few seconds for the others. If the whole model
comes from peers, it waits only for two thirds by number and weight after half of the warm-up.
It still waits longer while a peer fetches the model from it.
"""

from __future__ import annotations

from aftermath.base.concurrency import Pulse, first_of
from aftermath.member.ports import Ports, Role
from aftermath.member.retry import Duty
from aftermath.member.warmup import warmup_over
from aftermath.rules import bitmap, contents
from aftermath.rules.announcements import Ready, encode_announcement
from aftermath.rules.committee import quorum, witnesses
from aftermath.rules.members import Members
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, ModelSource

_PATIENCE = 5.0  # seconds that a ready witness waits for unreachable members
_LATELY = 10.0  # seconds; a member that fetches from several peers asks each only now and then
_LOOK_AGAIN = 1.0


class Readiness:
    """The p2p keys and wallets of ready members, by epoch."""

    def __init__(self) -> None:
        self.changed = Pulse()
        self._ready: dict[int, dict[bytes, bytes]] = {}

    def hear(self, announcement: Ready) -> None:
        """Record an announcement whose signature was checked."""
        # Store readiness by signing key and wallet, not by the named seat, because several seats
        # on chain may claim one key. Keep only a key's last wallet, so that invented wallets cannot
        # fill the memory.
        self._ready.setdefault(announcement.epoch, {})[announcement.sender] = announcement.signer
        self.changed.fire()

    def of(self, epoch: int) -> frozenset[tuple[bytes, bytes]]:
        return frozenset(self._ready.get(epoch, {}).items())

    def forget_before(self, epoch: int) -> None:
        """Forget earlier epochs, but not this one: a retried warm-up has the same epoch number."""
        for old in [known for known in self._ready if known < epoch]:
            del self._ready[old]


async def announce_ready(
    ports: Ports, role: Role, readiness: Readiness, run: Run, seat: int
) -> None:
    """Announce readiness. A witness also reports on chain once all members are ready or
    unreachable.
    """
    me = Ready(
        sender=ports.transport.node_id,
        signer=ports.coordinator.wallet,
        run_id=role.run_id,
        epoch=run.epoch,
        seat=seat,
    )
    readiness.hear(me)
    await ports.transport.announce(encode_announcement(me, role.p2p_secret))
    await _witness(ports, readiness, run, seat)


async def _witness(ports: Ports, readiness: Readiness, run: Run, seat: int) -> None:
    """Report on chain when all members are ready, if this member is or becomes a witness."""
    duty = Duty(
        ports,
        "the report that this member is ready",
        still_wanted=lambda: not warmup_over(run, ports.feed.run),
    )
    patient_until = ports.clock.monotonic() + _PATIENCE
    reading = _Reading(ports)
    while not duty.refused and not warmup_over(run, now := ports.feed.run):
        members = ports.feed.members
        elected = now.seed_is_drawn and seat in witnesses(now.current, members)
        impatient = ports.clock.monotonic() >= patient_until
        is_fetched_from = reading.lately()
        half = run.state_started_at + run.config.warmup_time / 2
        most_suffice = (
            whole_from_peers(run) and ports.coordinator.now() >= half and not is_fetched_from
        )
        if (
            elected
            and duty.due
            and _all_ready(ports, readiness, run, members, impatient, most_suffice)
        ):
            reported = await duty.fulfil(
                lambda: ports.coordinator.warmup_witness(seat, now.round_id)
            )
            if reported or bitmap.contains(ports.feed.run.current.attested, seat):
                return
        await first_of(
            readiness.changed.wait(), ports.feed.after(now.seq), ports.clock.sleep(_LOOK_AGAIN)
        )


def _all_ready(
    ports: Ports,
    readiness: Readiness,
    run: Run,
    members: Members,
    impatient: bool,
    most_suffice: bool,
) -> bool:
    """Return whether to stop waiting. `most_suffice`: whether two thirds are enough."""
    # A member that never becomes ready must not stretch every warm-up to its full time. When
    # members load a durable checkpoint, peers cannot see progress, so they get the full time.
    waiting = list(bitmap.seats(run.current.roster & members.mask(MemberState.HEALTHY)))
    identities = {seat: (members.seats[seat].p2p, members.seats[seat].signer) for seat in waiting}
    ready = readiness.of(run.epoch)
    missing = [seat for seat in waiting if identities[seat] not in ready]
    reachable = ports.transport.reachable()
    waited_for = [seat for seat in missing if not impatient or identities[seat][0] in reachable]
    weight, missing_weight = (
        sum(members.seats[seat].weight for seat in seats) for seats in (waiting, missing)
    )
    most = len(waiting) - len(missing) >= quorum(len(waiting)) and 3 * missing_weight <= weight
    return not waited_for or (most_suffice and most)


def whole_from_peers(run: Run) -> bool:
    """Return whether members fetch the whole model from peers, so that peers see progress."""
    return (
        run.model_source is ModelSource.PEERS
        and not run.levels_lost
        and not contents.unattested(run)
    )


class _Reading:
    """Detects that others fetch the model from this member. A warm-up has no other large
    traffic.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._sent = ports.transport.stats().sent["blob"]
        self._at = float("-inf")

    def lately(self) -> bool:
        """Return whether a peer fetched recently. Call it often, because it samples a counter."""
        sent = self._ports.transport.stats().sent["blob"]
        now = self._ports.clock.monotonic()
        if sent > self._sent:
            self._sent = sent
            self._at = now
        return now < self._at + _LATELY
