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
from aftermath.base.errors import UsageError, shown
from aftermath.base.files import replacing
from aftermath.p2p.transport import DiscoveryFailed

MAX_FILE = 4096
MAX_ADDRESSES = 16
MAX_ADDRESS = 64
MAX_RELAY = 256
"""Characters of each: a server tells all members what one has told it."""


class Whereabouts(msgspec.Struct, frozen=True):
    """Where an endpoint can be reached: `ip:port` strings and, if it uses one, its relay."""

    addresses: tuple[str, ...]
    relay: str | None = None


class Directory(Protocol):
    """Source of the addresses of a run's endpoints. Nothing in it is trusted: an address is only
    tried.
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
        """Return where an endpoint says it is, or None if unknown."""


def local_discovery_dir(run_id: str, *, cluster: str, program: str, identity: str) -> Path:
    """The per-user directory under the system's temporary folder in which peers of one run find
    each other.

    A wallet has the same p2p key in all runs of one id. So the name tells apart runs of other
    clusters (`cluster`: the genesis hash) and runs that were created again (`identity`: see
    `Run.identity`).
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
        """Create the directory, private to this user. Raises DiscoveryFailed if it is someone
        else's.
        """
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
                f"{self.path} can be written by other users",
                "`chmod 700` it, or choose another directory",
            )

    def write(self, whereabouts: Whereabouts) -> None:
        """Publish our addresses atomically. Raises DiscoveryFailed for a full or missing disk."""
        target = self._file(self.node_id)
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            with replacing(target, shared=True) as file:  # of one key on two clusters, say
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
                found: Whereabouts = json_as(file.read(MAX_FILE), Whereabouts)
            return found if believable(found) else None
        except (OSError, ValueError):
            return None

    def _file(self, node_id: bytes) -> Path:
        return self.path / f"{node_id.hex()}.json"


def believable(found: Whereabouts) -> bool:
    """Return whether all addresses are valid. Raises ValueError for an invalid one.

    A stranger may have written the entry: it is short, and only says where to dial.
    """
    if len(found.addresses) > MAX_ADDRESSES or not (found.addresses or found.relay):
        return False
    if found.relay is not None and (
        len(found.relay) > MAX_RELAY or urlsplit(found.relay).scheme not in ("https", "http")
    ):
        return False
    return all(len(address) <= MAX_ADDRESS and _is_address(address) for address in found.addresses)


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


MOST_NAMED = 255
"""All the others of a run."""
_PEER = re.compile(r"([0-9a-fA-F]{64})@(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]{1,253}):([0-9]{1,5})")
_FORM = "Write KEY@HOST:PORT; the key is what show-identity calls p2p, the port what the peer has as --bind-p2p-port"


@dataclass(frozen=True)
class StaticPeer:
    """A peer whose address the user named. `key` is its 32-byte p2p id."""

    key: bytes
    host: str
    port: int


def parse_static_peers(given: str) -> list[StaticPeer]:
    """Parse KEY@HOST:PORT, several separated by commas. Raises UsageError."""
    named = [_peer_named(one.strip()) for one in given.split(",")]
    if len(named) > MOST_NAMED:
        raise UsageError(
            f"--peer names {len(named)} peers, and a run has {MOST_NAMED} others", "Name fewer"
        )
    return named


def _peer_named(text: str) -> StaticPeer:
    found = _PEER.fullmatch(text)
    if found is None or not 0 < int(found[3]) < 65536:
        raise UsageError(f"--peer {shown(text)} is no peer with an address", _FORM)
    return StaticPeer(bytes.fromhex(found[1]), found[2].strip("[]"), int(found[3]))


def addresses_of(peers: Sequence[StaticPeer]) -> dict[bytes, tuple[str, ...]]:
    """Return the peers' addresses by key. It may wait for a name service. Raises UsageError.

    Names are looked up once, at the start, so that a wrong one fails there and not in a round.
    """
    found: dict[bytes, tuple[str, ...]] = {}
    for peer in peers:
        found[peer.key] = (*found.get(peer.key, ()), *_looked_up(peer))[:MAX_ADDRESSES]
    return found


def _looked_up(peer: StaticPeer) -> list[str]:
    try:
        answers = socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--peer names the host {shown(peer.host)}, which has no address here: {error}",
            "Check the name, or write the address itself",
        ) from error
    hosts = dict.fromkeys(str(answer[4][0]) for answer in answers)
    return [f"[{host}]:{peer.port}" if ":" in host else f"{host}:{peer.port}" for host in hosts]


class StaticPeers:
    """A `Directory` of static peers, on top of another directory if there is one."""

    def __init__(self, named: Mapping[bytes, tuple[str, ...]], other: Directory | None) -> None:
        self._named = named
        self._other = other

    def prepare(self) -> None:
        if self._other is not None:
            self._other.prepare()

    def write(self, whereabouts: Whereabouts) -> None:
        if self._other is not None:
            self._other.write(whereabouts)

    def refresh(self, whereabouts: Whereabouts) -> None:
        if self._other is not None:
            self._other.refresh(whereabouts)

    def remove(self) -> None:
        if self._other is not None:
            self._other.remove()

    def read(self, node_id: bytes) -> Whereabouts | None:
        """Return a peer's location. Without another directory and a name it is empty, and iroh
        tries what it knows.
        """
        found = self._other.read(node_id) if self._other is not None else Whereabouts(())
        named = self._named.get(node_id)
        if named is None:
            return found
        said = found or Whereabouts(())
        return Whereabouts(tuple(dict.fromkeys((*named, *said.addresses))), said.relay)
