"""Tests of the node that a call asks next, and of how long a node is skipped. Times are
parameters.
"""

from __future__ import annotations

from typing import Any

import pytest

from aftermath.chain.endpoints import endpoint
from aftermath.chain.failures import BEHIND, RpcError
from aftermath.chain.nodes import (
    FAILURES_BEFORE_LEAVING,
    LAG_SECONDS,
    LEAVE_MAX,
    LEAVE_SECONDS,
    Node,
    Nodes,
)

UNASKED: Any = None
DOUBLED = (20.0, 40.0, 60.0, 60.0)


@pytest.fixture
def nodes() -> Nodes:
    """Return a primary and a fallback, both verified to be in the cluster."""
    places = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    return Nodes(
        [Node(endpoint(place), UNASKED, verified=True) for place in places], "RPC endpoint"
    )


def test_failing_node_is_probed_by_one_call_with_backoff(
    nodes: Nodes,
) -> None:
    primary, fallback = nodes.all
    assert max(DOUBLED) == LEAVE_MAX
    for failures in range(FAILURES_BEFORE_LEAVING):
        assert nodes.choose([], 0.0) is primary, f"failed {failures} times"
        assert primary.verified
        nodes.failed(primary, TimeoutError(), 0.0)
    assert not primary.verified, "another cluster may answer there next"
    now = LEAVE_SECONDS
    for pause in DOUBLED:
        assert nodes.choose([], now - 0.1) is fallback
        assert nodes.choose([], now) is primary
        assert nodes.choose([], now) is fallback, "the others do not wait for it"
        nodes.failed(primary, TimeoutError(), now)
        now += pause
    nodes.answered(primary, now)
    assert nodes.choose([], now) is primary
    for _ in range(FAILURES_BEFORE_LEAVING):
        nodes.failed(primary, TimeoutError(), now)
    assert nodes.choose([], now + LEAVE_SECONDS) is primary, (
        "the next outage begins with a short pause"
    )


def test_call_tries_all_nodes_before_repeating_one(nodes: Nodes) -> None:
    primary, fallback = nodes.all
    failed: list[Node] = []
    for expected in (primary, primary, fallback, fallback, primary):
        assert nodes.choose(failed, 0.0) is expected
        failed.append(expected)


def test_node_is_left_only_if_it_stays_behind(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    primary, fallback = nodes.all
    behind = RpcError(BEHIND, "Minimum context slot has not been reached")
    for now in (0.0, 0.5, LAG_SECONDS - 0.1):
        nodes.failed(primary, behind, now)
        assert nodes.choose([], now) is primary
    assert nodes.choose([primary] * FAILURES_BEFORE_LEAVING, 0.5) is fallback, (
        "this call continues elsewhere"
    )
    assert not caplog.messages
    for now in (LAG_SECONDS, LAG_SECONDS + 1):
        nodes.failed(primary, behind, now)
    assert nodes.choose([], LAG_SECONDS + 1) is fallback
    assert "does not answer (Minimum context slot" in caplog.text
