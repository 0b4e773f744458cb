"""Test that the soak counts connections of all processes of a member, and computes memory
growth.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.test_benchmarks_worth import module

soak = module("soak")


def event(kind: str, t: float, **fields: Any) -> str:
    """Return a line of a member's log."""
    return json.dumps({"kind": kind, "t": t} | fields)


def test_report_adds_up_all_processes_of_a_member(tmp_path: Path) -> None:
    log = tmp_path / "client-1.jsonl"
    lines = [
        event("started", 0.0),
        event("warning", 9.0, message="peer 0123456789 is silent for 12 s\nmore"),
        event("traffic", 10.0, connections={"opened": 3, "closed": 1}),
        event("started", 0.0),
        event("machine", 301.0, resident=100),
        event("traffic", 310.0, connections={"opened": 1, "closed": 1}),
        event("traffic", 320.0, connections={"opened": 2, "closed": 1}),
        event("machine", 400.0, resident=150),
        event("started", 500.0, part=1),
        event("applied", 501.0, step=7),
        event("machine", 502.0, resident=125),
    ]
    log.write_text("\n".join(lines))
    report = soak.report([log])
    assert report["connections"] == {"opened": 5, "closed": 2}
    assert report["warnings"] == {"peer N is silent for N s": 1}
    assert report["memory_growth"] == [1.25]
    assert report["rounds"] == 7


@pytest.mark.nightly
def test_soak_keeps_connections_and_equal_replicas(tmp_path: Path) -> None:
    report = soak.soak(2 / 60, 4, tmp_path)
    assert report["rounds"] > 10
    assert not report["failed"]
    assert report["comparisons"]
    assert not report["differing"]
    assert report["connections"]["opened"] == 12
    assert not report["connections"]["closed"]
    assert not report["connections"]["failed"]
