"""Settings that all tests share: cost tiers, hypothesis profiles, and how tests are spread over
workers.

Every test belongs to one tier: fast (no marker), `slow` or `nightly`. CONTRIBUTING.md says when to
use which.
"""

from __future__ import annotations

import csv
import gc
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["duration_table"]

# No deadline per example: the machines that run the tests are shared. `derandomize` makes a fast
# run repeatable.
settings.register_profile("fast", max_examples=20, derandomize=True, deadline=None)
settings.register_profile(
    "slow", max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "nightly", max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fast")

# Workers and the processes they start share the cores already: threads inside each would only wait
# for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where a test sets more threads, one that waits would otherwise spin on a core that another worker
# needs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Command defaults of the person who runs the tests must not reach the commands under test.
os.environ["AFTERMATH_PROFILE"] = ""

DURATIONS = Path(__file__).with_name("durations.tsv")
TIERS = {"slow", "nightly"}

# These tests start processes and mostly wait for them. Each queue runs on one worker, one test at a
# time, while the other workers run what needs the processor. All tests that use a validator and the
# network of tests/e2e are in the first queue, which starts each once.
QUEUES = (
    tuple(
        f"tests/e2e/test_e2e_{name}.py"
        for name in (
            "admission",
            "bad_input",
            "changes",
            "local_testnet",
            "missing_checkpoint",
            "ranks",
            "recovery",
            "seed_config",
            "training",
        )
    ),
    (
        "tests/e2e/",
        "tests/hostile/",
        "tests/cli/test_cli_page_commands.py",
        "tests/cli/test_cli_screen.py",
        "tests/cli/test_cli_show_run.py",
        "tests/cli/test_cli_stopped.py",
        "tests/p2p/test_p2p_floods.py",
    ),
)

# Folders whose files share what is costly to make: all their tests go to one worker.
TOGETHER = ("tests/parallel/",)

# Files whose tests share nothing: each test may go to another worker.
SPREAD = (
    "tests/fuzz/",
    "tests/programs/test_programs_coalitions.py",
    "tests/benchmarks/test_benchmarks_memory.py",
)


def pytest_configure() -> None:
    # A shell starts background jobs with SIGINT ignored, and whatever they start inherits that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Turn garbage collection off while tests are loaded, then freeze them, so that no later
    # collection scans them.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def default_hangup() -> Iterator[None]:
    """Hear SIGHUP as usual, also in the processes of tests. Under nohup it would be ignored."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A session sets this process's logging up; the next test begins with what was there before."""
    log = logging.getLogger("aftermath")
    level = log.level
    handlers = log.handlers[:]
    propagate = log.propagate
    yield
    log.setLevel(level)
    log.handlers[:] = handlers
    log.propagate = propagate


def scope_of(nodeid: str) -> str:
    """Return the name of the group of tests that runs on one worker: a queue, a folder, a file, or
    one test.
    """
    for number, files in enumerate(QUEUES):
        if nodeid.startswith(files):
            return f"queue {number}"
    for folder in TOGETHER:
        if nodeid.startswith(folder):
            return folder
    return nodeid if nodeid.startswith(SPREAD) else nodeid.partition("::")[0]


def usual_seconds() -> dict[str, float]:
    """Return the wall seconds per scope, summed over tiers, as `make test-times` measured them."""
    seconds: dict[str, float] = {}
    with DURATIONS.open() as table:
        for row in csv.DictReader(table, delimiter="\t"):
            scope = scope_of(row["file"])
            seconds[scope] = seconds.get(scope, 0.0) + float(row["wall_s"])
    return seconds


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tiers = {mark.name for mark in item.iter_markers()} & TIERS
        if len(tiers) > 1:
            raise pytest.UsageError(
                f"{item.nodeid} is marked {' and '.join(sorted(tiers))}: a test has one tier"
            )
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The longest scopes begin first; otherwise one worker would still be busy when the others
        # have nothing left.
        seconds = usual_seconds()
        items.sort(
            key=lambda item: (
                -seconds.get(
                    scope_of(item.nodeid), seconds.get(item.nodeid.partition("::")[0], 0.0)
                )
            )
        )
        items.sort(
            key=lambda item: (
                scope_of(item.nodeid) if scope_of(item.nodeid).startswith("queue") else "tests"
            )
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Send all tests of a scope to one worker, so that what they share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    # xdist would sort by the number of tests, which says little about time
    config.option.loadscopereorder = False
    return Scheduling(config, log)
