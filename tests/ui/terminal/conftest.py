"""Fixtures that keep screens under test from waiting for real time."""

from __future__ import annotations

import asyncio

import pytest
from textual import app, pilot


async def yielded(*_given: float) -> None:
    """Let every other task of the loop run several times."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _no_waiting_for_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    # After every key and pause, Textual waits 20 ms or more, until this process uses little CPU
    # time. `drawn` waits until the screen no longer changes instead.
    for module in (app, pilot):
        monkeypatch.setattr(module, "wait_for_idle", yielded)
