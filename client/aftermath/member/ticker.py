"""Who ticks: every member watches the next deadline, and a seeded ranking says how long each waits before it tries.

Decided: time here is chain time, the machine's own clock only measures waiting; the run is read anew before every tick,
which spares the fee when somebody else was first, and finds out when the chain was out of reach. After an outage
everybody's attestations are tried again before anybody ticks, so that an outage does not throw a round away or leave an
epoch's model unattested: the time for that begins when the chain answers again. A member that was held up itself allows
for the others having been so too. It does so a few times in one state of the run, or a node that is always slow would
hold it up for ever. A state that began afterwards needs no such allowance; one that began meanwhile does, although it
is heard of later.
"""

from __future__ import annotations

from aftermath.base.wait import first_of
from aftermath.coordinator.errors import Refused, Unavailable
from aftermath.coordinator.ports import Clock, Coordinator
from aftermath.member.attention import Attention
from aftermath.member.feed import RunFeed
from aftermath.rules.accounts import Members, Run
from aftermath.rules.deadlines import next_deadline, tick_delay, tick_order
from aftermath.rules.state import RunState

_LOOK_AGAIN = 1.0  # seconds between looks at a deadline that has passed without effect
_ALLOWANCES = 3  # in one state of the run
_LEAST_GRACE, _MOST_GRACE = 6.0, 60.0  # seconds; the least is more than `persist` ever pauses


class Ticker:
    """Keeps the run's clock going from one member."""

    def __init__(self, coordinator: Coordinator, feed: RunFeed, clock: Clock, attention: Attention) -> None:
        self._coordinator, self._feed, self._clock, self._attention = coordinator, feed, clock, attention
        self._not_before = float("-inf")
        self._returned = float("-inf")
        self._allowed_in, self._allowances = -1, 0
        self._state: tuple[RunState, int] | None = None

    async def run(self) -> None:
        """Tick whenever it is due and nobody before us did, for ever."""
        while True:
            view = self._feed.view
            run, members = view.run, view.members
            deadline = next_deadline(run, members, view.model)
            if deadline is None:
                await self._feed.after(run.seq)
                continue
            self._allow_for_absence(run, deadline)
            due = deadline + self._delay(run, members) - self._coordinator.now()
            wait = max(due, self._not_before - self._clock.monotonic(), 0.05)
            await first_of(self._feed.after(run.seq), self._clock.sleep(wait))
            if self._feed.run.seq == run.seq:
                await self._tick(run, deadline)

    def _delay(self, run: Run, members: Members) -> float:
        """Seconds after the deadline at which it is this member's turn to tick `run`."""
        order = tick_order(run, members)
        seat = members.find(self._coordinator.wallet)
        return tick_delay(order.index(seat) if seat in order else len(order))

    def _allow_for_absence(self, run: Run, deadline: int) -> None:
        """After the chain was out of reach, or we were held up, leave the others the time this state gives them: what
        held us up may have held them all.
        """
        returned = max(self._attention.woke(), self._coordinator.back())
        if self._state != (state := (run.state, run.state_started_at)):
            self._state, self._not_before = state, float("-inf")  # it has all of its own time, if it began since
            away_until = self._coordinator.now() - (self._clock.monotonic() - returned)
            self._returned = float("-inf") if run.state_started_at < away_until else self._returned
        if returned <= self._returned:
            return
        self._returned = returned
        if self._allowed_in != run.seq:
            self._allowed_in, self._allowances = run.seq, 0
        self._allowances += 1
        if self._allowances <= _ALLOWANCES:
            grace = min(max(float(deadline - run.state_started_at), _LEAST_GRACE), _MOST_GRACE)
            self._not_before = returned + grace

    async def _tick(self, run: Run, deadline: int) -> None:
        try:
            newest = (await self._coordinator.view(fresh=True)).run
            self._allow_for_absence(run, deadline)
            if newest.seq == run.seq and self._clock.monotonic() >= self._not_before:
                await self._coordinator.tick()
        except Refused:
            await self._clock.sleep(_LOOK_AGAIN / 2)  # a little early, or somebody else ticked
        except Unavailable:  # if it was an outage, patience begins at its end
            self._not_before = max(self._not_before, self._clock.monotonic() + _LEAST_GRACE)
