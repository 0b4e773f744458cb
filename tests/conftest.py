"""What holds for all tests: how they are spread over workers, and that processes they start can be interrupted.

End-to-end cases start several processes each, so they go to two workers: those of one network, and those that make
their own. (pytest-xdist's own marker for it, `xdist_group`, does not work with pytest 9.2: it writes a field no longer
read.)
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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

OWN_NETWORK = ("central", "compose", "lan", "local_testnet", "testnet_screen", "trackers", "wheel")
ONE_AT_A_TIME = {
    "networks of their own": ("tests/hostile/", *(f"tests/e2e/test_e2e_{name}.py" for name in OWN_NETWORK)),
    "one network": ("tests/e2e/",),
}


def pytest_configure() -> None:
    # A shell starts background jobs with SIGINT ignored, and whatever they start inherits that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A session sets this process's logging up; the next test begins with what was there before."""
    log = logging.getLogger("aftermath")
    level, handlers, propagate = log.level, log.handlers[:], log.propagate
    yield
    log.setLevel(level)
    log.handlers[:], log.propagate = handlers, propagate


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return next((queue for queue, begins in ONE_AT_A_TIME.items() if nodeid.startswith(begins)), nodeid)

    return Scheduling(config, log)
