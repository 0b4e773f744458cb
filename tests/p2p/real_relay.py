"""Start the relay server of the iroh project as a process, if this machine has one."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aftermath.base.files import cache_directory
from aftermath.localnet.free_ports import free_ports

BINARY = Path(
    os.environ.get("AFTERMATH_RELAY")
    or shutil.which("iroh-relay")
    or cache_directory("bin") / "iroh-relay"
).absolute()
"""Looked for before a test has another home."""


@contextmanager
def real_relay(place: Path) -> Iterator[str]:
    """Yield the relay's URL, once it answers. Skip the test where there is no relay."""
    if not BINARY.is_file():
        pytest.skip("no iroh-relay on this machine (set AFTERMATH_RELAY to one)")
    port = free_ports("127.0.0.1", 1)
    place.mkdir(parents=True, exist_ok=True)
    (place / "relay.toml").write_text(
        f'http_bind_addr = "127.0.0.1:{port}"\nenable_metrics = false\n'
    )
    with (place / "relay.log").open("wb") as log:
        process = subprocess.Popen(
            [BINARY, "--dev", "-c", place / "relay.toml"], stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 30
        while not _answers(url):
            assert process.poll() is None, (place / "relay.log").read_text()
            assert time.monotonic() < until, "the relay does not answer"
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ping", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
