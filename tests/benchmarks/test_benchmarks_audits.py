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


def test_audits_in_bf16_are_counted_apart(figures: dict[str, Any]) -> None:
    assert {counts["audits"] for counts in figures["bf16"].values()} == {4}
    assert figures["bf16"]["muon"]["largest"]["whole"] > figures["bound"]


def test_audits_show_every_attack(
    figures: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    audits.show(figures)
    printed = capsys.readouterr().out
    assert all(f"  {attack}: 2 of 2 detected" in printed for attack in members.ATTACKS)
