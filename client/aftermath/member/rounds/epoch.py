"""The state of one epoch for one member: its start, whether it runs, and its rounds' plans.

The epoch reads learning rate, cold start, weights, tiers and rules once, when it begins. A member
that applies the last round late must get the same bits, although members may have declared new
weights by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aftermath.data.source import Source
from aftermath.member.announced_results import Results
from aftermath.member.feed import RunFeed
from aftermath.member.reveal import Reveals
from aftermath.member.round_plan import RoundPlan, plan_round
from aftermath.member.saved_results import GradientFiles
from aftermath.member.state_roots import OwnState
from aftermath.optim.gradient_clip import Diverged
from aftermath.replica.model_sharing import ModelShare
from aftermath.replica.replica import Replica
from aftermath.rules import bitmap
from aftermath.rules.audits import can_be_drawn, judged_seats
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import STORED_ROUNDS, Round, Run
from aftermath.rules.schedules import round_learning_rate
from aftermath.rules.state import RunState

_NOT_RUNNING = (RunState.WAITING_FOR_MEMBERS, RunState.PAUSED, RunState.FINISHED)
MOST_IN_A_ROW = 5
"""Shares without a finite result in a row. One may be a rare batch; five show a broken model."""


class Divergence:
    """Counts a member's shares without a finite result, over all epochs."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def finite(self) -> None:
        """Record a trained share."""
        self._in_a_row = 0

    def not_finite(self, step: int, why: str) -> None:
        """Record a share without a finite result. Raises Diverged after too many in a row."""
        self._in_a_row += 1
        if self._in_a_row >= MOST_IN_A_ROW:
            raise Diverged(
                f"the training has diverged: {self._in_a_row} shares in a row had no finite result, the last at step "
                f"{step} ({why})",
                "Ask the run's owner to pause the run, rewind it and lower base_lr with update-config",
            )


@dataclass(frozen=True)
class EpochStart:
    """The run, its model and this member at the beginning of an epoch."""

    run: Run
    model: Model
    replica: Replica
    seat: int
    weight: int
    """Declared sequences per minute."""


@dataclass(frozen=True)
class CarriedOver:
    """The parts of one member that outlive an epoch."""

    data: Source
    results: Results
    share: ModelShare
    gradients: GradientFiles
    own_state: OwnState
    reveals: Reveals
    divergence: Divergence


class Epoch:
    """Answers a member's questions about its epoch from the current view of the run."""

    def __init__(self, start: EpochStart, feed: RunFeed, results: Results) -> None:
        self.start = start
        self._feed = feed
        self._results = results
        self.number = start.run.epoch
        self.rules = start.run.config
        self.height = -1
        """Height of the newest round that this member has begun; -1 before the first."""
        self._members: Members | None = None

    @property
    def members(self) -> Members:
        """Return the members as this member saw them in the first round."""
        return self._members or self._feed.members

    def learning_rate(self, step: int) -> float:
        """Return the learning rate at which the results of a step are applied."""
        return round_learning_rate(self.start.run, self.start.model, step)

    # --- whether it is running --------------------------------------------------------------------

    def something_to_do(self, run: Run) -> bool:
        """Return whether there is a newer round, or the epoch is over for this member."""
        if self.is_running(run):
            return run.current.height > self.height
        return not (self._still_ours(run) and run.state is RunState.WARMUP)

    def is_running(self, run: Run) -> bool:
        """Return whether the run is in a round of this epoch."""
        return self._still_ours(run) and run.epoch == self.number and run.state.training

    def accepts_votes(self, run: Run) -> bool:
        """Return whether the run is in a round or the cooldown of this epoch."""
        in_cooldown = run.epoch == self.number and run.state is RunState.COOLDOWN
        return self.is_running(run) or (self._still_ours(run) and in_cooldown)

    def given_up(self, run: Run) -> bool:
        """Return whether warm-up was abandoned, paused or restarted before the first round."""
        if self.height >= 0 or run.epoch != self.number:
            return False
        return not self._still_ours(run) or run.state in (RunState.WARMUP, *_NOT_RUNNING)

    def ended(self, run: Run) -> bool:
        """Return whether cooldown has begun or just ended, and the last rounds are still stored."""
        if not self._still_ours(run) or run.step != self._step_after(run):
            return False  # the owner has set the run to another step since
        just_after = run.epoch == self.number + 1 and run.state in _NOT_RUNNING
        return just_after or (run.epoch == self.number and run.state is RunState.COOLDOWN)

    def _still_ours(self, run: Run) -> bool:
        """Return whether the stored rounds are of this member's epoch.

        Each warm-up starts at a different second and clears the rounds. An abandoned warm-up does
        not advance the epoch number.
        """
        return run.epoch_started_at == self.start.run.epoch_started_at

    def _step_after(self, run: Run) -> int:
        """Return the step after the last stored round. Rounds without a result do not count."""
        last = run.current
        judged = run.round(self.rules.judged(last.height))
        if judged is None or not judged.batch:
            return last.step
        is_step = any(
            bitmap.contains(last.attested, seat) for seat in self._plan(judged, self.members).owing
        )
        return last.step - self.rules.overlap + is_step

    # --- audits -----------------------------------------------------------------------------------

    def can_be_audited(self) -> bool:
        """Return whether this member's results in this epoch may be drawn and judged."""
        run = self._feed.run
        return self.start.replica.can_be_judged and can_be_drawn(run, self.members, self.start.seat)

    def judges(self, plan: RoundPlan) -> bool:
        """Return whether this member is a witness of a round whose results may be drawn."""
        established = bool(self.rules.verification_percent and plan.header.established)
        return established and bitmap.contains(self.members.judges, self.start.seat)

    def judged_seats(self, plan: RoundPlan) -> Iterator[int]:
        """Yield the members whose results of a round this member may have to judge."""
        return judged_seats(self._feed.run, self.members, plan.header, self.start.seat)

    # --- plans ------------------------------------------------------------------------------------

    def open_plans(self, run: Run) -> None:
        """Plan every stored round that this member has not seen, oldest first."""
        if self._members is None:
            self._members = self._feed.members
        newest = run.current.height
        for height in range(max(0, newest - STORED_ROUNDS + 1), newest + 1):
            header = run.round(height)
            if header is not None and self._results.plan(height) is None:
                self._results.open(self._plan(header, self._members))

    def share_of(self, plan: RoundPlan) -> list[int]:
        """Return the sequences that this member trains in a round."""
        return [index for span in plan.ranges(self.start.seat) for index in span]

    def _plan(self, header: Round, members: Members) -> RoundPlan:
        return plan_round(self.start.run.run_id, self.number, header, members)
