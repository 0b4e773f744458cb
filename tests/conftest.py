"""What holds for all tests: how they are spread over workers, and that processes they start can be interrupted.

End-to-end cases start several processes each, and mostly wait for them: they go to two workers, one case after the
other, and first. All others of a file go to one worker, so that what they share (ranks, a network, a library that takes
seconds to import) is made once; but for files whose tests share nothing and take minutes. (pytest-xdist's own marker
for it, `xdist_group`, does not work with pytest 9.2: it writes a field no longer read.)
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# Examples have no deadline of their own: the machines that run the tests are shared.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

# Workers and the processes they start share the cores already: threads inside each would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What commands take where nothing is said is for whoever runs the tests, and not for these.
os.environ["AFTERMATH_PROFILE"] = ""

VALIDATORS = ("admission", "bad_input", "changes", "ranks", "recovery", "seed_config", "training")
"""Whatever shares a validator is among these, so that one worker has it; all others are as long together."""
QUEUES = (tuple(f"tests/e2e/test_e2e_{name}.py" for name in VALIDATORS), ("tests/e2e/", "tests/hostile/"))
EACH_ALONE = ("tests/fuzz/", "tests/programs/test_programs_coalitions.py", "tests/benchmarks/test_benchmarks_memory.py")
DEAREST = (
    "tests/programs/test_programs_coalitions.py",
    "tests/kernels/test_kernels_gpu.py",
    "tests/benchmarks/test_benchmarks_memory.py",
    "tests/ranks/",
    "tests/replica/test_as_on_a_gpu.py",
    "tests/cli/test_cli_recipes.py",
    "tests/cli/test_cli_admission.py",
    "tests/tui/test_tui_keys.py",
    "tests/member/",
)
"""What takes longest begins early, or one worker would be busy with it when the others have nothing left to do."""


def pytest_configure() -> None:
    # A shell starts background jobs with SIGINT ignored, and whatever they start inherits that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def clear_registers() -> Iterator[None]:
    """LiteSVM leaves registers of its thread in use (after one of three `witness` instructions): the next quotient that
    numpy makes of two numbers is NaN, and no other one. Tests that draw charts failed after those that run programs.
    """
    yield
    with np.errstate(invalid="ignore"):
        np.float64(1.0) // np.float64(1.0)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A session sets this process's logging up; the next test begins with what was there before."""
    log = logging.getLogger("aftermath")
    level, handlers, propagate = log.level, log.handlers[:], log.propagate
    yield
    log.setLevel(level)
    log.handlers[:], log.propagate = handlers, propagate


def queue_of(nodeid: str) -> int | None:
    """The number of the queue of an end-to-end case."""
    return next((number for number, files in enumerate(QUEUES) if nodeid.startswith(files)), None)


def place_of(nodeid: str) -> int:
    """End-to-end cases begin before all others, and the dearest of these before the rest."""
    if (queue := queue_of(nodeid)) is not None:
        return queue
    return len(QUEUES) + next((n for n, files in enumerate(DEAREST) if nodeid.startswith(files)), len(DEAREST))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            if (queue := queue_of(nodeid)) is not None:
                return f"queue {queue}"
            return nodeid if nodeid.startswith(EACH_ALONE) else nodeid.partition("::")[0]

    config.option.loadscopereorder = False  # by the number of tests in a file, which says little of how long they take
    return Scheduling(config, log)
