"""Tests of the list of checks that four commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aftermath.base.errors import UsageError
from aftermath.cli import check_list
from aftermath.cli.check_list import ADMISSION, CHECKS, FIT, examine, refusals
from aftermath.cli.findings import Subject, dubious, fine
from aftermath.coordinator.errors import NoSuchRun, Refused

OF_ONE_MACHINE = {"python", "disk", "wallet", "hub-token"}
"""Checks that find something without any option."""


async def test_check_without_run_is_skipped() -> None:
    names = [
        name for name in CHECKS if name not in OF_ONE_MACHINE | {"torch", "udp", "server", "relay"}
    ]
    assert await examine(Subject(), names) == []
    assert set(ADMISSION) | set(FIT) < CHECKS.keys()


def raising(error: Exception) -> Callable[[Subject], Any]:
    def check(_: Subject) -> None:
        raise error

    return check


async def test_error_of_check_is_its_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Refused("Barred", "barred", "ask")
    away = NoSuchRun("gone", "wait")
    checks = {
        "good": lambda _: fine("all well"),
        "bad": raising(refused),
        "away": lambda _: dubious("wait", "soon", away),
        "disk": raising(OSError(28, "full")),
    }
    monkeypatch.setattr(check_list, "CHECKS", checks)
    results = await examine(Subject(), checks)
    assert [(name, one.status, one.error) for name, one in results] == [
        ("good", "ok", None),
        ("bad", "failure", refused),
        ("away", "warning", away),
        ("disk", "failure", None),
    ]
    assert refusals(results) == [refused]


async def test_error_of_passing_class_ends_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_list, "CHECKS", {"bad": raising(UsageError("wrong"))})
    with pytest.raises(UsageError):
        await examine(Subject(), ["bad"], passing=(UsageError,))
