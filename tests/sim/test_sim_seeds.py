"""Runs from seeds: invariants hold, a seed gives the same run anywhere, and a broken invariant is
reported.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.rules.audits import can_be_drawn
from aftermath.rules.state import EstablishedOnly, RunState
from aftermath.sim import __main__ as command
from aftermath.sim import invariants
from aftermath.sim import seed as trial
from aftermath.sim.audit_seed import draw_audits, try_audits
from aftermath.sim.chain_invariants import InvariantBroken
from aftermath.sim.coalition import is_minority
from aftermath.sim.faults import Faults
from aftermath.sim.invariants import Invariants, check_pace
from aftermath.sim.seed import draw, try_seed
from aftermath.sim.setup import CONFIG
from aftermath.sim.simulation import SimulatedRun, play
from rules.builders import config, header, members, run, seat

SHORT = 60.0
EJECTED = 4
"""A seed whose attackers are ejected."""


@pytest.mark.nightly  # the slow tests run a shorter seed
@pytest.mark.parametrize("seed", range(100, 106))
def test_invariants_hold_for_campaign_seeds(seed: int) -> None:
    """To run more seeds: `python -m aftermath.sim --seeds 100..199 --jobs 2`."""
    verdict = try_seed(seed, command.SECONDS)
    assert not verdict.broken, verdict


@pytest.mark.slow
def test_seed_keeps_invariants_and_digest_across_processes() -> None:
    verdict = try_seed(1, SHORT)
    assert not verdict.broken, verdict
    assert verdict.faults
    assert verdict.steps > 0
    again = subprocess.run(
        [sys.executable, "-m", "aftermath.sim", "--seed", "1", "--seconds", f"{SHORT}"],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    assert again.stdout.split()[:4] == ["seed", "1", "ok", verdict.digest]


def test_different_seeds_draw_different_runs() -> None:
    assert draw(1, SHORT) == draw(1, SHORT)
    assert len({draw(seed, SHORT).describe() for seed in range(200)}) == 200


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, 100, 25))
def test_minority_breaks_no_audited_run_in_campaign(first: int) -> None:
    """To play more runs: `python -m aftermath.sim --audits --seeds 100..199 --jobs 2`."""
    verdicts = [try_audits(seed) for seed in range(first, first + 25)]
    assert not [verdict for verdict in verdicts if verdict.broken]
    assert any("has ejected" in fault for verdict in verdicts for fault in verdict.faults)


@pytest.mark.slow
def test_minority_that_attacks_audits_is_ejected() -> None:
    verdict = try_audits(EJECTED)
    assert not verdict.broken, verdict
    assert any("has ejected" in fault for fault in verdict.faults), verdict


def test_attackers_of_audited_runs_are_minority() -> None:
    assert len({draw_audits(seed).describe() for seed in range(100)}) == 100
    for seed in range(100):
        scenario = draw_audits(seed)
        chosen = {number for number, _, _ in scenario.coalition}
        assert chosen
        assert is_minority(chosen, dict(enumerate(scenario.tiers)))
        assert scenario.restarts not in chosen


def test_every_result_of_audited_runs_can_be_drawn() -> None:
    for number in range(100):
        scenario = draw_audits(number)
        everyone = (1 << len(scenario.tiers)) - 1
        table = {index: seat(index, tier=tier) for index, tier in enumerate(scenario.tiers)}
        established = members(table, judges=everyone, established=everyone)
        rounds = (header(everyone, established=EstablishedOnly.WITNESS),)
        audited = run(RunState.ROUND_TRAIN, config=config(**dict(scenario.rules)), rounds=rounds)
        for target in table:
            assert can_be_drawn(audited, established, target), scenario.describe()


@pytest.fixture
def seed_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[pytest.CaptureFixture[str]]:
    monkeypatch.setattr(sys, "argv", ["aftermath.sim", "--seeds", "2..2", "--seconds", "10"])
    return capsys


@pytest.mark.slow
def test_seed_breaking_invariant_is_reported_with_replay(
    seed_output: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invariants, "PACE", 1000.0)
    monkeypatch.setattr(trial, "WINDOW", 20.0)
    assert command.main() == 1
    out = seed_output.readouterr().out
    assert "seed 2      BROKEN" in out
    assert "steps per hour, where the undisturbed run makes" in out
    assert "replay: python -m aftermath.sim --seed 2 --seconds 10" in out
    assert "broken: 2" in out.splitlines()[-1]


@pytest.mark.parametrize("text", ["7", "9..7", "a..b", "1.."])
def test_seed_range_is_validated(
    seed_output: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["aftermath.sim", "--seeds", text])
    with pytest.raises(SystemExit):
        command.main()
    assert "is not A..B, for example 0..99" in seed_output.readouterr().err


def test_unloadable_checkpoint_breaks_invariants(tmp_path: Path) -> None:
    async def story(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until(lambda run: sim.model.checkpoint_step > 0)
        judge = Invariants(sim, _no_faults(sim))
        judge.check_now()
        place = Path(sim.model.checkpoint.repo)
        other = {name: tensor + 1 for name, tensor in invariants.load(place, 0, "auto").items()}
        write_checkpoint(tmp_path / "other", other, CONFIG, tier=0, companions={})
        shutil.rmtree(place)
        (tmp_path / "other").rename(place)
        with pytest.raises(InvariantBroken, match="has another level"):
            judge.check_now()
        (place / "model.safetensors").unlink()
        with pytest.raises(InvariantBroken, match="cannot be loaded"):
            judge.check_now()

    play(tmp_path, story, rounds_per_epoch=2)


def test_idle_member_and_slow_run_break_invariant(tmp_path: Path) -> None:
    async def story(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(3)
        judge = Invariants(sim, _no_faults(sim))
        judge.check_presence(0.0)
        await sim.kill(sim_members[1])
        start = sim.now
        await sim.until(lambda run: run.epoch == 1)
        with pytest.raises(InvariantBroken, match="m1 has not taken part"):
            judge.check_presence(start)

    play(tmp_path, story)
    check_pace(0.6, 1.0)
    with pytest.raises(
        InvariantBroken, match="1440 steps per hour, where the undisturbed run makes 3600"
    ):
        check_pace(0.4, 1.0)


def test_drop_without_fault_breaks_invariant(tmp_path: Path) -> None:
    async def story(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        judge = Invariants(sim, _no_faults(sim))
        await sim.until_round(2)
        await sim.kill(sim_members[2])
        await sim.until(lambda run: bool(sim.record.dropped))
        with pytest.raises(InvariantBroken, match="m2 was dropped from epoch 0 without a reason"):
            judge.check_now()

    play(tmp_path, story)


def _no_faults(sim: SimulatedRun) -> Faults:
    async def never(count: int | None) -> None:
        raise AssertionError

    return Faults(sim, random.Random(0), never)
