"""Screens under test do not wait for real time."""

from __future__ import annotations

import asyncio

import pytest
from textual import app, pilot


async def yielded(*_given: float) -> None:
    """Let every other task of the loop run some times."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _no_waiting_for_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    # Textual waits until this process uses little of a processor: 20 ms or more after every key and
    # pause. `drawn` looks at the screen instead, until it does not change any more.
    for module in (app, pilot):
        monkeypatch.setattr(module, "wait_for_idle", yielded)
