"""How tests are spread over workers: end-to-end cases start several processes each, so they all go to one worker.

(The marker `xdist_group` does this too, but pytest-xdist 3.8 writes a field that pytest 9.2 no longer reads.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

ONE_AT_A_TIME = "tests/e2e/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return ONE_AT_A_TIME if nodeid.startswith(ONE_AT_A_TIME) else nodeid

    return Scheduling(config, log)
