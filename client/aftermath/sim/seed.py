"""Simulate one seed: draw its scenario, cause faults, let the run recover, and check the
invariants.

The scenario depends only on the seed. The settings are small, so an hour of a real run takes
minutes. The run's pace is compared with an undisturbed run of the same members.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from aftermath.base.concurrency import first_of
from aftermath.base.errors import AftermathError
from aftermath.rules.optimizer import InnerOptimizerName
from aftermath.rules.sparseloco import DivisorName
from aftermath.rules.state import RunState
from aftermath.sim.chain_invariants import InvariantBroken
from aftermath.sim.fault_scheduler import FaultScheduler
from aftermath.sim.invariants import Invariants, check_pace
from aftermath.sim.setup import CONFIG
from aftermath.sim.sim_member import EventDict
from aftermath.sim.simulation import SimulatedRun
from aftermath.sim.virtual_time import run_virtual

WINDOW = 100.0
"""Virtual seconds over which a run's pace is measured."""
_EDGE = 7  # edge of a block, as in the tiny run
_BLOCK = _EDGE * _EDGE
_GRACE = 45.0  # seconds for retries without a setting: members request lost results with backoff


@dataclass(frozen=True)
class MemberScenario:
    """One member: tier, virtual seconds per piece of work, and number of RPC nodes."""

    tier: int
    seconds: float
    nodes: int


@dataclass(frozen=True)
class Scenario:
    """One run's members, rules and faults."""

    seed: int
    seconds: float
    """Virtual seconds during which faults are caused."""
    seats: tuple[MemberScenario, ...]
    rules: tuple[tuple[str, int], ...]
    quantize: bool
    sparseloco: tuple[tuple[str, str | float], ...]
    """Settings of SparseLoCo. If empty, the run uses DisTrO."""
    keeps: bool
    """Whether the members of tier 0 keep checkpoints in a directory."""
    eager: float
    """Probability of a fault at a state change."""

    @property
    def patience(self) -> float:
        """Virtual seconds without faults after which the run has recovered its pace."""
        return (
            self.rule("warmup_time")
            + self.rule("cooldown_time")
            + 2 * self.rule("max_round_train_time")
            + _GRACE
        )

    def rule(self, name: str) -> int:
        return dict(self.rules)[name]

    def describe(self) -> str:
        seats = " ".join(
            f"{seat.tier}@{seat.seconds}s" + "+1" * (seat.nodes - 1) for seat in self.seats
        )
        rules = " ".join(f"{name}={value}" for name, value in self.rules)
        learns = " ".join(f"{name}={value}" for name, value in self.sparseloco)
        if not learns:
            learns = "1-bit" if self.quantize else "float"
        kinds = f"{learns} {'keeps' if self.keeps else 'keeps nothing'}"
        return f"members {seats} | {rules} | {kinds} | {self.seconds:.0f} s of faults, then peace"


def draw(seed: int, seconds: float, overlap: int | None = None) -> Scenario:
    """Return the scenario of a seed, with this `overlap` if given."""
    rng = random.Random(f"scenario {seed}")
    if overlap is None:
        # not drawn from `rng`, so that older seeds keep their scenarios
        overlap = random.Random(f"overlap {seed}").randint(0, 1)
    count = rng.randint(3, 6)
    scarce = rng.random() < 0.5  # one holder of tier 0 only
    tiers = [0] + [rng.randint(1 if scarce else 0, 2) for _ in range(count - 1)]
    seats = tuple(
        MemberScenario(tier, rng.choice((0.3, 0.6, 1.0, 1.5)), rng.choice((1, 1, 2)))
        for tier in tiers
    )
    least = rng.randint(1, count - 1)
    batch = rng.randint(count, 4 * count)
    ends = rng.random() < 0.1
    warmup = rng.choice((15, 30, 60))
    cooldown = rng.choice((8, 15, 25))
    rounds = rng.randint(2, 7)
    rules = {
        "warmup_time": warmup,
        "cooldown_time": cooldown,
        "rounds_per_epoch": rounds,
        # the latest that a result may arrive with overlap
        "max_round_train_time": rng.choice((8, 12, 15)) * (2 - overlap),
        "round_witness_time": rng.randint(1, 2),
        "min_clients": least,
        "init_min_clients": rng.randint(least, count),
        "witness_nodes": min(rng.choice((0, 0, 1, 2, 3)), least),
        "overlap": overlap,
        "waiting_for_members_extra_time": rng.randint(1, 3),
        "global_batch_size_start": batch,
        "global_batch_size_end": batch,
        "cold_start_warmup_steps": min(rng.choice((0, 0, 3)), rounds),
        "total_steps": rng.randint(15, 40) if ends else 1_000_000,
    }
    return Scenario(
        seed=seed,
        seconds=seconds,
        seats=seats,
        rules=tuple(sorted(rules.items())),
        quantize=rng.random() < 0.7,
        sparseloco=draw_sparseloco(random.Random(f"learning {seed}")),  # also not drawn from `rng`
        keeps=rng.random() < 0.85,
        eager=rng.choice((0.2, 0.4, 0.7)),
    )


def draw_sparseloco(rng: random.Random) -> tuple[tuple[str, str | float], ...]:
    """Return random settings of SparseLoCo, or none for DisTrO."""
    if rng.random() >= 0.5:
        return ()
    topk = rng.choice((4, _BLOCK))
    return (
        ("inner_steps", rng.choice((1, 2, 4))),
        ("inner_optimizer", rng.choice(get_args(InnerOptimizerName))),
        ("value_bits", rng.choice((1, 2))),
        ("divisor", rng.choice(get_args(DivisorName))),
        ("orthogonal_lr", rng.choice((0.0, 10.0))),
        ("compression_chunk", _EDGE),
        ("compression_topk", topk),
        ("compression_topk_embeddings", topk),
    )


_POLL_S = 1.0  # virtual seconds between two checks of the invariants
_BACK = 5.0  # virtual seconds after which a member whose chain was unreachable is restarted


@dataclass(frozen=True)
class Verdict:
    """The outcome of a seed. `broken` is the broken invariant, or empty."""

    seed: int
    scenario: str
    digest: str
    virtual: float
    """Virtual seconds played, the undisturbed run included."""
    cpu: float
    steps: int
    faults: tuple[str, ...]
    events: tuple[EventDict, ...]
    """The events of every member, with its name as `member`."""
    broken: str


def try_seed(seed: int, seconds: float, overlap: int | None = None) -> Verdict:
    """Simulate a seed in a temporary directory, with this `overlap` if it is given."""
    started = time.process_time()
    scenario = draw(seed, seconds, overlap)
    with no_warnings(), tempfile.TemporaryDirectory(prefix="aftermath-sim-") as directory:
        trial = SeedTrial(scenario)
        run_virtual(trial.play(Path(directory) / "storm"))
        if trial.late is not None:  # otherwise it had finished, or broken an invariant
            pace, peaceful = run_virtual(_pace(scenario, Path(directory) / "peace"))
            trial.judge(pace, peaceful)
    return Verdict(
        seed=seed,
        scenario=scenario.describe(),
        digest=trial.digest,
        virtual=trial.virtual,
        cpu=time.process_time() - started,
        steps=trial.steps,
        faults=tuple(trial.faults),
        events=tuple(trial.events),
        broken=trial.broken,
    )


@contextmanager
def no_warnings() -> Iterator[None]:
    """Silence the members' warnings, because faults are frequent here."""
    log = logging.getLogger("aftermath")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _stage(scenario: Scenario, directory: Path) -> SimulatedRun:
    """Create the run and the members of a scenario."""
    optimizer = {"SparseLoCo": dict(scenario.sparseloco)} if scenario.sparseloco else None
    sim = SimulatedRun(
        directory,
        quantize=scenario.quantize,
        optimizer=optimizer,
        config=CONFIG,
        stored=True,
        **dict(scenario.rules),
    )
    sim.saves_checkpoints = scenario.keeps
    for seat in scenario.seats:
        sim.add(seat.tier, seat.seconds, seat.nodes)
    return sim


async def _pace(scenario: Scenario, directory: Path) -> tuple[float, float]:
    """Return the undisturbed run's steps per second, and the virtual seconds it took."""
    sim = _stage(scenario, directory)
    await sim.until(lambda run: run.state.training)
    start = sim.now
    step_before = sim.run.step
    while sim.now < start + WINDOW and sim.run.state is not RunState.FINISHED:
        await asyncio.sleep(_POLL_S)
        sim.look_after()
    pace = (sim.run.step - step_before) / (sim.now - start), sim.now
    await sim.close()
    return pace


class SeedTrial:
    """One disturbed run."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.broken = self.digest = ""
        self.virtual = 0.0
        self.steps = 0
        self.late: float | None = None
        """Steps per second after the faults ended."""
        self.faults: list[str] = []
        self.events: list[EventDict] = []

    def judge(self, pace: float, seconds: float) -> None:
        """Compare with the undisturbed run: `pace` steps per second and `seconds` of virtual
        time.
        """
        self.virtual += seconds
        assert self.late is not None
        try:
            check_pace(self.late, pace)
        except InvariantBroken as broken:
            self.broken = str(broken)

    async def play(self, directory: Path) -> None:
        """Simulate the scenario with faults, and record its outcome."""
        sim = _stage(self._scenario, directory)
        digest = RunDigest(sim)
        scheduler = FaultScheduler(
            sim, random.Random(f"faults {self._scenario.seed}"), self._scenario.eager
        )
        invariants = Invariants(sim, scheduler.faults)
        try:
            await self._phases(sim, scheduler, invariants)
        except (InvariantBroken, AftermathError) as broken:
            self.broken = f"at {sim.now:.1f} s: {broken}"
        self.virtual = sim.now
        self.steps = sim.run.step
        self.faults = [window.describe() for window in scheduler.faults.windows]
        self.events = [
            {"member": sim_member.name, **event}
            for sim_member in sim.sim_members
            for event in sim_member.events
        ]
        self.digest = digest.sum_up()
        await sim.close()

    async def _phases(
        self, sim: SimulatedRun, scheduler: FaultScheduler, invariants: Invariants
    ) -> None:
        """Run the scenario while invariants are checked, then check the end."""
        await first_of(self._watch(sim, invariants), self._course(sim, scheduler, invariants))
        sim.check(dropped=sim.sim_members)  # drops without a reason were detected at the time
        invariants.check_now()

    async def _course(
        self, sim: SimulatedRun, scheduler: FaultScheduler, invariants: Invariants
    ) -> None:
        """Cause faults, wait for recovery, measure the pace, and pause the run."""
        await scheduler.storm(self._scenario.seconds)
        await asyncio.sleep(self._scenario.patience)
        start = sim.now
        step_before = sim.run.step
        await asyncio.sleep(WINDOW)
        if sim.run.state is RunState.FINISHED:
            return
        invariants.check_presence(start)
        late = (sim.run.step - step_before) / (sim.now - start)
        sim.pause(True)
        await sim.until(lambda run: run.state is RunState.PAUSED, self._scenario.patience)
        # for members that finish an epoch late
        await asyncio.sleep(self._scenario.rule("max_round_train_time") + 30)
        self.late = late

    async def _watch(self, sim: SimulatedRun, invariants: Invariants) -> None:
        """Check the invariants continuously, and restart members whose chain was unreachable."""
        gone_since: dict[str, float] = {}
        while True:
            await asyncio.sleep(_POLL_S)
            invariants.check_now()
            for sim_member in sim.sim_members:
                if sim_member.alive or sim_member.task is None or sim_member.task.cancelled():
                    gone_since.pop(sim_member.name, None)
                elif (
                    sim_member.task.exception() is not None
                    and sim.now > gone_since.setdefault(sim_member.name, sim.now) + _BACK
                ):
                    sim.start(sim_member)


class RunDigest:
    """SHA-256 over all members' events and all transactions, as canonical JSON.

    Paths are relative to the simulation's directory, so that a seed gives the same digest anywhere.
    """

    def __init__(self, sim: SimulatedRun) -> None:
        self._sim = sim
        self._digest = hashlib.sha256()
        sim.chain.observers.append(self._note)

    def _note(self) -> None:
        run = self._sim.run
        self._take(
            [
                self._sim.now,
                self._sim.chain.last_signer.hex(),
                run.seq,
                run.state,
                run.epoch,
                run.step,
            ]
        )

    def _take(self, what: Any) -> None:
        text = json.dumps(what, sort_keys=True, separators=(",", ":"), default=_plain)
        self._digest.update(text.replace(str(self._sim.place), "").encode() + b"\n")

    def sum_up(self) -> str:
        """Return the digest. Nothing may be added afterwards."""
        sim = self._sim
        for sim_member in sim.sim_members:
            for event in sim_member.events:
                self._take([sim_member.name, event])
        self._take(
            [
                sorted(sim.record.settled.items()),
                sorted(sim.record.steps.items()),
                sim.record.dropped,
            ]
        )
        self._take(
            [
                list(sim.run.level_hashes),
                sim.run.step,
                sim.run.data_index,
                sim.model.checkpoint_step,
            ]
        )
        return self._digest.hexdigest()


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else repr(value)
