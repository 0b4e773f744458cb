"""A pytest plugin that records CPU and wall seconds per test: `--duration-table PATH`.

CPU seconds are those of the test process and of the child processes that it has waited for. Each
worker also measures a fixed piece of work at its start and end, while the others run, so that a
slow machine can be told from costly tests.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def own_cpu_seconds() -> float:
    """Return the CPU seconds of this process alone."""
    times = os.times()
    return times.user + times.system


def reference_cpu_seconds() -> float:
    """Return the CPU seconds of a fixed piece of work: interpreted steps, and reads all over 64 MB
    of memory.
    """
    start = time.process_time()
    table = np.arange(8_000_000, dtype=np.int64)
    places = np.random.default_rng(0).integers(0, len(table), 2_000_000)
    total = 0
    for _ in range(3):
        total += int(table[places].sum())
    counts: dict[int, int] = {}
    for step in range(400_000):
        counts[step % 1009] = counts.get(step % 1009, 0) + total
    return time.process_time() - start


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--duration-table", metavar="PATH", help="write CPU and wall seconds per test as JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(DurationTable(config), "duration-table")


class DurationTable:
    """Measures in every xdist worker, and collects and writes in the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._path: str | None = config.getoption("--duration-table")
        self._is_worker = hasattr(config, "workerinput")
        self._start = time.monotonic()
        self._last_cpu = cpu_seconds()
        self._tests: dict[str, dict[str, Any]] = {}
        self._workers_cpu = 0.0
        self._references: list[float] = []
        self._has_workers = False

    def pytest_collection_finish(self) -> None:
        if self._is_worker or self._path is not None:
            self._references.append(reference_cpu_seconds())
        self._last_cpu = cpu_seconds()  # imports of the test files belong to no test

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = cpu_seconds()
        # Extra attributes travel from the worker to the controller.
        report.cpu_seconds = now - self._last_cpu  # type: ignore[attr-defined]
        self._last_cpu = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self._tests.setdefault(report.nodeid, {"cpu": 0.0, "wall": 0.0})
        row["cpu"] += getattr(report, "cpu_seconds", 0.0)
        row["wall"] += report.duration
        if report.outcome != "passed":
            row["outcome"] = report.outcome

    def pytest_sessionfinish(self) -> None:
        if self._is_worker:
            self._references.append(reference_cpu_seconds())
            self._config.workeroutput["cpu"] = cpu_seconds()  # type: ignore[attr-defined]
            self._config.workeroutput["references"] = self._references  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._has_workers = True
        output = getattr(node, "workeroutput", {})
        self._workers_cpu += output.get("cpu", 0.0)
        self._references += output.get("references", [])

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if self._is_worker or self._path is None:
            return
        # A worker process may not have been waited for yet, so each reports its own sum.
        cpu = own_cpu_seconds() + self._workers_cpu if self._has_workers else cpu_seconds()
        reference = sum(self._references) / max(len(self._references), 1)
        wall = time.monotonic() - self._start
        table = {"cpu": cpu, "wall": wall, "reference": reference, "tests": self._tests}
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(table))
