"""The tests that both engines must pass, against the real validator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aftermath.localnet import validator_binary
from localnet.chainwork import PRELOADED_ID
from localnet.processes import Urls, start
from localnet.test_localnet_deploy import *  # noqa: F403
from localnet.test_localnet_pubsub import *  # noqa: F403
from localnet.test_localnet_reading import *  # noqa: F403
from localnet.test_localnet_sending import *  # noqa: F403

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def network(memo_so: Path) -> Iterator[Urls]:
    """One process for all of them; it ends with this file, since it keeps half a core busy."""
    if validator_binary() is None:
        pytest.skip("no solana-test-validator on this machine (set AFTERMATH_VALIDATOR to one)")
    process, rpc, ws = start("--engine", "validator", "--slot-ms", "100", "--program", f"{PRELOADED_ID}={memo_so}")
    try:
        yield Urls("validator", rpc, ws)
    finally:
        process.terminate()
        process.wait(30)
