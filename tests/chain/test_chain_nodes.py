"""Tests of the node that a call asks next, and of how long a node is skipped. Times are
parameters.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.chain.endpoints import endpoint
from aftermath.chain.failures import BEHIND, RpcError
from aftermath.chain.nodes import (
    FAILURES_BEFORE_LEAVING,
    LAG_SECONDS,
    LEAVE_MAX,
    LEAVE_SECONDS,
    PAUSE_FIRST,
    PAUSE_MAX,
    Node,
    Nodes,
    Outages,
)

UNASKED: Any = None
DOUBLED = (20.0, 40.0, 60.0, 60.0)
STEPS = st.lists(st.tuples(st.floats(0.1, 900.0), st.booleans()), max_size=200)


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


@given(STEPS)
def test_outage_log_of_many_outages_is_short_and_complete(steps: list[tuple[float, bool]]) -> None:
    outages = Outages()
    now = 0.0
    there = False
    began = 0
    log_count = 0
    said_back = 0
    counted = 0
    said_away = False
    for seconds, away in steps:
        now += seconds
        if away:
            began += not there
            also = outages.lasts(now)
            if also is not None:
                log_count, said_away = log_count + 1, True
                counted += int(also.split()[1]) if also else 0
        elif outages.ends():
            said_back, said_away = said_back + 1, False
        there = away
        assert not said_away or there, "what was said last is so"
    assert said_back == log_count - said_away
    assert log_count + counted + outages.unreported + (there and not said_away) == began, (
        "each is told or counted"
    )
    assert log_count <= 1 + now / PAUSE_FIRST
    assert not began or log_count, "the first is told at once"


def test_outage_log_of_flapping_endpoint_is_limited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An endpoint that fails and recovers all day causes few lines. If it stays away, the last line
    says so.
    """
    unasked: Any = None
    nodes = Nodes([Node(endpoint("http://127.0.0.1:1"), unasked)], "RPC endpoint")
    (node,) = nodes.all
    day = 24 * 3600
    every = 10
    with caplog.at_level(logging.WARNING):
        for now in range(0, day, every):
            for _ in range(FAILURES_BEFORE_LEAVING):
                nodes.failed(node, TimeoutError(), float(now))
            nodes.answered(node, float(now))
        away = caplog.text.count("does not answer")
        doublings = math.ceil(math.log2(PAUSE_MAX / PAUSE_FIRST))
        assert day / PAUSE_MAX <= away <= day / PAUSE_MAX + doublings + 1
        assert caplog.text.count("answers again") == away
        assert "(no answer in time), 359 times more since the last report" in caplog.text
        caplog.clear()
        for now in range(day, day + 2 * int(PAUSE_MAX), every):
            nodes.failed(node, TimeoutError(), float(now))
        assert caplog.text.count("does not answer") == 1
        caplog.clear()
        nodes.answered(node, float(now))
        for _ in range(FAILURES_BEFORE_LEAVING):
            nodes.failed(node, TimeoutError(), 2.0 * day)
        assert caplog.text.count("does not answer") == 1, "after long peace it is told at once"
