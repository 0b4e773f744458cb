"""Fixtures that skip waiting time while nothing in this process has work, for observers and their
runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest

from aftermath.ui.web import observatory, observed_run
from chain.funded_network import share_tls_context
from chain.jumping_loop import JumpingLoop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    item: pytest.Function,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    is_slow = item.get_closest_marker("slow") is not None
    return {
        "loop": asyncio.SelectorEventLoop
        if is_slow or "real_time" in item.fixturenames
        else JumpingLoop
    }


@pytest.fixture
def real_time() -> None:
    """Use real time, because another process takes part."""


@pytest.fixture(autouse=True)
def loop_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let observers read the loop's clock."""
    share_tls_context(monkeypatch)
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time(), time=time.time)
    monkeypatch.setattr(observatory, "time", clock)
    monkeypatch.setattr(observed_run, "time", clock)
