"""Simulated machines on a LAN: Linux network namespaces on one bridge. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Lan:
    network: str
    """The first three parts of its addresses."""
    machines: list[list[str]]
    """Each is the command prefix that runs a command there."""

    @property
    def here(self) -> str:
        """This machine's address."""
        return f"{self.network}.1"

    def address(self, index: int) -> str:
        """Return the address of a machine."""
        return f"{self.network}.{10 + index}"


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _unused_network() -> str:
    # A test that was killed leaves its bridge behind, and another test may run at the same time.
    used = _ip("-o", "-4", "addr")
    numbers = ((os.getpid() + offset) % 256 for offset in range(256))
    return next(network for number in numbers if f" {(network := f'10.83.{number}')}." not in used)


def possible() -> bool:
    """Return whether this process may create namespaces."""
    return (
        os.geteuid() == 0
        and subprocess.run(["ip", "netns", "list"], capture_output=True, check=False).returncode
        == 0
    )


@contextmanager
def lan(count: int) -> Iterator[Lan]:
    """Yield a network with `count` machines."""
    bridge = f"am{os.getpid()}"
    spaces = [f"am{os.getpid()}n{index}" for index in range(count)]
    network = Lan(_unused_network(), [["ip", "netns", "exec", space] for space in spaces])
    _remove(bridge, spaces)  # a killed test whose process had this number left them behind
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{network.here}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for index, space in enumerate(spaces):
            outside = f"{bridge}v{index}"
            inside = f"{bridge}w{index}"
            _ip("netns", "add", space)
            _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
            _ip("link", "set", inside, "netns", space)
            _ip("link", "set", outside, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{network.address(index)}/24", "dev", inside)
            _ip("-n", space, "link", "set", inside, "up")
            _ip("-n", space, "link", "set", "lo", "up")
        yield network
    finally:
        _remove(bridge, spaces)


def _remove(bridge: str, spaces: Sequence[str]) -> None:
    """Remove a network, as far as it exists."""
    for space in spaces:
        subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)
