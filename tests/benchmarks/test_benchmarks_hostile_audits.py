"""Test that audits find each way to cheat, match honest work, and decide runs in the program."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from aftermath.audit.comparison import FP32_BOUNDS, AuditVerdict
from benchmarks.test_benchmarks_worth import module

members = module("audited_members")
measure = module("measure")
module("plain_loop")
module("step")
work = module("hostile_work")
trials = module("audit_trials")
module("hostile_cost")
hostile_audits = module("hostile_audits")
SEEDS = (0, 5)
"""SparseLoCo with AdamW without overlap, and DisTrO with overlap."""


@pytest.fixture(scope="module")
def trained() -> dict[int, Any]:
    """Return the members of a run by seed."""
    return {seed: work.members_of(seed) for seed in SEEDS}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("attack", work.ALWAYS_FOUND)
def test_each_auditor_finds_attack(trained: dict[int, Any], seed: int, attack: str) -> None:
    submission = work.ATTACKS[attack](trained[seed])
    finding = work.judge(submission, work.WAYS[seed % 2], b"secret")
    assert finding.verdict is AuditVerdict.MISMATCH, finding.reason
    assert finding.distance is None or finding.distance > 10 * FP32_BOUNDS.residual


@pytest.mark.parametrize("seed", SEEDS)
def test_honest_share_matches_in_all_ways(trained: dict[int, Any], seed: int) -> None:
    for one in trained[seed]:
        for finding in work.findings(work.honest(one), seed):
            assert finding.verdict is AuditVerdict.MATCH, finding.reason
            assert finding.distance is not None
            assert finding.distance < FP32_BOUNDS.residual / 5


def test_members_abstain_from_claimed_bf16_of_gpu(trained: dict[int, Any]) -> None:
    submission = work.ATTACKS["skips 15 steps, claims bf16 on a GPU"](trained[0])
    finding = work.judge(submission, work.WAYS[0], b"secret")
    assert finding.verdict is None
    assert finding.fetched_bytes == 0


def test_kept_figures_name_the_command_that_measured_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hostile.json"
    file.write_text('{"figures": {"rows": [], "audits": [1]}}')
    script = str(measure.ROOT / "benchmarks" / "hostile_audits.py")
    monkeypatch.setattr(measure, "MEASURED", tmp_path)
    monkeypatch.setattr(sys, "argv", [script, "--seeds", "3", "--keep"])
    measure.keep_hostile_audits(0.5, {"audits": [2]})
    figures = json.loads(file.read_text())["figures"]
    assert figures["audits"] == [2]
    assert figures["rows"] == []
    command = figures["audits_measured"]["command"]
    assert command == "python benchmarks/hostile_audits.py --seeds 3 --keep"


def test_cheat_is_convicted_after_its_first_audit() -> None:
    trial = trials.play(3, 100, 0, lambda judging, target: target == 0 != judging)
    assert trial.ejected == {0}
    assert trial.audits == 1
    # Round 0 is recorded in round 1 and drawn in round 2. Then members take a round each to accuse
    # and to vote.
    assert trial.rounds is not None
    assert trial.rounds >= 4


def test_accuser_of_honest_members_is_convicted() -> None:
    trial = trials.play(4, 100, 0, lambda judging, target: judging == 0)
    assert trial.ejected == {0}


def test_three_accusers_of_eight_convict_nobody() -> None:
    trial = trials.play(5, 100, 0, lambda judging, target: judging < 3 <= target, rounds=12)
    assert trial.ejected == frozenset()


def test_older_state_is_refused_without_audit() -> None:
    row = hostile_audits.old_state_row([0])
    assert (row["detected"], row["rounds_worst"], row["false_convictions"]) == (1, 0, 0)


def test_unfound_attack_has_no_worst_round() -> None:
    assert hostile_audits._median_and_worst([3, None, 4]) == (4, None)
    assert hostile_audits._median_and_worst([None, None, 4]) == (None, None)
    assert hostile_audits._median_and_worst([3, 5]) == (4, 5)


@pytest.mark.parametrize(
    ("detected", "judgements", "at_least"), [(60, 60, 0.9999), (15, 60, 0.97), (0, 60, 0.0)]
)
def test_probability_of_20_audits_uses_lower_limit(
    detected: int, judgements: int, at_least: float
) -> None:
    found = hostile_audits.found_in_20_audits(detected, judgements)
    assert at_least <= found <= 1
    assert found_is_below_naive(found, detected / judgements)


def found_is_below_naive(found: float, rate: float) -> bool:
    return found <= round(1 - (1 - rate) ** 20, 4)
