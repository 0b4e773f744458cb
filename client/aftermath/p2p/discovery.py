"""Find the addresses of peers: in a directory of this machine, or named by the user.

`<hex node id>.json` in a private directory holds an endpoint's addresses, and is rewritten when
they change. Readers check owner, size and syntax. A stale or forged address only costs a failed
dial, because the connection proves the peer's id.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import re
import socket
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from aftermath.base.bounded import json_as
from aftermath.base.errors import UsageError, short_repr
from aftermath.base.files import replacing
from aftermath.p2p.transport import DiscoveryFailed

MAX_FILE = 4096
MAX_ADDRESSES = 16
MAX_ADDRESS = 64
MAX_RELAY = 256
"""Maximum characters. A server forwards the addresses of one member to all others."""


class Whereabouts(msgspec.Struct, frozen=True):
    """Where an endpoint can be reached: `ip:port` strings and, if it uses one, its relay."""

    addresses: tuple[str, ...]
    relay: str | None = None


class Directory(Protocol):
    """Source of the addresses of a run's endpoints. Entries are not trusted: they are only
    dialled.
    """

    def prepare(self) -> None:
        """Prepare the directory. Raises DiscoveryFailed."""

    def write(self, whereabouts: Whereabouts) -> None:
        """Publish our addresses. Raises DiscoveryFailed."""

    def refresh(self, whereabouts: Whereabouts) -> None:
        """Publish our addresses again if needed. Raises DiscoveryFailed."""

    def remove(self) -> None:
        """Withdraw our entry."""

    def read(self, node_id: bytes) -> Whereabouts | None:
        """Return the published addresses of an endpoint, or None if unknown."""


def local_discovery_dir(run_id: str, *, cluster: str, program: str, identity: str) -> Path:
    """Return this user's directory in which peers of one run find each other.

    A wallet has the same p2p key in all runs of one id. So the name also depends on the `cluster`
    (its genesis hash) and on the run's `identity`, which differs if a run is created again.
    """
    safe = re.fullmatch(r"[A-Za-z0-9_-]{1,64}", run_id)
    digits = hashlib.sha256("\0".join((cluster, program, run_id, identity)).encode()).hexdigest()[
        :16
    ]
    name = f"{run_id}-{digits}" if safe else digits
    return (
        Path(tempfile.gettempdir())
        / f"aftermath-{os.getuid() if hasattr(os, 'getuid') else 0}"
        / name
    )


@dataclass(frozen=True)
class LocalDirectory:
    """The directory of one run, and our entry in it."""

    path: Path
    node_id: bytes

    def prepare(self) -> None:
        """Create the directory. Raises DiscoveryFailed if it is not private to this user."""
        try:
            self.path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            info = self.path.stat()
        except OSError as error:
            raise DiscoveryFailed(
                f"cannot use {self.path} to find local peers: {error.strerror}",
                "Choose another directory",
            ) from error
        if hasattr(os, "getuid") and (
            info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        ):
            raise DiscoveryFailed(
                f"other users can write to {self.path}",
                "Run chmod 700 on it, or choose another directory",
            )

    def write(self, whereabouts: Whereabouts) -> None:
        """Publish our addresses atomically. Raises DiscoveryFailed for a full or missing disk."""
        target = self._file(self.node_id)
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            with replacing(
                target, shared=True
            ) as file:  # two members on two clusters may share one key
                Path(file.name).chmod(0o600)
                file.write(msgspec.json.encode(whereabouts))
        except OSError as error:
            raise DiscoveryFailed(
                f"cannot write {target}: {error.strerror}; peers here cannot find us",
                "Free space or choose another disk",
            ) from error

    def refresh(self, whereabouts: Whereabouts) -> None:
        """Write our entry again if it is missing or different."""
        if self.read(self.node_id) != whereabouts:
            self.write(whereabouts)

    def remove(self) -> None:
        """Withdraw our entry."""
        with contextlib.suppress(OSError):
            self._file(self.node_id).unlink()

    def read(self, node_id: bytes) -> Whereabouts | None:
        """Return the location of `node_id`, or None without a believable entry."""
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            descriptor = os.open(self._file(node_id), flags)
            with os.fdopen(descriptor, "rb") as file:
                info = os.fstat(descriptor)
                if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE:
                    return None
                if hasattr(os, "getuid") and info.st_uid != os.getuid():
                    return None
                entry: Whereabouts = json_as(file.read(MAX_FILE), Whereabouts)
            return entry if believable(entry) else None
        except (OSError, ValueError):
            return None

    def _file(self, node_id: bytes) -> Path:
        return self.path / f"{node_id.hex()}.json"


def believable(entry: Whereabouts) -> bool:
    """Return whether an entry's addresses are valid. Raises ValueError for an invalid URL.

    Another member may have written the entry.
    """
    if len(entry.addresses) > MAX_ADDRESSES or not (entry.addresses or entry.relay):
        return False
    if entry.relay is not None and (
        len(entry.relay) > MAX_RELAY or urlsplit(entry.relay).scheme not in ("https", "http")
    ):
        return False
    return all(len(address) <= MAX_ADDRESS and _is_address(address) for address in entry.addresses)


def _is_address(text: str) -> bool:
    """Return whether a string is like `1.2.3.4:5` or `[::1]:5`, with a usable port."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        return False
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return False
    return bracketed == (address.version == 6)


MAX_STATIC_PEERS = 255
"""All other members of a full run."""
_PEER = re.compile(r"([0-9a-fA-F]{64})@(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]{1,253}):([0-9]{1,5})")
_FORM = "Write KEY@HOST:PORT; the key is what show-identity calls p2p, the port what the peer has as --bind-p2p-port"


@dataclass(frozen=True)
class StaticPeer:
    """A peer whose address the user named. `key` is its 32-byte p2p id."""

    key: bytes
    host: str
    port: int


def parse_static_peers(option: str) -> list[StaticPeer]:
    """Parse KEY@HOST:PORT, several separated by commas. Raises UsageError."""
    peers = [_parse_static_peer(item.strip()) for item in option.split(",")]
    if len(peers) > MAX_STATIC_PEERS:
        raise UsageError(
            f"--peer names {len(peers)} peers, but a run has at most {MAX_STATIC_PEERS} others",
            "Name fewer peers",
        )
    return peers


def _parse_static_peer(text: str) -> StaticPeer:
    match = _PEER.fullmatch(text)
    if match is None or not 0 < int(match[3]) < 65536:
        raise UsageError(f"--peer {short_repr(text)} is not a valid peer address", _FORM)
    return StaticPeer(bytes.fromhex(match[1]), match[2].strip("[]"), int(match[3]))


def addresses_of(peers: Sequence[StaticPeer]) -> dict[bytes, tuple[str, ...]]:
    """Return the peers' addresses by key. May block on DNS. Raises UsageError.

    Hosts are resolved once at the start, so that a wrong name fails before the member joins.
    """
    addresses: dict[bytes, tuple[str, ...]] = {}
    for peer in peers:
        addresses[peer.key] = (*addresses.get(peer.key, ()), *_resolve_host(peer))[:MAX_ADDRESSES]
    return addresses


def _resolve_host(peer: StaticPeer) -> list[str]:
    try:
        answers = socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--peer: cannot resolve the host {short_repr(peer.host)}: {error}",
            "Check the name, or use an IP address",
        ) from error
    hosts = dict.fromkeys(str(answer[4][0]) for answer in answers)
    return [f"[{host}]:{peer.port}" if ":" in host else f"{host}:{peer.port}" for host in hosts]


class StaticPeers:
    """A `Directory` of static peers, on top of another directory if there is one."""

    def __init__(
        self, addresses: Mapping[bytes, tuple[str, ...]], directory: Directory | None
    ) -> None:
        self._addresses = addresses
        self._directory = directory

    def prepare(self) -> None:
        if self._directory is not None:
            self._directory.prepare()

    def write(self, whereabouts: Whereabouts) -> None:
        if self._directory is not None:
            self._directory.write(whereabouts)

    def refresh(self, whereabouts: Whereabouts) -> None:
        if self._directory is not None:
            self._directory.refresh(whereabouts)

    def remove(self) -> None:
        if self._directory is not None:
            self._directory.remove()

    def read(self, node_id: bytes) -> Whereabouts | None:
        """Return a peer's static addresses and those of the other directory.

        If there are none, return an empty entry: iroh may know the peer from its own discovery.
        """
        dynamic = self._directory.read(node_id) if self._directory is not None else Whereabouts(())
        static = self._addresses.get(node_id)
        if static is None:
            return dynamic
        addresses = dynamic or Whereabouts(())
        return Whereabouts(tuple(dict.fromkeys((*static, *addresses.addresses))), addresses.relay)
