"""Play random wallets and coalitions against the program, and compare each transaction with the
oracle.

Honest members never lose a place or work, only true hashes are attested, and no data is lost.
FUZZ_TRANSACTIONS is the number of transactions of the nightly test, 250,000 by default.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from aftermath.rules import bitmap
from aftermath.rules.run import RoundId
from aftermath.rules.state import ExitReason, MemberState, ModelSource, RunState
from programs.oracle_comparison import WALLETS, Comparison
from programs.oracle_records import UNATTESTED, UNKNOWN, WAITS, OracleRound
from programs.scenario import CONFIG
from programs.transitions import round_quorum

ALL = WALLETS
TIERS = (0, 0, 0, 0, 0, 1, 2, 0, 1)
SECONDS = st.sampled_from([0, 1, 5, 6, 20, 21, 31, 70])
GAPS = st.sampled_from([0, 0, 80, 86])
BOND = 3_000_000
BONDS = st.sampled_from([0, BOND])
FALSE = (b"false" * 7)[:32]

# What one wallet may send. It may name its own seat and the current round, or any others.
seats = st.none() | st.integers(0, ALL)
backs = st.integers(0, 4).map(lambda back: max(0, back - 2))
results = st.just([None] * ALL) | st.lists(
    st.sampled_from([None, 0, 1, 1, 2]), min_size=ALL, max_size=ALL
)
hashes = st.sampled_from([None, FALSE, b"other" + bytes(27), b"t" * 32, UNKNOWN, UNATTESTED])
level_hashes = st.lists(hashes, min_size=3, max_size=4)
moves = st.one_of(
    st.tuples(
        st.just("join"), st.integers(0, 3), st.sampled_from([0, 1, 60, 65_535]), st.booleans()
    ),
    st.tuples(st.just("leave"), backs),
    st.tuples(st.just("tick")),
    st.tuples(st.just("ready"), seats, backs),
    st.tuples(st.just("witness"), seats, backs, results),
    st.tuples(st.just("verify"), seats, backs, st.integers(0, ALL), st.booleans()),
    st.tuples(st.just("attest"), seats, backs, level_hashes),
    st.tuples(st.just("health_check"), st.none() | st.integers(0, 2**ALL - 1)),
    st.tuples(st.just("checkpoint"), st.booleans()),
    st.tuples(st.just("show"), results),
    st.tuples(st.just("show"), results),
    st.tuples(st.just("accuse"), st.integers(0, ALL), st.booleans()),
    st.tuples(st.just("prove"), seats, st.booleans()),
    st.tuples(st.just("enroll"), st.sampled_from([0, BOND])),
    st.tuples(st.just("withdraw")),
    st.tuples(st.just("settle"), st.integers(0, ALL - 1)),
)
CHANGES = {
    "join_bond": st.sampled_from([0, BOND, 2 * BOND]),
    "overlap": st.integers(0, 1),
    "witness_nodes": st.sampled_from([0, 1, 2]),
    "verification_percent": st.sampled_from([0, 60]),
    "total_steps": st.sampled_from([7, 1000]),
    "min_round_time": st.integers(0, 1),
}
MOVES = st.tuples(
    st.sampled_from([-1, 0, 1, 5]), st.sampled_from([0, 1, 5, 9]), st.integers(-60, 60)
)
Thought = tuple[int, int, tuple[Any, ...]]


def thoughts(wallets: range) -> st.SearchStrategy[list[Thought]]:
    """Return what some wallets plan: after how many acts of others, which wallet, and which act."""
    return st.lists(st.tuples(st.integers(0, 20), st.sampled_from(wallets), moves), max_size=5)


def move(comparison: Comparison, index: int, verb: str, *more: Any) -> None:
    """Send what a wallet planned. Any refusal is fine."""
    us = comparison.oracle

    def mine(number: int | None) -> int:
        own = us.find(index)
        return number if number is not None else (own if own is not None else index)

    def at(back: int) -> RoundId:
        if len(us.rounds) <= back:
            return comparison.place
        round = us.rounds[-1 - back]
        return RoundId(us.epoch, round.height, round.seed or 0)

    match verb, *more:
        case "join", tier, weight, stateless:
            comparison.join(index, tier, weight, stateless=stateless)
        case "leave", back:
            comparison.leave(index, at(back))
        case "tick", *_:
            comparison.tick(index)
        case "ready", number, back:
            comparison.ready(index, mine(number), at(back))
        case "witness", number, back, results:
            comparison.witness(
                index,
                mine(number),
                at(back),
                {one: result for one, result in enumerate(results) if result is not None},
            )
        case "verify", number, back, target, mismatch:
            comparison.verify(index, mine(number), at(back), target, mismatch)
        case "attest", number, back, hashes:
            by_level = {level: one for level, one in enumerate(hashes) if one is not None}
            comparison.attest(index, mine(number), at(back), by_level)
        case "accuse", target, mismatch:
            accuse(comparison, target, mismatch)
        case "prove", number, same:  # against itself, since it has no other key
            comparison.prove(index, mine(number), same=same)
        case "enroll", max_bond:
            comparison.enroll(index, max_bond)
        case "withdraw", *_:
            comparison.withdraw(index)
        case "settle", target:
            comparison.settle(target)
        case "health_check", mask:
            comparison.health_check(index, unseen(comparison) if mask is None else mask)
        case "checkpoint", right:
            comparison.checkpoint(index, us.known.hashes if right else (FALSE,) * us.levels)


def accuse(comparison: Comparison, target: int, mismatch: bool) -> None:
    """Let the auditor of each drawn result of a member open a case, and the jury vote."""
    us = comparison.oracle
    for round in us.rounds[-4:-1] if us.state.active else ():
        auditor, jury = (us.audits(round) or {}).get(target, (None, ()))
        round_id = RoundId(us.epoch, round.height, round.seed or 0)
        for seat in () if auditor is None else (auditor, *jury):
            wrong = mismatch or seat == auditor
            comparison.verify(us.members[seat].wallet, seat, round_id, target, wrong)


def judged_and_judges(comparison: Comparison) -> tuple[OracleRound, OracleRound] | None:
    """Return the last closed round, and the round that it judged."""
    us = comparison.oracle
    judges = us.rounds[-2] if us.state.training and len(us.rounds) > 1 else None
    judged = us.judged_by(judges) if judges else None
    return (judged, judges) if judges and judged else None


def incomplete(comparison: Comparison) -> int:
    """Return the members that the holders of a level find incomplete."""
    pair = judged_and_judges(comparison)
    return comparison.oracle.incomplete(pair[1], pair[0]) & comparison.oracle.healthy if pair else 0


def convicted(comparison: Comparison) -> int:
    """Return the absent members that a quorum of the witnesses can report."""
    pair = judged_and_judges(comparison)
    if not pair:
        return 0
    healthy = comparison.oracle.healthy
    needed = round_quorum(pair[1], pair[1].elected)
    votes = [vote for vote in pair[1].votes if bitmap.contains(healthy, vote.seat)]
    missing = bitmap.seats(unseen(comparison))
    return bitmap.from_seats(
        number for number in missing if sum(number not in vote.held for vote in votes) >= needed
    )


def unseen(comparison: Comparison) -> int:
    """Return the healthy members whose result is missing from the last closed round."""
    pair = judged_and_judges(comparison)
    return pair[0].roster & ~(pair[1].attested or 0) & comparison.oracle.healthy if pair else 0


class MembersMachine(RuleBasedStateMachine):
    """A run whose serving members do what is due, each like its own client."""

    honest = range(ALL)

    tiers: Sequence[int] = TIERS

    def begin(self, gaps: int, **config: int) -> None:
        self.comparison = Comparison(gaps, **{**CONFIG, "warmup_time": 10, **config})
        self.shown: dict[tuple[int, int, int], Sequence[int | None]] = {}
        self.truths = {UNKNOWN, UNATTESTED}

    def turn(self, serving: Sequence[int], thoughts: Iterable[Thought], seconds: int) -> None:
        """Let serving members send all that is due, and play the others' plans in between.

        Then pass the time.
        """
        waiting = sorted(thoughts, key=lambda thought: thought[0], reverse=True)
        acts = 0
        again = True
        while (
            again or waiting
        ):  # whatever was thought of, what that makes due is done before time passes
            if waiting and (waiting[-1][0] <= acts or not again):
                self.think(*waiting.pop()[1:])
            again = False
            for index in serving:
                if self.serve(index):
                    acts, again = acts + 1, True
                while waiting and waiting[-1][0] <= acts:
                    self.think(*waiting.pop()[1:])
                    again = True
        self.comparison.wait(seconds)
        if serving:
            self.comparison.tick(serving[0])

    def think(self, index: int, what: tuple[Any, ...]) -> None:
        if what[0] != "show":
            move(self.comparison, index, *what)
            return
        us = self.comparison.oracle
        number = us.find(index)
        if us.state.training and number is not None:
            self.shown[us.epoch, us.round.height, number] = what[1]

    def serve(self, index: int) -> bool:
        """Send one thing that this member owes, if any."""
        comparison = self.comparison
        us = self.comparison.oracle
        number = us.find(index)
        if us.state is RunState.WAITING_FOR_MEMBERS:
            waits = number is not None and us.members[number].wish == WAITS
            if not us.may_join(index):
                return comparison.enroll(index, BOND) and comparison.join(index, self.tiers[index])
            return not waits and comparison.join(index, self.tiers[index])
        if number is None or us.halted:
            return False
        match us.state:
            case RunState.WARMUP if not bitmap.contains(us.round.ready, number):
                return comparison.ready(index, number, comparison.place)
            case RunState.ROUND_TRAIN | RunState.ROUND_WITNESS if missing := (
                convicted(comparison) | incomplete(comparison)
            ) & ~(1 << number):
                return comparison.health_check(index, missing)
            case RunState.ROUND_TRAIN | RunState.ROUND_WITNESS if not bitmap.contains(
                us.round.voters, number
            ):
                return comparison.witness(index, number, comparison.place, self.seen(index))
            case RunState.COOLDOWN if (agreed := self.truth(number)) and not us.has_attested(
                number
            ):
                return comparison.attest(index, number, comparison.place, agreed)
            case RunState.COOLDOWN if (
                us.known.attested == us.every and us.durable.step < us.known.step
            ):
                return self.tiers[index] == 0 and comparison.checkpoint(index, us.known.hashes)
        return False

    def seen(self, index: int) -> dict[int, int]:
        """Return the results that a member holds: those that others delivered, or showed to it."""
        us = self.comparison.oracle
        judged = us.judged_by(us.round)
        results = {}
        for number in judged.members if judged else ():
            forged = self.shown.get((us.epoch, judged.height, number)) if judged else None
            result = (
                1 if forged is None or us.members[number].wallet in self.honest else forged[index]
            )
            if result is not None:
                results[number] = result
        return results

    def truth(self, number: int) -> dict[int, bytes]:
        """Return the agreed hashes of the levels for which this member is elected."""
        us = self.comparison.oracle
        agreed = {
            level: f"epoch {us.epoch} step {us.step} level {level}".encode().ljust(32, b".")
            for level in range(us.levels)
            if number in us.electees(level)
        }
        self.truths |= set(agreed.values())
        return agreed


class AnyWallets(MembersMachine):
    """Serving wallets, wallets that do anything, and an owner that makes random changes."""

    @initialize(
        overlap=st.integers(0, 1), witnesses=st.sampled_from([0, 0, 2]), percent=st.sampled_from([0, 0, 60]),
        ends=st.sampled_from([(3, 0, 1000), (5, 0, 7), (0, 90, 1000)]), batch=st.sampled_from([7, 48]),
        tiers=st.lists(st.integers(0, 2), min_size=ALL, max_size=ALL), gaps=GAPS, bond=BONDS,
        least=st.integers(0, 1),
    )  # fmt: skip
    def open(
        self, overlap: int, witnesses: int, percent: int, ends: tuple[int, int, int], batch: int, tiers: list[int],
        gaps: int, bond: int, least: int,
    ) -> None:  # fmt: skip
        rounds, seconds, steps = ends
        self.begin(
            gaps, overlap=overlap, witness_nodes=witnesses, verification_percent=percent, rounds_per_epoch=rounds,
            epoch_time=seconds, total_steps=steps, global_batch_size_start=batch, global_batch_size_end=batch,
            min_round_time=least, join_bond=bond,
        )  # fmt: skip
        self.honest = range(0)
        self.tiers = tiers

    @rule(
        serving=st.sets(st.integers(0, ALL - 1), max_size=ALL), all_but=st.booleans(), seconds=SECONDS,
        thoughts=thoughts(range(ALL)),
    )  # fmt: skip
    def go_ahead(
        self, serving: set[int], all_but: bool, seconds: int, thoughts: list[Thought]
    ) -> None:
        self.turn(
            [index for index in range(ALL) if (index in serving) != all_but], thoughts, seconds
        )

    @rule(
        what=st.sampled_from(["pause", "bar", "remove", "nothing"]), index=st.integers(0, ALL - 1)
    )
    def the_owner_acts(self, what: str, index: int) -> None:
        """Let the owner act, and undo it after a turn of the members, or leave it."""
        if what == "pause":
            self.comparison.set_paused(True)
        elif what != "nothing":
            self.comparison.kick(index, what == "bar")
        self.turn(range(ALL), [], 6)
        if self.comparison.oracle.halted or what == "pause":
            self.comparison.set_paused(False)

    @rule(
        rules=st.fixed_dictionaries({}, optional=CHANGES), back=st.none() | st.integers(0, 4),
        progress=st.none() | MOVES, use_durable=st.sampled_from([False, False, True]), right=st.booleans(),
    )  # fmt: skip
    def the_owner_changes_the_run(
        self, rules: dict[str, int], back: int | None, progress: tuple[int, int, int] | None, use_durable: bool,
        right: bool,
    ) -> None:  # fmt: skip
        """Let the owner change the config or the position of a halted run. Expect a refusal if the
        run is not halted.
        """
        comparison = self.comparison
        us = self.comparison.oracle
        comparison.set_paused(True)
        for _ in range(4):
            if not us.halted:
                self.turn(range(ALL), [], 31)
        if back is not None:
            known = [us.durable, *us.earlier]
            checkpoint = known[back] if back < len(known) else None
            comparison.rewind(back, checkpoint.step if checkpoint and right else 3)
        if progress is not None:
            epoch, step, data_index = progress
            progress = max(0, us.epoch + epoch), step or us.step, max(0, us.data_index + data_index)
        comparison.update(replace(us.config, **rules), progress, use_durable=use_durable)
        comparison.set_paused(False)


class CoalitionMachine(MembersMachine):
    """Seven of nine members do what is due before time passes.

    The other two do anything at any moment.
    """

    honest = range(7)

    @initialize(
        overlap=st.integers(0, 1), rounds=st.integers(2, 5), steps=st.sampled_from([9, 1000, 1000]),
        least=st.sampled_from([(3, 2), (7, 7)]), batch=st.sampled_from([7, 48]), gaps=GAPS,
    )  # fmt: skip
    def open(
        self, overlap: int, rounds: int, steps: int, least: tuple[int, int], batch: int, gaps: int
    ) -> None:
        self.begin(
            gaps, overlap=overlap, rounds_per_epoch=rounds, total_steps=steps, init_min_clients=least[0],
            min_clients=least[1], global_batch_size_start=batch, global_batch_size_end=batch, join_bond=BOND,
        )  # fmt: skip

    @rule(
        first=st.integers(0, ALL - 1), away=st.sets(st.integers(0, ALL - 1)), thoughts=thoughts(range(ALL)),
        seconds=SECONDS,
    )  # fmt: skip
    def go_ahead(self, first: int, away: set[int], thoughts: list[Thought], seconds: int) -> None:
        """Let the coalition play its plans, and any part of what is due."""
        order = [*range(first, ALL), *range(first)]
        serving = [index for index in order if index in self.honest or index not in away]
        liars = range(self.honest.stop, ALL)
        self.turn(
            serving,
            [(when, liars[who % len(liars)], what) for when, who, what in thoughts],
            seconds,
        )

    def serve(self, index: int) -> bool:
        acted = super().serve(index)
        self.look()
        return acted

    # --- what must hold

    @invariant()
    def look(self) -> None:
        us = self.comparison.oracle
        honest = bitmap.from_seats(
            number for number, seat in enumerate(us.members) if seat.wallet in self.honest
        )
        for number in bitmap.seats(honest):
            state = us.members[number].state
            assert state in (MemberState.IDLE, MemberState.HEALTHY), (
                f"an honest member is {state.name}"
            )
        for index in self.honest:
            bond = us.memberships[index].bond
            assert bond == BOND, "an honest member's bond is gone"
        assert set(us.known.hashes) <= self.truths, "something else than the truth is attested"
        assert set(us.durable.hashes) <= self.truths, (
            "the checkpoint has other hashes than the truth"
        )
        assert us.state is not RunState.PAUSED
        assert us.state is not RunState.FINISHED or us.step > us.config.total_steps, "the run ended"
        assert us.reason in (
            ExitReason.NONE,
            ExitReason.TOTAL_STEPS,
            ExitReason.ROUNDS_PER_EPOCH,
        ), us.reason
        assert us.known.lost == 0, "a level is lost"
        if us.epoch and not us.state.active and us.state is not RunState.WARMUP:
            assert not honest & ~us.finishers, "an honest member is no source of the model"
            assert us.known.source is ModelSource.PEERS
            assert us.known.attested == us.every
        for round in us.rounds:
            judged = us.judged_by(round)
            if round.attested is not None and judged is not None:
                assert not judged.roster & honest & ~round.attested, (
                    "an honest member's work is void"
                )
        sequences = us.trained
        waits = us.backlog
        flying = sum(round.size for round in self.open_rounds())
        assert len(sequences) + len(waits) + flying == us.data_index, "a sequence is lost"

    def open_rounds(self) -> Iterator[OracleRound]:
        """Return rounds in progress: neither settled, nor returned because no round judges them any
        more.
        """
        us = self.comparison.oracle
        if us.state.training:
            settled = {id(us.judged_by(round)) for round in us.rounds if round.attested is not None}
            yield from (round for round in us.rounds if id(round) not in settled)


class Hiders(CoalitionMachine):
    """The coalition after an epoch in which all members showed their levels.

    One of the two hides level 0 repeatedly.
    """

    tiers = (0, 0, 0, 1, 2, 2, 2, 0, 2)
    liar = 7
    convictions = 0
    """The number of convictions in all walks together."""

    @initialize(overlap=st.integers(0, 1), batch=st.sampled_from([7, 48]))
    def open(self, overlap: int, batch: int) -> None:
        self.begin(
            0, overlap=overlap, rounds_per_epoch=14, total_steps=1000, init_min_clients=9, min_clients=7,
            global_batch_size_start=batch, global_batch_size_end=batch, join_bond=BOND,
        )  # fmt: skip
        while self.comparison.oracle.epoch == 0:
            self.turn(range(ALL), [], 6)

    @rule(rounds=st.integers(3, 6), thoughts=thoughts(range(ALL)))
    def hide(self, rounds: int, thoughts: list[Thought]) -> None:
        """Withhold results from the holders and deliver them to all others.

        Other plans follow only at the end.
        """
        us = self.comparison.oracle
        for left in reversed(range(rounds)):
            number = us.find(self.liar)
            if us.state.training and number is not None:
                hidden = [
                    None if self.tiers[one] == 0 and one != self.liar else 1 for one in range(ALL)
                ]
                self.shown[us.epoch, us.round.height, number] = hidden
            self.turn(
                range(ALL),
                [] if left else [(when, 7 + who % 2, what) for when, who, what in thoughts],
                6,
            )

    def serve(self, index: int) -> bool:
        guilty = incomplete(self.comparison) & ~convicted(self.comparison)
        acted = super().serve(index)
        Hiders.convictions += (
            guilty & self.comparison.oracle._seats(MemberState.DROPPED)
        ).bit_count()
        return acted


class TooMany(CoalitionMachine):
    """A coalition of four of nine members, which is more than a third."""

    honest = range(5)


EXAMPLES = {AnyWallets: 8, CoalitionMachine: 6, Hiders: 2}
MACHINES = pytest.mark.parametrize("machine", EXAMPLES)
STEPS = 30


def run(
    machine: type[RuleBasedStateMachine], examples: int, *, shrink: bool = True, again: bool = False
) -> None:
    """Play the profile's examples. If one process plays them again, play others."""
    run_settings = settings(
        max_examples=examples, stateful_step_count=STEPS, database=None, print_blob=True,
        derandomize=settings().derandomize and not again, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=run_settings)  # type: ignore[no-untyped-call]


@MACHINES
@pytest.mark.timeout(900)  # hypothesis shrinks a failure for up to five minutes
def test_coalition_transactions_never_violate_rules(
    machine: type[RuleBasedStateMachine],
) -> None:
    Hiders.convictions = 0
    run(machine, EXAMPLES[machine])
    assert machine is not Hiders or Hiders.convictions > 0, "nobody was ever dropped for its levels"


def test_banned_wallet_without_membership_is_refused() -> None:
    comparison = Comparison(**CONFIG)
    assert comparison.withdraw(0)
    assert comparison.kick(0, True)
    assert not comparison.withdraw(0)
    assert comparison.kick(0, False)
    assert not comparison.withdraw(0)


def test_coalition_above_a_third_violates_invariants() -> None:
    with pytest.raises(AssertionError):
        run(TooMany, 100, shrink=False)


def _send(machine: type[RuleBasedStateMachine], transactions: int) -> None:
    before = Comparison.sent
    began = time.process_time()
    while Comparison.sent - before < transactions:
        run(machine, 10, again=True)  # only one or two thousand transactions
    seconds = time.process_time() - began
    sent = Comparison.sent - before
    print(
        f"\n{machine.__name__}: {sent:,} transactions in {seconds:.0f} s, {sent / seconds:,.0f} a second"
    )


@MACHINES
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thousands_of_transactions_follow_oracle(machine: type[RuleBasedStateMachine]) -> None:
    _send(machine, 2_000)


@MACHINES
@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_hundreds_of_thousands_of_transactions_follow_oracle(
    machine: type[RuleBasedStateMachine],
) -> None:
    count = os.environ.get("FUZZ_TRANSACTIONS", "250000")
    assert count.isdecimal(), (
        f"FUZZ_TRANSACTIONS (make fuzz TRANSACTIONS=...) is not a number: {count!r}"
    )
    _send(machine, int(count) // 3)
