"""Test the counts of audits of honest members and attackers, on few shares."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.test_benchmarks_worth import module

members = module("audited_members")
audits = module("measure") and module("audits")


@pytest.fixture(scope="module")
def figures() -> Iterator[dict[str, Any]]:
    """Return the figures of one run of two rounds per optimizer."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audits, "ROUNDS", 2)
        patch.setattr(audits, "COST_ROUNDS", 1)
        patch.setattr(audits, "COST_MODEL", audits.MODEL)
        yield audits.report(Namespace(audits=1, seconds=60, attacks=2, bf16=1))
    torch.set_num_threads(threads)


def test_audits_of_honest_members_raise_no_alarm(figures: dict[str, Any]) -> None:
    # 2 rounds of 2 members in 2 ways, and the last round in a third
    assert figures["audits"] == len(members.OPTIMIZERS) * 10
    assert figures["false_alarms"] == 0


def test_audits_of_attackers_detect_all(figures: dict[str, Any]) -> None:
    assert figures["attacks"].keys() == members.ATTACKS.keys()
    for attack, counts in figures["attacks"].items():
        assert counts["detected"] == counts["audits"] == 2
        exact = attack in audits.EXACT_ATTACKS
        assert exact or counts["smallest"] > 10 * figures["bound"]


def test_audits_of_honest_bf16_members_have_distance_zero(figures: dict[str, Any]) -> None:
    """A judge repeats the member's passes. In others, the distance exceeds the bound of fp32."""
    in_bf16 = figures["bf16"]
    for counts in in_bf16["same_passes"].values():
        assert counts["audits"] == 8
        assert set(counts["largest"].values()) == {0.0}
    assert in_bf16["other_passes"]["muon"]["largest"]["whole"] > figures["bound"]
    assert {counts["false_alarms"] for counts in in_bf16["other_passes"].values()} == {0}


@pytest.mark.parametrize("optimizer", members.OPTIMIZERS)
def test_audits_of_bf16_attackers_detect_most(figures: dict[str, Any], optimizer: str) -> None:
    for attack, counts in figures["bf16"]["attacks"][optimizer].items():
        small = optimizer == "muon" and attack in ("skip_1", "direction", "moments")
        assert small or counts["detected"] == counts["audits"] == 1


def test_audits_show_every_attack(
    figures: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    audits.show(figures)
    printed = capsys.readouterr().out
    assert all(f"  {attack}: 2 of 2 detected" in printed for attack in members.ATTACKS)
    assert "  bf16 adamw skip_1: 1 of 1 detected" in printed
