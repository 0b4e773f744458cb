"""Simulated machines on a LAN: Linux network namespaces on one bridge. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

NETWORK = "10.83.7"
HERE = f"{NETWORK}.1"
"""This machine's address there."""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def possible() -> bool:
    """Return whether this process may create namespaces."""
    return (
        os.geteuid() == 0
        and subprocess.run(["ip", "netns", "list"], capture_output=True, check=False).returncode
        == 0
    )


@contextmanager
def lan(count: int) -> Iterator[list[list[str]]]:
    """Yield `count` machines, each as the command prefix that runs a command on it."""
    bridge = f"am{os.getpid()}"
    spaces = [f"am{os.getpid()}n{index}" for index in range(count)]
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{HERE}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for index, space in enumerate(spaces):
            outside = f"{bridge}v{index}"
            inside = f"{bridge}w{index}"
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
            _ip("link", "set", inside, "netns", space)
            _ip("link", "set", outside, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{NETWORK}.{10 + index}/24", "dev", inside)
            _ip("-n", space, "link", "set", inside, "up")
            _ip("-n", space, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", space] for space in spaces]
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)
