"""A member's seat in the run: joining and leaving.

A member that keeps losing its seat (to another process with its wallet, or because it never
delivers) rejoins with growing delays. A pause by the owner takes all seats and does not count.
"""

from __future__ import annotations

import asyncio

from aftermath.base.concurrency import first_of
from aftermath.coordinator.errors import Refusal, Refused
from aftermath.events import event_types
from aftermath.member.ports import Ports, Role
from aftermath.member.retry import persist
from aftermath.rules import bitmap
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState

_FULL_PAUSE = 10.0  # seconds between tries to join a full run
_FIRST_PAUSE = 1.0  # seconds between two joins without an epoch in between
_LONGEST_PAUSE = 64.0
_OUT_OF_EPOCH = (MemberState.RESTARTED, MemberState.WITHDRAWN)
_FURTHEST_AHEAD = 3  # steps: with an overlap, a witness attests the second step after its newest
_SUSPICIOUS = 4.0  # seconds of pause from which on the user is warned


class SeatRequests:
    """Sends one member's joins and leaves."""

    def __init__(self, ports: Ports, role: Role) -> None:
        self._ports = ports
        self._role = role
        self._sending: asyncio.Future[None] | None = None
        self._pause = 0.0
        self._last = self._warned_at = float("-inf")
        self._gave_up = False  # whether this member left since its last join
        self._declared = set[int]()  # weights with which this process joined
        self._earlier: int | None = None  # an earlier process's weight, while the seat has it
        self._has_second_process = False  # whether it signed up in this epoch or just before

    def take_over(self, weight: int) -> None:
        """Accept the weight that an earlier process of this wallet declared.

        The seat keeps that weight if it already waits for the next epoch or is still in an epoch.
        """
        self._earlier = weight

    @property
    def has_sent_join(self) -> bool:
        """Return whether a join was sent. The seat may exist although no view shows it yet."""
        return self._sending is not None

    def completed(self) -> None:
        """Record that an epoch was completed, so that the next join need not wait."""
        self._pause = 0.0

    def halted(self) -> None:
        """Record that the owner halted the run, so that the next join need not wait."""
        self._pause = 0.0

    async def turn(self, run: Run) -> bool:
        """Wait until this member may join, or `run` has changed. Return whether it may join now."""
        while (wait := self._last + self._pause - self._ports.clock.monotonic()) > 0:
            self._warn(wait)
            await first_of(self._ports.clock.sleep(wait), self._ports.feed.after(run.seq))
            if self._ports.feed.run.seq != run.seq:
                return False
        return True

    def _warn(self, wait: float) -> None:
        if self._pause < _SUSPICIOUS or self._warned_at == self._last:
            return
        self._warned_at = self._last
        if self._gave_up:
            message = f"this member gave up its seat; it joins again in {wait:.0f} s"
        else:
            message = (
                f"this member lost its seat again; it rejoins in {wait:.0f} s\n"
                "Check that no other process uses this wallet"
            )
        self._ports.events.emit(event_types.Warning(message=message, until="trained"))

    async def watch_for_second_process(self, seat: int) -> None:
        """Warn once another process signs up with this wallet while this member is in an epoch.

        A process that starts declares that it has no model, which takes the seat out of the epoch.
        If both joined this epoch, the seat has the weight of the one that joined last. Peers talk
        to only one of them, so the other falls out.
        """
        epoch = self._ports.feed.run.epoch
        self._has_second_process = False

        def is_out() -> bool:
            me = self._ports.feed.members.seats[seat]
            return me.pending and me.state in _OUT_OF_EPOCH

        def signed_up_again(run: Run) -> bool:
            me = self._ports.feed.members.seats[seat]
            is_own = me.declared in self._declared or me.declared == self._earlier
            joined_last = run.epoch == epoch and not me.pending and not is_own
            return me.signer == self._ports.coordinator.wallet and (is_out() or joined_last)

        await self._ports.feed.until(signed_up_again)
        self._has_second_process = True
        effect = f", so seat {seat} is out of this epoch" if is_out() else ""
        self._ports.events.emit(
            event_types.Warning(
                message=f"another process signed up with this wallet{effect}\n"
                "Stop one of the two, which may be on different machines: they end each other's epochs",
            )
        )

    def second_process(self, seat: int | None, step: int | None) -> str:
        """Return a clause if another process uses this wallet in the epoch, else an empty string.

        Either that process has signed up, or the seat has attested a round that this process cannot
        have reached after `step` steps.
        """
        run = self._ports.feed.run
        rounds = [run.round(height) for height in range(run.current.height + 1)]
        attested = [
            one.step
            for one in rounds
            if one is not None and seat is not None and bitmap.contains(one.attested, seat)
        ]
        is_ahead = step is not None and max(attested, default=0) > step + _FURTHEST_AHEAD
        is_shared = self._has_second_process or (run.state.training and is_ahead)
        return "another process uses this wallet" if is_shared else ""

    async def join(self, weight: int, *, stateless: bool) -> bool:
        """Join the next epoch. Return whether the join is on chain. Raises final refusals."""
        while not await self.turn(self._ports.feed.run):
            if self._ports.feed.run.state.halted:
                return False
        self._last = self._ports.clock.monotonic()
        self._gave_up = False
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        try:
            return await persist(
                self._ports.clock,
                lambda: self._send(weight, stateless),
                still_wanted=lambda: not self._ports.feed.run.state.halted,
                done_if=frozenset({Refusal.HALTED}),
            )
        except Refused as error:
            if error.reason is not Refusal.FULL:
                raise
            self._ports.events.emit(event_types.Warning(message=str(error), until="joined"))
            await self._ports.clock.sleep(_FULL_PAUSE)
            return False

    async def leave(self) -> bool:
        """Leave the run. Return whether there was a seat. Raises Unavailable, Refused."""
        # A join that was sent may still land. So cancelling the caller does not cancel it, and
        # leaving waits for it. Otherwise the run would count on a member that is gone.
        sending = self._sending
        had_seat = False
        self._gave_up = True
        while True:
            settled = sending is None or sending.done()
            had_seat = await self._leave() or had_seat
            if settled or sending is None:
                return had_seat
            await asyncio.wait([sending])

    async def _leave(self) -> bool:
        try:
            await self._ports.coordinator.leave()
        except Refused as refused:
            if refused.reason is not Refusal.NOT_A_MEMBER:
                raise
            return False
        return True

    async def _send(self, weight: int, stateless: bool) -> None:
        self._declared.add(weight)
        members = self._ports.feed.members
        seat = members.find(self._ports.coordinator.wallet)
        if seat is None or members.seats[seat].state is MemberState.IDLE:
            self._earlier = None
        self._sending = asyncio.ensure_future(
            self._ports.coordinator.join(
                p2p=self._ports.transport.node_id,
                tier=self._role.tier,
                weight=weight,
                schema_hash=self._role.schema.hash(),
                stateless=stateless,
            )
        )
        self._sending.add_done_callback(_retrieve_exception)
        await asyncio.shield(self._sending)


def _retrieve_exception(sent: asyncio.Future[None]) -> None:
    """Retrieve the exception of an abandoned join, so that asyncio does not log it."""
    if not sent.cancelled():
        sent.exception()
