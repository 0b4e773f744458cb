"""Test the stated costs of audits against measured ones and against what an audit fetches."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aftermath.audit.claim import claim_of
from aftermath.audit.cost import AUDIT_OVER_SHARE, audit_cost, bytes_of_an_audit
from audit.audited_rounds import CASES, last_share
from cli.conftest import ROOT
from rules import builders


def test_time_of_an_audit_is_the_measured_one() -> None:
    measured = json.loads((ROOT / "benchmarks/measured/audits.json").read_text())
    ratios = measured["figures"]["audit_over_share"].values()
    assert pytest.approx(max(ratios), abs=0.05) == AUDIT_OVER_SHARE


@pytest.mark.parametrize(
    ("percent", "members", "drawn"), [(6, 8, 0.06), (100, 5, 0.8), (100, 40, 0.1)]
)
def test_cost_grows_with_drawn_results(percent: int, members: int, drawn: float) -> None:
    """At most four results of established members are drawn in a round."""
    schema = last_share("adamw").share.schema
    rules = replace(builders.config(), verification_percent=percent)
    cost = audit_cost(schema, rules, members)
    assert cost is not None
    assert cost.compute == pytest.approx(drawn * AUDIT_OVER_SHARE)
    sent = bytes_of_an_audit(schema, 0, members)
    assert cost.upload_bytes[0] == pytest.approx(drawn * sent, abs=1)
    assert len(cost.upload_bytes) == schema.state.tiers
    assert f"{drawn * AUDIT_OVER_SHARE:.0%} more training" in cost.in_words


@pytest.mark.parametrize(("percent", "members"), [(0, 8), (6, 4)])
def test_runs_without_audits_cost_nothing(percent: int, members: int) -> None:
    rules = replace(builders.config(), verification_percent=percent)
    assert audit_cost(last_share("adamw").share.schema, rules, members) is None


@pytest.mark.parametrize("case", [case for case in CASES if "overlapped" not in case])
def test_small_states_are_served_whole_and_probed(case: str) -> None:
    """The tiny state has fewer blocks than an auditor draws."""
    trained = last_share(case)
    residual = sum(tensor.nbytes for name, tensor in trained.state.items() if "residual" in name)
    blocks = claim_of(trained.payloads, trained.state).blocks.values()
    whole = sum(len(block.data) for block in blocks)
    served = bytes_of_an_audit(trained.share.schema, 0, members=5)
    assert 2 * whole - residual <= served - 4 * residual <= 2 * whole
