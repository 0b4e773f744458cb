"""Who is late in a round, and how long its witnesses wait for them.

Decided
- the round itself says what is late: once two thirds of those who owe something are there, who stand for two thirds of
  the weight, the rest have three times as long as these took, and some seconds at least. Shares follow the weights, so
  all should be done at about the same time. Whose share is more than its weight's part of the round has longer, and so
  has a slow machine, up to twice: what it does beside its share takes it longer than others;
- who needs more than that draws on an allowance: one `max_round_train_time` in each epoch, for all that it took after
  the two thirds. While some is left it is waited for, so an honest member that is held up or slow for a while loses
  nothing;
- who has used it up is waited for while it is not late, and not at all after a round in which it was, until it is in
  time again: one member costs an epoch about one round's whole time, however many rounds there are. A witness sees only
  the levels that it holds, so one that is also silent as a witness can have another one wait for each of its levels;
- a result that is here is opened within a second once a quorum of witnesses is closed, since that takes no work; who
  needs longer draws on the same allowance;
- whoever is no witness keeps account too, since it may be one in the next round; also of itself, to know. It does not
  see all that witnesses wait for, so whom they did without when a round closed has used what they waited.
"""

from __future__ import annotations

from collections import defaultdict

from aftermath.member.plan import RoundPlan
from aftermath.rules.committee import quorum

_TIMES = 3.0
_LEAST = 3.0  # seconds
_MOST_SLOWER = 2.0
_OPENS = 1.0  # seconds


class Allowances:
    """What every member has left of its allowance in one epoch."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._used: defaultdict[int, float] = defaultdict(float)
        self.late: set[int] = set()
        """Who was late in the newest round of which that is known."""
        self.left_out: frozenset[int] = frozenset()
        """Whom a quorum of witnesses did without in the newest round that has closed."""

    def use(self, seat: int, seconds: float) -> None:
        self._used[seat] += seconds

    def used_up(self, seat: int) -> bool:
        return self._used[seat] >= self.seconds


class Lateness:
    """Who is late in one round, which `began` at that moment of the clock."""

    def __init__(self, allowances: Allowances, plan: RoundPlan, began: float) -> None:
        self._allowances, self._plan, self._began = allowances, plan, began
        self._most_took: float | None = None
        self._charged: defaultdict[int, float] = defaultdict(float)
        self._charged_since: defaultdict[int, float] = defaultdict(float)

    def waited_for(
        self, due: frozenset[int], there: frozenset[int], missing: frozenset[int], now: float
    ) -> frozenset[int]:
        """Who of those `missing` at this moment is waited for; `there`: who of all that are `due` is not missing."""
        if self._most_took is None and self._are_most(there, due):
            self._most_took = now - self._began
        if self._most_took is None:
            return missing
        there -= self._charged.keys() | self._charged_since.keys() | self._allowances.left_out
        self._allowances.late -= there
        passed, most_took = now - self._began, self._most_took
        return frozenset(seat for seat in sorted(missing) if self._waits(seat, passed, most_took))

    def opening(self, sealed: frozenset[int], seconds: float) -> frozenset[int]:
        """Who of those is waited for that have not told their key, for so many seconds since they may."""
        return frozenset(seat for seat in sorted(sealed) if self._opens(seat, seconds))

    def closes(self, left_out: frozenset[int], now: float) -> None:
        """The round is over, and a quorum of its witnesses did without these."""
        in_time = self._allowances.left_out - left_out - self._charged.keys() - self._charged_since.keys()
        self._allowances.late -= in_time
        self._allowances.left_out = left_out
        if self._most_took is not None:
            for seat in sorted(left_out):  # for its key it has been waited already
                self._charge(seat, now - self._began - self._most_took - self._charged_since.get(seat, 0.0))

    def _opens(self, seat: int, seconds: float) -> bool:
        if seconds > _OPENS:
            self._allowances.use(seat, seconds - self._charged_since[seat])
            self._charged_since[seat] = seconds
            self._allowances.late.add(seat)
        return not (self._allowances.used_up(seat) and seat in self._allowances.late)

    def _are_most(self, there: frozenset[int], due: frozenset[int]) -> bool:
        weight_there, weight = (sum(self._plan.seats[seat].weight for seat in those) for those in (there, due))
        return len(there) >= quorum(len(due)) and 3 * weight_there >= 2 * weight

    def _waits(self, seat: int, passed: float, most_took: float) -> bool:
        """Whether this one is still waited for; its allowance pays for what it has taken."""
        if passed <= self._in_time(seat, most_took):
            return not (self._allowances.used_up(seat) and seat in self._allowances.late)
        self._charge(seat, passed - most_took)
        return not self._allowances.used_up(seat)

    def _charge(self, seat: int, took: float) -> None:
        """All that it took after the two thirds, so far."""
        self._allowances.use(seat, max(0.0, took - self._charged[seat]))
        self._charged[seat] = max(took, self._charged[seat])
        self._allowances.late.add(seat)

    def _in_time(self, seat: int, most_took: float) -> float:
        """Seconds from the round's beginning on until which this one is not late."""
        shares, weights = self._plan.shares, {one: self._plan.seats[one].weight for one in self._plan.owing}
        times = _TIMES
        if weight := weights.get(seat):
            part = sum(shares[one].len for one in weights) * weight / sum(weights.values())
            times += max(0.0, shares[seat].len / part - 1)
            times *= min(max(1.0, sum(weights.values()) / len(weights) / weight), _MOST_SLOWER)
        return max(_LEAST, most_took * times)
