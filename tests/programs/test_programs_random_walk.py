"""Play random members, departures, silences, drops and pauses: no sequence is trained twice,
skipped or lost.
"""

import random
from collections import Counter

import pytest

from aftermath.rules import assignment, bitmap
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, RunState
from programs.harness import World
from programs.scenario import Scenario

PERCENT = 20


class Walk:
    """One run driven at random. It records which sequences a quorum attested."""

    def __init__(self, seed: int, overlap: int) -> None:
        self.rng = random.Random(seed)
        self.run = Scenario(World()).start(
            init_min_clients=2, min_clients=2, rounds_per_epoch=6, verification_percent=PERCENT, overlap=overlap,
            global_batch_size_start=5, global_batch_size_end=40, global_batch_size_warmup_tokens=128 * 500,
        )  # fmt: skip
        self.run.owner("set_future_epoch_rates", 1_000, 40).ok()
        self.trained: Counter[int] = Counter()
        self.epochs = 0

    def settle(self, before: Run, after: Run) -> None:
        """If a round closed, record the attested shares of the round that it judged."""
        closing = before.current
        closed = before.state.training and (
            after.current.height != closing.height or not after.state.training
        )
        judged = before.round(before.config.judged(closing.height)) if closed else None
        if judged is None:
            return
        shares = assignment.assign(judged, self.run.members)
        for seat, share in shares.items():
            if bitmap.contains(after.rounds[before.head].attested, seat):
                for indices in assignment.sequences(judged, share):
                    self.trained.update(indices)

    def act(self) -> None:
        """Send one transaction that a client might send. Refusals are fine."""
        rng = self.rng
        run = self.run
        state = run.run
        index = rng.randrange(9)
        choice = rng.random()
        if choice < 0.85 and state.state.training:
            judged = state.round(state.config.judged(state.current.height))
            roster = judged.roster if judged else 0
            silent = sum(1 << seat for seat in bitmap.seats(roster) if seat % 4 == state.epoch % 5)
            elected = run.elected()
            if elected:
                run.witness(rng.choice(elected), roster & ~silent if rng.random() < 0.9 else 0)
        elif choice < 0.35:
            run.join(index, tier=index % 3, weight=rng.randint(1, 99), stateless=rng.random() < 0.1)
        elif choice < 0.37 or 0.85 <= choice < 0.86:
            run.by(index, "leave_run")
        elif 0.86 <= choice < 0.89:
            closed = state.head - 1
            missing = (
                state.rounds[closed - state.config.overlap].roster & ~state.rounds[closed].attested
            )
            run.by(index, "health_check", run.names(bitmap.seats(missing)))
        elif 0.89 <= choice < 0.9 or (choice < 0.5 and state.halted):
            run.owner("set_paused", not state.halted)
        elif choice < 0.7 and state.state is RunState.WARMUP:
            run.by(index, "warmup_witness", index)
        else:
            run.world.advance(rng.choice([1, 6, 21, 31]))
            run.tick(index)

    def step(self) -> None:
        before = self.run.run
        self.act()
        after = self.run.run
        self.settle(before, after)
        if after.data_index < before.data_index:  # the epoch was undone
            self.trained = Counter(
                {index: count for index, count in self.trained.items() if index < after.data_index}
            )
        assert after.seq - before.seq in (0, 1)
        if after.epoch != before.epoch:
            self.epochs += 1
        if not after.state.training:
            self.check(after)

    def check(self, state: Run) -> None:
        """Check, between rounds, that every assigned sequence was trained once or is in the
        backlog.
        """
        waiting = Counter(index for one in self.run.backlog for index in range(one.start, one.stop))
        both = self.trained + waiting
        assert max(both.values(), default=1) == 1, (
            "a sequence is trained twice, or trained and waiting"
        )
        assert all(index < state.data_index for index in both)
        assert (len(both), state.lost_sequences) == (state.data_index, 0)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize(
    "seed",
    [
        0,
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5)),
        *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(5, 30)),
    ],
)
def test_random_walk_trains_each_sequence_exactly_once(seed: int, overlap: int) -> None:
    walk = Walk(seed, overlap)
    for _ in range(450):
        walk.step()
    assert walk.epochs >= 2
    assert walk.trained
    members = walk.run.members
    paid = sum(seat.points + seat.slashed for seat in members.seats)
    assert paid <= 1_000 * walk.epochs
    assert all(seat.state in MemberState for seat in members.seats)
