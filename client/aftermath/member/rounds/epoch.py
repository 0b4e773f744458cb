"""Where one epoch stands for one member: what it began with, whether it goes on, what its rounds ask.

Decided: whatever enters the arithmetic (learning rate, cold start) or the shares (weights, tiers), and the rules, is
read once, when the epoch begins: a member that applies the last round late must get the same bits, although the others
have declared anew by then.
"""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.data.source import Source
from aftermath.member.feed import RunFeed
from aftermath.member.gradients import GradientFiles
from aftermath.member.opening import Opening
from aftermath.member.own_state import OwnState
from aftermath.member.plan import RoundPlan, plan_round
from aftermath.member.results import Results
from aftermath.member.rounds.divergence import Divergence
from aftermath.replica.modelshare import ModelShare
from aftermath.replica.replica import Replica
from aftermath.rules import bitmap
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import STORED_ROUNDS, Round, Run
from aftermath.rules.schedules import round_learning_rate
from aftermath.rules.state import RunState

_NOT_RUNNING = (RunState.WAITING_FOR_MEMBERS, RunState.PAUSED, RunState.FINISHED)


@dataclass(frozen=True)
class Beginning:
    """What an epoch began with: the run and its model as they were then, and what this member was in it."""

    run: Run
    model: Model
    replica: Replica
    seat: int
    weight: int
    """As declared: sequences per minute."""


@dataclass(frozen=True)
class CarriedOver:
    """What one member keeps from one epoch to the next, and uses in the rounds of each."""

    data: Source
    results: Results
    share: ModelShare
    gradients: GradientFiles
    own: OwnState
    opening: Opening
    divergence: Divergence


class Epoch:
    """Answers what one member asks about its epoch, of the run as it is seen now."""

    def __init__(self, began: Beginning, feed: RunFeed, results: Results) -> None:
        self.began, self._feed, self._results = began, feed, results
        self.number, self.rules = began.run.epoch, began.run.config
        self.height = -1
        """Of the newest round that this member has begun; -1 before the first."""
        self._members: Members | None = None

    @property
    def members(self) -> Members:
        """As they were when this member saw the first round."""
        return self._members or self._feed.members

    def learning_rate(self, step: int) -> float:
        """At which the results of a step are applied."""
        return round_learning_rate(self.began.run, self.began.model, step)

    # --- whether it goes on -------------------------------------------------------------------------------------

    def something_to_do(self, run: Run) -> bool:
        """Whether there is a newer round, or the epoch is over for this member in any way."""
        if self.goes_on(run):
            return run.current.height > self.height
        return not (self._still_ours(run) and run.state is RunState.WARMUP)

    def goes_on(self, run: Run) -> bool:
        """Whether the run is in a round of this epoch."""
        return self._still_ours(run) and run.epoch == self.number and run.state.training

    def given_up(self, run: Run) -> bool:
        """Before a round was seen, warm-up was abandoned or paused, or has begun anew."""
        if self.height >= 0 or run.epoch != self.number:
            return False
        return not self._still_ours(run) or run.state in (RunState.WARMUP, *_NOT_RUNNING)

    def ended(self, run: Run) -> bool:
        """Cooldown, or just after it: the chain still stores the last rounds until the next warm-up."""
        if not self._still_ours(run) or run.step != self._step_after(run):
            return False  # the last: the owner has set the run to another step since
        just_after = run.epoch == self.number + 1 and run.state in _NOT_RUNNING
        return just_after or (run.epoch == self.number and run.state is RunState.COOLDOWN)

    def _still_ours(self, run: Run) -> bool:
        """Whether what the chain stores is of the epoch that began for this member.

        Every warm-up begins at another second and clears the rounds. One that is given up leaves the epoch its number.
        """
        return run.epoch_started_at == self.began.run.epoch_started_at

    def _step_after(self, run: Run) -> int:
        """The step that comes after the last round that is stored: one with an attested result was a step."""
        last = run.current
        judged = run.round(self.rules.judged(last.height))
        if judged is None or not judged.batch:
            return last.step
        made = any(bitmap.contains(last.attested, seat) for seat in self._plan(judged, self.members).owing)
        return last.step - self.rules.overlap + made

    # --- plans --------------------------------------------------------------------------------------------------

    def open_plans(self, run: Run) -> None:
        """Plan every round the chain still stores and this member has not seen, oldest first."""
        if self._members is None:
            self._members = self._feed.members
        newest = run.current.height
        for height in range(max(0, newest - STORED_ROUNDS + 1), newest + 1):
            header = run.round(height)
            if header is not None and self._results.plan(height) is None:
                self._results.open(self._plan(header, self._members))

    def share_of(self, plan: RoundPlan) -> list[int]:
        """The sequences that this member trains in a round."""
        return [index for span in plan.ranges(self.began.seat) for index in span]

    def _plan(self, header: Round, members: Members) -> RoundPlan:
        return plan_round(self.began.run.run_id, self.number, header, members, self.rules.verification_percent)
