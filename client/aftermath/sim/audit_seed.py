"""Simulate one seed of a run with audits that a minority of its members attacks.

All members join the first epoch, so all are established in the second one. From then on, those of
the coalition cheat, accuse, vote falsely, stay silent or leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftermath.base.concurrency import cancel
from aftermath.base.errors import AftermathError
from aftermath.chain.instructions import CoordinatorInstructions
from aftermath.coordinator.errors import Refused
from aftermath.replica.replica import Replica
from aftermath.rules.audits import MIN_JURY
from aftermath.rules.state import MemberState, RunState
from aftermath.sim.chain_invariants import InvariantBroken
from aftermath.sim.coalition import Coalition, Habits, Statement, draw_minority
from aftermath.sim.false_training import corrupt, skip_half, train_other_data, train_other_weights
from aftermath.sim.seed import RunDigest, Verdict, draw_sparseloco, no_warnings
from aftermath.sim.setup import CONFIG, RUN_ID
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun
from aftermath.sim.virtual_time import run_virtual

_TIER_0_MEMBERS = MIN_JURY + 1
"""So that a result of tier 0 has a jury: `MIN_JURY` members without its own."""
_CHEATS = {cheat.__name__: cheat for cheat in (skip_half, train_other_data, train_other_weights)}
# Virtual seconds.
_POLL_S = 0.5  # between two looks of the coalition at the run
_AWAY_S = 30.0  # for which a member that left stays away
_LIMIT_S = 3000.0  # in which every run ends


@dataclass(frozen=True)
class AuditScenario:
    """One run's members and rules, and its coalition."""

    seed: int
    tiers: tuple[int, ...]
    rules: tuple[tuple[str, int], ...]
    sparseloco: tuple[tuple[str, str | float], ...]
    """Settings of SparseLoCo. If empty, the run uses DisTrO."""
    coalition: tuple[tuple[int, Habits, str], ...]
    """Number, habits and way of cheating of each of its members."""
    restarts: int | None
    """Number of an honest member that is killed and started again."""

    def describe(self) -> str:
        rules = " ".join(f"{name}={value}" for name, value in self.rules)
        learns = " ".join(f"{name}={value}" for name, value in self.sparseloco) or "DisTrO"
        members = "; ".join(
            f"m{number} {habits.describe()} ({cheat})" for number, habits, cheat in self.coalition
        )
        restarts = "" if self.restarts is None else f" | m{self.restarts} restarts"
        tiers = " ".join(map(str, self.tiers))
        return f"tiers {tiers} | {rules} | {learns} | {members}{restarts}"


def draw_audits(seed: int) -> AuditScenario:
    """Return the scenario of a seed."""
    rng = random.Random(f"audited run {seed}")
    count = rng.choice((6, 6, 7, 8))
    others = [rng.choice((0, 0, 1, 2)) for _ in range(count - _TIER_0_MEMBERS)]
    tiers = (0,) * _TIER_0_MEMBERS + tuple(others)
    rounds = rng.randint(4, 6)
    batch = rng.randint(2 * count, 5 * count)
    rules = {
        "verification_percent": rng.choice((50, 100, 100)),
        "overlap": rng.randint(0, 1),
        "min_clients": 2,
        "init_min_clients": 4,
        "waiting_for_members_extra_time": 20,
        "rounds_per_epoch": rounds,
        "min_round_time": rng.choice((5, 8)),
        "max_round_train_time": 30,
        "global_batch_size_start": batch,
        "global_batch_size_end": batch,
        "total_steps": 2 * rounds,
    }
    chosen = draw_minority(rng, dict(enumerate(tiers)))
    honest = [number for number in range(count) if number not in chosen]
    return AuditScenario(
        seed=seed,
        tiers=tiers,
        rules=tuple(sorted(rules.items())),
        sparseloco=draw_sparseloco(random.Random(f"learning {seed}")),
        coalition=tuple(
            (number, Habits.draw(rng), rng.choice(sorted(_CHEATS))) for number in sorted(chosen)
        ),
        restarts=rng.choice(honest) if rng.random() < 0.3 else None,
    )


def try_audits(seed: int) -> Verdict:
    """Simulate a seed in a temporary directory."""
    started = time.process_time()
    scenario = draw_audits(seed)
    with no_warnings(), tempfile.TemporaryDirectory(prefix="aftermath-sim-") as directory:
        trial = AuditTrial(scenario, Path(directory) / "run")
        run_virtual(trial.play())
    return Verdict(
        seed=seed,
        scenario=scenario.describe(),
        digest=trial.digest,
        virtual=trial.virtual,
        cpu=time.process_time() - started,
        steps=trial.steps,
        faults=tuple(trial.actions),
        events=tuple(trial.events),
        broken=trial.broken,
    )


@dataclass(frozen=True)
class CoalitionMember:
    """A member of the coalition, how it behaves, and its way of cheating."""

    sim_member: SimMember
    habits: Habits
    cheat: str


class AuditTrial:
    """One run that a coalition attacks."""

    def __init__(self, scenario: AuditScenario, directory: Path) -> None:
        self._scenario = scenario
        self._directory = directory
        self._rng = random.Random(f"coalition {scenario.seed}")
        self._false: set[tuple[int, int]] = set()
        """(height, seat) of results that were trained falsely."""
        self._corrupted: list[Replica] = []
        self.actions: list[str] = []
        """What the coalition did, and what the test did to honest members."""
        self.broken = self.digest = ""
        self.virtual = 0.0
        self.steps = 0
        self.events: list[dict[str, Any]] = []

    async def play(self) -> None:
        """Simulate the run, and record its outcome."""
        scenario = self._scenario
        sim = SimulatedRun(
            self._directory,
            quantize=True,
            optimizer={"SparseLoCo": dict(scenario.sparseloco)} if scenario.sparseloco else None,
            config=CONFIG,
            stored=True,
            **dict(scenario.rules),
        )
        sim.stores_optimizer_state = True
        digest = RunDigest(sim)
        for tier in scenario.tiers:
            sim.add(tier)
        try:
            await self._course(sim)
        except (InvariantBroken, AftermathError) as broken:
            self.broken = f"at {sim.now:.1f} s: {broken}"
        self.virtual = sim.now
        self.steps = sim.run.step
        self.events = [
            {"member": sim_member.name, **event}
            for sim_member in sim.sim_members
            for event in sim_member.events
        ]
        self.digest = digest.sum_up()
        await sim.close()

    async def _course(self, sim: SimulatedRun) -> None:
        """Let the coalition act from the second epoch on. Then check the invariants."""
        await sim.until(lambda run: run.epoch == 1 and run.state.training)
        attackers = self._attackers(sim)
        number = self._scenario.restarts
        restarted = None if number is None else sim.sim_members[number]
        tasks = [asyncio.ensure_future(self._attack(sim, attackers))]
        if restarted is not None:
            tasks.append(asyncio.ensure_future(self._restart(sim, restarted)))
        try:
            await sim.until(lambda run: run.state is RunState.FINISHED, _LIMIT_S)
        finally:
            await cancel(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
        for epoch, seat in sim.record.ejected:
            self._note(sim, f"by now epoch {epoch} has ejected seat {seat}")
            if seat not in attackers:
                raise InvariantBroken(f"the honest seat {seat} was ejected in epoch {epoch}")
        hostile = [attacker.sim_member for attacker in attackers.values()]
        sim.check(hostile=hostile, dropped=[] if restarted is None else [restarted])

    async def _restart(self, sim: SimulatedRun, sim_member: SimMember) -> None:
        """Kill an honest member at a random time of the second epoch, and start it again."""
        await asyncio.sleep(self._rng.uniform(0, 60))
        self._note(sim, f"{sim_member.name} is killed")
        await sim.kill(sim_member)
        await asyncio.sleep(self._rng.uniform(0, 20))
        sim.start(sim_member)

    # --- the coalition

    def _attackers(self, sim: SimulatedRun) -> dict[int, CoalitionMember]:
        """Return the members of the coalition by their seats."""
        attackers = {}
        for number, habits, cheat in self._scenario.coalition:
            sim_member = sim.sim_members[number]
            seat = sim.members.find(sim_member.wallet)
            assert seat is not None
            attackers[seat] = CoalitionMember(sim_member, habits, cheat)
        return dict(sorted(attackers.items()))

    async def _attack(self, sim: SimulatedRun, attackers: dict[int, CoalitionMember]) -> None:
        """Act as the coalition until cancelled."""
        coalition = Coalition(
            self._rng,
            {seat: attacker.habits for seat, attacker in attackers.items()},
            lambda height, seat: (height, seat) in self._false,
        )
        returns: list[tuple[float, SimMember]] = []
        asked = sim.run.round_id
        while True:
            for seat, attacker in attackers.items():
                self._take_over(sim, seat, attacker)
            if sim.run.active:
                for statement in coalition.statements(sim.run, sim.members, sim.cases):
                    self._send(sim, attackers[statement.seat].sim_member, statement)
                is_new = sim.run.round_id != asked
                asked = sim.run.round_id
                for seat in coalition.leavers(sim.members) if is_new else ():
                    leaver = attackers[seat].sim_member
                    if leaver.alive:
                        self._note(sim, f"{leaver.name} leaves")
                        await sim.stop(leaver)
                        returns.append((sim.now + _AWAY_S, leaver))
            while returns and sim.now >= returns[0][0]:
                sim.start(returns.pop(0)[1])
            for seat, attacker in attackers.items():
                is_ejected = sim.members.seats[seat].state is MemberState.EJECTED
                if is_ejected and attacker.sim_member.alive:
                    await sim.kill(attacker.sim_member)
            await asyncio.sleep(_POLL_S)

    def _take_over(self, sim: SimulatedRun, seat: int, attacker: CoalitionMember) -> None:
        """Silence the verdicts of a member's own client, and falsify its training."""

        async def nothing(*_: object, **__: object) -> None:
            """Send nothing, because the coalition speaks for its members."""

        sim_member = attacker.sim_member
        if sim_member.chain is not None:
            sim_member.chain.verify = nothing  # type: ignore[method-assign]
        replica = sim_member.member._replica if sim_member.member is not None else None
        if replica is None or any(replica is known for known in self._corrupted):
            return
        self._corrupted.append(replica)

        def wanted() -> bool:
            cheats = self._rng.random() < attacker.habits.cheats
            if cheats:
                self._false.add((sim.run.current.height, seat))
            return cheats

        corrupt(replica, _CHEATS[attacker.cheat], wanted)

    def _send(self, sim: SimulatedRun, sender: SimMember, statement: Statement) -> None:
        """Send a verdict at once. The program may refuse it."""
        instructions = CoordinatorInstructions(sim.chain.coordinator, sender.key.pubkey())
        verify = instructions.verify(
            RUN_ID,
            statement.seat,
            statement.at,
            target=statement.target,
            mismatch=statement.mismatch,
        )
        with contextlib.suppress(Refused):
            sim.chain.send([verify], sender.key)
            opinion = "mismatch" if statement.mismatch else "match"
            about = f"round {statement.at.height} of seat {statement.target}"
            self._note(sim, f"{sender.name} states a {opinion} in {about}")

    def _note(self, sim: SimulatedRun, action: str) -> None:
        self.actions.append(f"{sim.now:7.1f} s  {action}")
