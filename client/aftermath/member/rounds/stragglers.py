"""Stragglers: which members are late in a round, and how long its witnesses wait for them.

A late member uses up an allowance of one `max_round_train_time` per epoch. So one late member
delays an epoch by about one round's time, however many rounds there are. Members that do not
witness track allowances too, because they may witness the next round.
"""

from __future__ import annotations

from collections import defaultdict

from aftermath.member.round_plan import RoundPlan
from aftermath.rules.committee import quorum

# Once two thirds of the owing members by number and weight have delivered, the others get _TIMES as
# long in total, and at least _LEAST seconds. Shares follow weights, so all should finish at about
# the same time. A share that rounding made larger adds up to _MOST_SLOWER to the factor. A weight
# below the mean multiplies it by up to _MOST_SLOWER. So the factor is at most ten.
_TIMES = 3.0
_LEAST = 3.0  # seconds
_MOST_SLOWER = 2.0
_OPENS = 1.0  # seconds to reveal a key once a quorum has closed the round


class Allowances:
    """How much of its allowance each member has used in one epoch."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._used: defaultdict[int, float] = defaultdict(float)
        self.late: set[int] = set()
        """Members that were late in the newest known round."""
        self.left_out: frozenset[int] = frozenset()
        """Members whose result a quorum of witnesses missed in the newest closed round."""

    def use(self, seat: int, seconds: float) -> None:
        self._used[seat] += seconds

    def used_up(self, seat: int) -> bool:
        return self._used[seat] >= self.seconds


class StragglerTracker:
    """Decides which members are late in one round. `started`: the clock when the round started."""

    def __init__(self, allowances: Allowances, plan: RoundPlan, started: float) -> None:
        self._allowances = allowances
        self._plan = plan
        self._started = started
        self._most_took: float | None = None
        self._charged: defaultdict[int, float] = defaultdict(float)
        self._charged_since: defaultdict[int, float] = defaultdict(float)

    def waited_for(
        self, due: frozenset[int], delivered: frozenset[int], missing: frozenset[int], now: float
    ) -> frozenset[int]:
        """Return which `missing` members to wait for. `delivered`: the `due` ones not missing."""
        if self._most_took is None and self._are_most(delivered, due):
            self._most_took = now - self._started
        if self._most_took is None:
            return missing
        delivered -= self._charged.keys() | self._charged_since.keys() | self._allowances.left_out
        self._allowances.late -= delivered
        passed = now - self._started
        most_took = self._most_took
        return frozenset(seat for seat in sorted(missing) if self._waits(seat, passed, most_took))

    def waited_for_keys(self, sealed: frozenset[int], seconds: float) -> frozenset[int]:
        """Return which of the `sealed` members to wait for, `seconds` after they could reveal."""
        return frozenset(seat for seat in sorted(sealed) if self._waits_for_key(seat, seconds))

    def round_closed(self, left_out: frozenset[int], now: float) -> None:
        """Record that the round is over, and which members a quorum of witnesses missed."""
        in_time = (
            self._allowances.left_out - left_out - self._charged.keys() - self._charged_since.keys()
        )
        self._allowances.late -= in_time
        self._allowances.left_out = left_out
        # A member that does not witness cannot see all that witnesses wait for.
        if self._most_took is not None:
            for seat in sorted(left_out):  # without the time already charged for its key
                self._charge(
                    seat, now - self._started - self._most_took - self._charged_since.get(seat, 0.0)
                )

    def _waits_for_key(self, seat: int, seconds: float) -> bool:
        if seconds > _OPENS:
            self._allowances.use(seat, seconds - self._charged_since[seat])
            self._charged_since[seat] = seconds
            self._allowances.late.add(seat)
        return not (self._allowances.used_up(seat) and seat in self._allowances.late)

    def _are_most(self, delivered: frozenset[int], due: frozenset[int]) -> bool:
        weight_there, weight = (
            sum(self._plan.seats[seat].weight for seat in seats) for seats in (delivered, due)
        )
        return len(delivered) >= quorum(len(due)) and 3 * weight_there >= 2 * weight

    def _waits(self, seat: int, passed: float, most_took: float) -> bool:
        """Return whether to wait for a member. Its allowance pays for the extra time."""
        if passed <= self._in_time(seat, most_took):
            return not (self._allowances.used_up(seat) and seat in self._allowances.late)
        self._charge(seat, passed - most_took)
        return not self._allowances.used_up(seat)

    def _charge(self, seat: int, took: float) -> None:
        """Charge the time that a member took after two thirds had delivered."""
        self._allowances.use(seat, max(0.0, took - self._charged[seat]))
        self._charged[seat] = max(took, self._charged[seat])
        self._allowances.late.add(seat)

    def _in_time(self, seat: int, most_took: float) -> float:
        """Return the seconds from the round's beginning until a member is late."""
        shares = self._plan.shares
        weights = {
            owing_seat: self._plan.seats[owing_seat].weight for owing_seat in self._plan.owing
        }
        times = _TIMES
        if weight := weights.get(seat):
            part = (
                sum(shares[owing_seat].len for owing_seat in weights)
                * weight
                / sum(weights.values())
            )
            # bounded: for weight 1, one sequence can be thousands of times the exact part
            times += min(max(0.0, shares[seat].len / part - 1), _MOST_SLOWER)
            times *= min(max(1.0, sum(weights.values()) / len(weights) / weight), _MOST_SLOWER)
        return max(_LEAST, most_took * times)
