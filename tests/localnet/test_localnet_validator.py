"""Run the tests for both engines against the real validator."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from aftermath.localnet import validator_binary
from aftermath.localnet.validator import SPINNING_THREAD, START_SECONDS
from e2e.processes import command_line
from localnet.localnet_processes import Urls, start
from localnet.localnet_requests import PRELOADED_ID
from localnet.test_localnet_deploy import *  # noqa: F403
from localnet.test_localnet_pubsub import *  # noqa: F403
from localnet.test_localnet_reading import *  # noqa: F403
from localnet.test_localnet_sending import *  # noqa: F403

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def network(memo_so: Path) -> Iterator[Urls]:
    """Start one process for all tests of this file.

    It ends with the file, because it keeps a core busy.
    """
    if validator_binary() is None:
        pytest.skip("no solana-test-validator on this machine (set AFTERMATH_VALIDATOR to one)")
    process, rpc, ws = start(
        "--engine", "validator", "--slot-ms", "100", "--program", f"{PRELOADED_ID}={memo_so}"
    )
    try:
        yield Urls("validator", rpc, ws)
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_validator_polling_thread_has_lower_priority(network: Urls) -> None:
    port = network.rpc_url.rpartition(":")[2]
    [validator] = [
        child
        for child in psutil.Process().children(recursive=True)
        if ["--rpc-port", port] == _after("--rpc-port", command_line(child))
    ]
    deadline = time.monotonic() + START_SECONDS
    while (
        _niceness(validator, SPINNING_THREAD) != validator.nice() + 10
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    assert _niceness(validator, SPINNING_THREAD) == validator.nice() + 10
    assert _niceness(validator, "solReplayStage") == validator.nice()


def _after(option: str, line: list[str]) -> list[str]:
    """Return the option and its value, if the command line has it."""
    return line[line.index(option) : line.index(option) + 2] if option in line else []


def _niceness(process: psutil.Process, name: str) -> int | None:
    """Return the niceness of the thread of this name, or None without one."""
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with suppress(OSError):  # threads end at any time
            if (thread / "comm").read_text().strip() == name:
                return os.getpriority(os.PRIO_PROCESS, int(thread.name))
    return None
