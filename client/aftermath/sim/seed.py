"""One seed, from its scenario to a verdict: a storm of faults, peace, and the laws.

A run that survives is compared with the undisturbed one of the same members and rules.
"""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aftermath.base.errors import AftermathError
from aftermath.base.wait import first_of
from aftermath.rules.state import RunState
from aftermath.sim.aim import Aim
from aftermath.sim.clock import run_virtual
from aftermath.sim.digest import Chronicle
from aftermath.sim.laws import Laws, check_pace
from aftermath.sim.player import Said
from aftermath.sim.record import Broken
from aftermath.sim.scenario import WINDOW, Scenario, draw
from aftermath.sim.simulation import Simulation
from aftermath.sim.tiny import CONFIG

_LOOK = 1.0  # virtual seconds between two looks at what must always hold
_BACK = 5.0  # virtual seconds after which a member whose chain was out of reach is started again


@dataclass(frozen=True)
class Verdict:
    """What became of a seed; `broken` is the law that does not hold, or empty."""

    seed: int
    scenario: str
    digest: str
    virtual: float
    """Virtual seconds played, the undisturbed run included."""
    cpu: float
    steps: int
    faults: tuple[str, ...]
    events: tuple[Said, ...]
    """What every member told, with its name as `member`."""
    broken: str


def try_seed(seed: int, seconds: float, overlap: int | None = None) -> Verdict:
    """Play a seed in a temporary directory, with this `overlap` if one is given."""
    started, scenario = time.process_time(), draw(seed, seconds, overlap)
    with _no_warnings(), tempfile.TemporaryDirectory(prefix="aftermath-sim-") as place:
        trial = Trial(scenario)
        run_virtual(trial.play(Path(place) / "storm"))
        if trial.late is not None:  # else it was finished, or broken
            pace, peaceful = run_virtual(_pace(scenario, Path(place) / "peace"))
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
def _no_warnings() -> Iterator[None]:
    """Members warn of every fault, and here faults are many."""
    log = logging.getLogger("aftermath")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _stage(scenario: Scenario, place: Path) -> Simulation:
    optimizer = {"SparseLoCo": dict(scenario.sparseloco)} if scenario.sparseloco else None
    sim = Simulation(
        place, quantize=scenario.quantize, optimizer=optimizer, config=CONFIG, stored=True, **dict(scenario.rules)
    )
    sim.keeps = scenario.keeps
    for seat in scenario.seats:
        sim.add(seat.tier, seat.seconds, seat.nodes)
    return sim


async def _pace(scenario: Scenario, place: Path) -> tuple[float, float]:
    """Steps per second of the undisturbed run from its first round on, and the virtual seconds this took."""
    sim = _stage(scenario, place)
    await sim.until(lambda run: run.state.training)
    start, before = sim.now, sim.run.step
    while sim.now < start + WINDOW and sim.run.state is not RunState.FINISHED:
        await asyncio.sleep(_LOOK)
        sim.look_after()
    found = (sim.run.step - before) / (sim.now - start), sim.now
    await sim.close()
    return found


class Trial:
    """One disturbed run."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.broken = self.digest = ""
        self.virtual, self.steps = 0.0, 0
        self.late: float | None = None
        """Steps per second in peace, after the storm."""
        self.faults: list[str] = []
        self.events: list[Said] = []

    def judge(self, pace: float, seconds: float) -> None:
        """Compare with the undisturbed run: `pace` steps per second and `seconds` of virtual
        time.
        """
        self.virtual += seconds
        assert self.late is not None
        try:
            check_pace(self.late, pace)
        except Broken as broken:
            self.broken = str(broken)

    async def play(self, place: Path) -> None:
        sim = _stage(self._scenario, place)
        chronicle = Chronicle(sim)
        aim = Aim(sim, random.Random(f"faults {self._scenario.seed}"), self._scenario.eager)
        laws = Laws(sim, aim.faults)
        try:
            await self._phases(sim, aim, laws)
        except (Broken, AftermathError) as broken:
            self.broken = f"at {sim.now:.1f} s: {broken}"
        self.virtual, self.steps = sim.now, sim.run.step
        self.faults = [window.describe() for window in aim.faults.windows]
        self.events = [{"member": player.name, **event} for player in sim.players for event in player.events]
        self.digest = chronicle.sum_up()
        await sim.close()

    async def _phases(self, sim: Simulation, aim: Aim, laws: Laws) -> None:
        await first_of(self._watch(sim, laws), self._course(sim, aim, laws))
        sim.check(dropped=sim.players)  # who was dropped without a reason was judged at the time
        laws.check_now()

    async def _course(self, sim: Simulation, aim: Aim, laws: Laws) -> None:
        await aim.storm(self._scenario.seconds)
        await asyncio.sleep(self._scenario.patience)
        start, before = sim.now, sim.run.step
        await asyncio.sleep(WINDOW)
        if sim.run.state is RunState.FINISHED:
            return
        laws.check_presence(start)
        late = (sim.run.step - before) / (sim.now - start)
        sim.pause(True)
        await sim.until(lambda run: run.state is RunState.PAUSED, self._scenario.patience)
        await asyncio.sleep(self._scenario.rule("max_round_train_time") + 30)  # for members that finish an epoch late
        self.late = late

    async def _watch(self, sim: Simulation, laws: Laws) -> None:
        """Judge all the time, and start members again whose chain was out of reach."""
        gone: dict[str, float] = {}
        while True:
            await asyncio.sleep(_LOOK)
            laws.check_now()
            for player in sim.players:
                if player.alive or player.task is None or player.task.cancelled():
                    gone.pop(player.name, None)
                elif player.task.exception() is not None and sim.now > gone.setdefault(player.name, sim.now) + _BACK:
                    sim.start(player)
