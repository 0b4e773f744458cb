"""Tick the run: every member watches the next deadline, and a seeded ranking orders their attempts.

Deadlines are in chain time; the machine's clock only measures waiting. The run is read again before
every tick. That saves the fee if another member was first, and detects an outage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aftermath.base.concurrency import first_of
from aftermath.coordinator.errors import Refused, Unavailable
from aftermath.coordinator.ports import Clock, Coordinator, View
from aftermath.member.feed import RunFeed
from aftermath.member.stall_detector import StallDetector
from aftermath.rules.deadlines import (
    HOLDERS_WAIT,
    next_deadline,
    tick_delay,
    tick_order,
    wait_for_last_member,
)
from aftermath.rules.members import Members
from aftermath.rules.run import Run
from aftermath.rules.state import RunState

_log = logging.getLogger(__name__)

_LOOK_AGAIN = 1.0  # seconds between checks of a deadline that passed without effect
_ALLOWANCES = 3  # extensions per state; without a limit, a slow node could stall the run forever
# Seconds. The shortest grace is longer than any pause of `persist`.
_LEAST_GRACE = 6.0
_MOST_GRACE = 60.0
_REPORT_WAIT_AFTER = 10.0  # seconds; a present last member ticks sooner


class Ticker:
    """Ticks the run for one member."""

    def __init__(
        self,
        coordinator: Coordinator,
        feed: RunFeed,
        clock: Clock,
        stall_detector: StallDetector,
        *,
        report_wait: Callable[[View], None] = lambda view: None,
        will_attest: Callable[[], bool] = lambda: False,
    ) -> None:
        """`report_wait`: called when the last member of an epoch is absent after a deadline.

        `will_attest`: whether this member is loading the model of an epoch in which it was stopped,
        to attest it.
        """
        self._coordinator = coordinator
        self._feed = feed
        self._clock = clock
        self._attention = stall_detector
        # This member does not tick before these readings of the clock.
        self._grace_ends = float("-inf")
        self._retry_at = float("-inf")
        self._logged_grace_of = float("-inf")
        self._returned = float("-inf")
        self._allowed_in = -1
        self._allowances = 0
        self._state: tuple[RunState, int] | None = None
        self._report_wait = report_wait
        self._will_attest = will_attest
        self._wait_began: tuple[tuple[int, int], float] | None = None
        """The epoch whose last member this member waits for, and since when."""

    async def run(self) -> None:
        """Tick whenever a tick is due and no other member was first, until cancelled."""
        while True:
            view = self._feed.view
            run = view.run
            members = view.members
            deadline = next_deadline(run, members, view.model)
            if deadline is None:
                await self._feed.after(run.seq)
                continue
            self._allow_for_absence(run, deadline)
            wait = deadline + self._delay(run, members) - self._coordinator.now()
            if wait <= 0:
                wait = self._held_back()
                self._log_grace(wait)
                wait = max(wait, min(self._last_member_wait(view), _REPORT_WAIT_AFTER))
            await first_of(self._feed.after(run.seq), self._clock.sleep(max(wait, 0.05)))
            if self._feed.run.seq != run.seq or self._held_back() > 0:
                continue
            if self._last_member_wait(view) <= 0:
                await self._tick(run, deadline)

    def _last_member_wait(self, view: View) -> float:
        """Return the seconds to wait for an epoch's last member (see `wait_for_last_member`).

        0 or less if this member need not wait for it.
        """
        run = view.run
        epoch = (run.epoch, run.epoch_started_at)
        wait = wait_for_last_member(run, view.members, view.model)
        # Where members keep no seats, the coordinator drops an absent one.
        if wait is None or not self._coordinator.keeps_seats:
            return 0.0
        is_own = view.members.find(self._coordinator.wallet) == wait.seat
        if is_own and not (run.state is RunState.COOLDOWN and self._will_attest()):
            return 0.0
        now = self._coordinator.now()
        late = now - wait.start
        if late < 0:
            return 0.0  # nothing is due yet except the draw of a seed
        if self._wait_began is None or self._wait_began[0] != epoch:
            self._wait_began = epoch, now
        # Later states of the epoch have no wait of their own.
        ends_in = min(wait.end, self._wait_began[1] + HOLDERS_WAIT) - now
        if ends_in > 0 and late >= _REPORT_WAIT_AFTER and not is_own:
            self._report_wait(view)
        return ends_in

    def _held_back(self) -> float:
        """Return the seconds until this member may tick, 0 or less if it may."""
        return max(self._grace_ends, self._retry_at) - self._clock.monotonic()

    def _log_grace(self, wait: float) -> None:
        """Warn once per absence that this member delays the tick after a deadline."""
        if wait > _LEAST_GRACE and self._logged_grace_of != self._returned:
            self._logged_grace_of = self._returned
            _log.warning(
                "the deadline has passed, but members may have missed it in an outage: this member "
                "waits up to %.0f s for their attestations",
                wait,
            )

    def _delay(self, run: Run, members: Members) -> float:
        """Return the seconds after the deadline at which it is this member's turn to tick `run`."""
        order = tick_order(run, members)
        seat = members.find(self._coordinator.wallet)
        return tick_delay(order.index(seat) if seat in order else len(order))

    def _allow_for_absence(self, run: Run, deadline: int) -> None:
        """Delay ticks by the state's duration after an outage or a stall.

        The cause may have affected all members. The delay lets them retry attestations before
        anyone ticks, so an outage does not discard a round or an epoch's model. It starts when the
        chain answers again. It becomes shorter if the deadline falls, because enough members have
        attested.
        """
        returned = max(self._attention.woke(), self._coordinator.last_outage_end())
        if self._state != (state := (run.state, run.state_started_at)):
            # a state that began after the outage needs no extra time
            self._state = state
            self._grace_ends = float("-inf")
            self._retry_at = float("-inf")
            away_until = self._coordinator.now() - (self._clock.monotonic() - returned)
            self._returned = float("-inf") if run.state_started_at < away_until else self._returned
        grace = min(max(float(deadline - run.state_started_at), _LEAST_GRACE), _MOST_GRACE)
        if returned <= self._returned:
            self._grace_ends = min(self._grace_ends, self._returned + grace)
            return
        self._returned = returned
        if self._allowed_in != run.seq:
            self._allowed_in = run.seq
            self._allowances = 0
        self._allowances += 1
        if self._allowances <= _ALLOWANCES:
            self._grace_ends = returned + grace

    async def _tick(self, run: Run, deadline: int) -> None:
        try:
            newest = (await self._coordinator.view(fresh=True)).run
            self._allow_for_absence(run, deadline)
            if newest.seq == run.seq and self._held_back() <= 0:
                await self._coordinator.tick()
        except Refused:
            await self._clock.sleep(_LOOK_AGAIN / 2)  # slightly early, or another member ticked
        except Unavailable:  # after an outage, the grace starts at its end
            self._retry_at = self._clock.monotonic() + _LEAST_GRACE
