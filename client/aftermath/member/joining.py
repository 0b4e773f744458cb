"""Decide when a member joins the next epoch, and what it declares: its tier, weight and state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from aftermath.base.errors import AftermathError
from aftermath.coordinator.errors import Refused, Unavailable
from aftermath.events import event_types
from aftermath.member.ports import Ports, Role
from aftermath.member.seat_requests import SeatRequests
from aftermath.member.status_events import require_unchanged
from aftermath.rules import bitmap
from aftermath.rules.deadlines import wait_for_last_member
from aftermath.rules.members import Members, Seat
from aftermath.rules.model import Model
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, RunState

_LOOK_AGAIN = 1.0  # seconds
_WEIGHT_DRIFT = 1.25  # correct a declared throughput that is off by more than this factor


class WalletEjected(AftermathError):
    """This wallet was ejected while this process took part with it."""

    code = "ejected"


class Joining:
    """One member's seat, and the declaration with which it takes part in an epoch."""

    def __init__(
        self, ports: Ports, role: Role, requests: SeatRequests, first: Model, weight: int
    ) -> None:
        """`first` is the model account from which the member built its data and model."""
        self._ports = ports
        self._role = role
        self._first = first
        self._requests = requests
        # Whether the member has joined without a replica since it last had one.
        self._joined_stateless = False
        self.weight = weight
        """Measured speed in sequences per minute."""
        self.seat: int | None = None
        # An ejection before this process started does not end it: its user started it again.
        self._ejected_before = self._is_ejected()
        members = ports.feed.members
        seat = members.find(ports.coordinator.wallet)
        if seat is not None:
            requests.take_over(members.seats[seat].declared)

    def find_seat(self, members: Members) -> Seat | None:
        """Find this member's seat among `members`, and remember its number."""
        self.seat = members.find(self._ports.coordinator.wallet)
        return None if self.seat is None else members.seats[self.seat]

    def _is_ejected(self) -> bool:
        """Return whether the wallet was ejected and has not joined since."""
        members = self._ports.feed.members
        seat = members.find(self._ports.coordinator.wallet)
        return seat is not None and bitmap.contains(members.forfeited, seat)

    def ejection(self) -> WalletEjected | None:
        """Return the error of a member whose wallet was ejected since its process started, or None.

        Joining again would lock another bond, and the cause may remain.
        """
        if self._ejected_before or not self._is_ejected():
            return None
        has_bond = self._ports.feed.run.config.join_bond > 0
        seat = self._ports.feed.members.find(self._ports.coordinator.wallet)
        return WalletEjected(
            f"this wallet was ejected from seat {seat}{', and its bond is lost' if has_bond else ''}: "
            "two results of one round were signed with its key, or a jury found its work false",
            "Stop every other process that uses this wallet. The next start signs up again"
            f"{', and locks another bond' if has_bond else ''}",
        )

    def is_current(self, me: Seat) -> bool:
        """Return whether the chain has this process's p2p key and tier."""
        return (me.p2p, me.tier) == (self._ports.transport.node_id, self._role.tier)

    def obtained_model(self) -> None:
        """Record that the member obtained a replica."""
        self._joined_stateless = False

    async def join_if_needed(
        self, run: Run, members: Members, *, has_replica: bool, leave_epoch: Callable[[], None]
    ) -> None:
        """Join the next epoch, unless the chain already has this member's current declaration.

        `leave_epoch` drops the replica. It is called if the run's epoch continues without us.
        Raises WalletEjected.
        """
        if (ejection := self.ejection()) is not None:
            raise ejection
        if run.state.halted:
            self._requests.halted()
            return
        me = members.seats[self.seat] if self.seat is not None else None
        between = run.state is RunState.WAITING_FOR_MEMBERS
        in_epoch = me is not None and me.state is MemberState.HEALTHY
        if me is not None and me.pending and not in_epoch and not (between and self._outdated(me)):
            return
        if in_epoch and between:
            return  # the run's state is outdated: the view of a new epoch is about to arrive
        if not in_epoch and self._would_end_epoch(run, members):
            return
        if not await self._requests.turn(run) or (await self._newest()).seq != run.seq:
            return  # the run has changed since the decision
        if in_epoch:
            leave_epoch()  # the epoch runs without us, and the others wait until we rejoin
        # A queued member only corrects its declaration. If it declared itself stateless again, it
        # would lose an epoch that has begun meanwhile.
        await self.join(
            run,
            has_replica=has_replica and not in_epoch,
            corrects=me is not None and me.pending and not in_epoch,
        )

    async def join(self, run: Run, *, has_replica: bool, corrects: bool = False) -> None:
        """Join on chain; a member without a replica joins as stateless. Raises final refusals."""
        now = self._ports.feed.view
        if not now.run.halted:  # a halted run may change again
            require_unchanged(self._first, now.model)
        stateless = not has_replica and not (corrects and self._joined_stateless)
        if not await self._requests.join(self.weight, stateless=stateless):
            return
        self._joined_stateless |= stateless
        self.find_seat((await self._ports.feed.renew(self._ports.coordinator)).members)
        self._ejected_before = False  # the join settled it
        self._ports.events.emit(
            event_types.Joined(
                seat=self.seat, tier=self._role.tier, weight=self.weight, epoch=run.epoch
            )
        )

    async def leave_epoch_now(self) -> None:
        """Leave the running epoch at once. Otherwise the next chance to join may be far away."""
        with contextlib.suppress(Unavailable, Refused):
            await self._requests.leave()

    def _would_end_epoch(self, run: Run, members: Members) -> bool:
        """Return whether a join would take a step towards the end of an epoch that waits.

        Every join also makes the program perform a due transition. The epoch's last member must be
        back before the epoch ends.
        """
        coordinator = self._ports.coordinator
        if not coordinator.keeps_seats:
            return False
        wait = wait_for_last_member(run, members, self._ports.feed.model)
        return wait is not None and wait.is_running(coordinator.now())

    async def _newest(self) -> Run:
        """Read the run from the chain. Retry until a node answers."""
        while True:
            try:
                return (await self._ports.coordinator.view(fresh=True)).run
            except Unavailable:
                await self._ports.clock.sleep(_LOOK_AGAIN)

    def _outdated(self, me: Seat) -> bool:
        """Return whether to declare again. A declaration takes effect between epochs."""
        drift = max(me.declared, self.weight) / max(1, min(me.declared, self.weight))
        return not self.is_current(me) or drift > _WEIGHT_DRIFT
