"""Deliveries are counted as the oracle says, also with more members than witnesses.

The random walks have few members.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest
from solders.account import Account
from solders.pubkey import Pubkey

from aftermath.rules import bitmap
from aftermath.rules.run import Round
from aftermath.rules.state import EstablishedOnly
from programs.harness import World
from programs.oracle_records import OracleRound, Seat, Vote
from programs.scenario import Scenario
from programs.transitions import Transitions

LEVELS = 3
ROUNDS = 5
# numbers of members, and of witnesses in the config
SIZES = ((10, 3), (10, 3), (24, 12), (40, 0), (96, 0))
ACCOUNTS = ("run", "model", "members", "witnesses")


@pytest.mark.parametrize(
    ("seed", "states"),
    [
        (11, 20),
        pytest.param(1, 60, marks=pytest.mark.slow),
        pytest.param(2, 400, marks=pytest.mark.nightly),
    ],
)
def test_counted_deliveries_equal_oracle(seed: int, states: int) -> None:
    rng = random.Random(seed)
    runs = _Runs()
    counts = Counter[str]()
    for _ in range(states):
        _Rounds(runs.drawn(rng), rng, counts).play()
    assert min(counts[kind] for kind in ("up", "down", "thin")) > 0, counts


class _Runs:
    """One run of each size, reset to its first round for each state."""

    def __init__(self) -> None:
        self.world = World()
        self.begun = cache(self._begun)

    def _begun(self, count: int, nodes: int) -> tuple[Scenario, dict[Pubkey, Account | None]]:
        run = Scenario(self.world, f"run {count} {nodes}", tiers=LEVELS)
        least = max(nodes, 3)
        run.create().ok()
        run.configure(
            init_min_clients=count,
            min_clients=least,
            rounds_per_epoch=ROUNDS + 2,
            witness_nodes=nodes,
        ).ok()
        run.authorize()
        run.owner("set_paused", False).ok()
        run.train_of(dict.fromkeys(range(count), 0))
        return run, {
            run.accounts[name]: self.world.svm.get_account(run.accounts[name]) for name in ACCOUNTS
        }

    def drawn(self, rng: random.Random) -> Scenario:
        """Return a run whose members have random tiers, some of them rare, and have or have not
        shown them before.
        """
        size = rng.choice(SIZES)
        run, accounts = self.begun(*size)
        for key, account in accounts.items():
            assert account is not None
            self.world.set_account(key, account)
        members = self.world.record("Members", run.run_id)
        state = self.world.record("Run", run.run_id)
        rare = rng.choice([0.1, 0.3, 0.5])
        seats = range(size[0])
        tiers = [rng.randrange(LEVELS - 1) if rng.random() < rare else LEVELS - 1 for _ in seats]
        members["seats"][0]["tier"][: len(seats)] = tiers
        judges = [seat for seat in seats if rng.random() < 0.5] if rng.random() < 0.5 else []
        for name in ("judges", "established"):
            members[name][0] = bitmap.to_bytes(bitmap.from_seats(judges))
        state["levels_established"] = (1 << LEVELS) - (
            1 << min((tiers[seat] for seat in judges), default=LEVELS)
        )
        self.world.store("Members", run.run_id, members)
        self.world.store("Run", run.run_id, state)
        return run


class _Rounds:
    """Play the rounds of one state.

    Some members leave, some are silent, and some holders of a rare tier deny the results of others.
    """

    def __init__(self, run: Scenario, rng: random.Random, counts: Counter[str]) -> None:
        self.run = run
        self.rng = rng
        self.seen = counts
        self.count = run.run.current.clients
        self.denied = set(rng.sample(range(self.count), self.count // 3))
        self.deny = rng.choice([0.2, 0.6, 1.0])
        self.votes: dict[int, list[Vote]] = {}
        """The votes by the height of their round."""

    def play(self) -> None:
        for height in range(ROUNDS):
            for index in self.rng.sample(
                range(self.count), self.rng.choice([0, 0, 1, self.count // 4])
            ):
                self.run.by(index, "leave_run")
            if not self.run.run.state.training:
                return
            self._attest(height)
            if self.run.run.current.height == height:
                self.run.world.advance(self.run.run.config.max_round_train_time + 1)
                self.run.tick()

    def _attest(self, height: int) -> None:
        """Attest in the running round. The first vote counts the previous round."""
        elected = self.run.elected()
        votes = self.votes.setdefault(height, [])
        owing = set(bitmap.seats(self.run.owing()))
        silent = self.rng.choice([0, 0, len(elected) // 4])
        for index in self.rng.sample(elected, len(elected) - silent):
            seat = self.run.seat_of(index)
            denies = (
                self.run.members.seats[seat].tier < LEVELS - 1 and self.rng.random() < self.deny
            )
            results = dict.fromkeys(owing - (self.denied - {seat} if denies else set()), 1)
            expected = self._expected() if height and not votes else None
            before = self.run.members.shown
            self.run.witness(
                index, None, {one: bytes([value]) * 32 for one, value in results.items()}
            ).ok()
            votes.append(Vote(seat, results))
            if expected is not None:
                scores = self.run.members.shown[: self.count]
                assert list(scores) == expected, f"round {height} of {self.run.run_id}"
                self.seen["up"] += sum(
                    now > then for now, then in zip(scores, before, strict=False)
                )
                self.seen["down"] += sum(
                    now < then for now, then in zip(scores, before, strict=False)
                )
            if self.run.run.current.height != height:
                return  # all remaining witnesses have attested

    def _expected(self) -> list[int]:
        """Return the oracle's level scores once the previous round is counted."""
        state = self.run.run
        members = self.run.members
        oracle = Transitions(state.config, LEVELS, self.run.world.now)
        for number, one in enumerate(members.seats[: self.count]):
            score = members.shown[number]
            oracle.members.append(
                Seat(number, one.tier, state=one.state, exited=one.exited_height, shown=score)
            )
        oracle.judges = members.judges
        oracle.began = state.current.began
        oracle.known_levels = state.levels_established
        stored = [state.round(height) for height in range(state.current.height + 1)]
        oracle.rounds = [self._oracle_round(one) for one in stored if one is not None]
        closed = oracle.rounds[-2]
        self.seen["thin"] += bool(closed.counts and oracle._fetched_by_all(closed))
        oracle.judge()
        return [one.shown for one in oracle.members]

    def _oracle_round(self, round: Round) -> OracleRound:
        rounds = self.run.world.record("Run", self.run.run_id)["rounds"][0]
        made_step = bool(rounds[self.run.run.ring(round.height)]["made_step"])
        entry = OracleRound(
            round.height, round.step, round.began, round.roster, round.elected, seed=round.seed
        )
        entry.established = round.established is not EstablishedOnly.NOTHING
        entry.votes = self.votes.get(round.height, [])
        entry.attested = round.attested
        entry.counts = made_step
        return entry
