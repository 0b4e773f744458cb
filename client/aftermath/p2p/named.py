"""Peers that the user names with their addresses: for members that no directory and no service brings together.

Decided
- An address is only tried, as every other: the connection proves the key. It is tried in addition to a directory's.
- Of two members one need know where the other is, since either can dial.
- A host's name is looked up once, at the start, so that a wrong one is said there and not found out in a round.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aftermath.base.errors import UsageError, shown
from aftermath.p2p.discovery import MAX_ADDRESSES, Directory, Whereabouts

MOST_NAMED = 255
"""All the others of a run."""
_PEER = re.compile(r"([0-9a-fA-F]{64})@(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]{1,253}):([0-9]{1,5})")
_FORM = "Write KEY@HOST:PORT; the key is what show-identity calls p2p, the port what the peer has as --bind-p2p-port"


@dataclass(frozen=True)
class NamedPeer:
    """`key`: its p2p id, 32 bytes."""

    key: bytes
    host: str
    port: int


def peers_named(given: str) -> list[NamedPeer]:
    """KEY@HOST:PORT, several with commas between them. Raises UsageError for anything else."""
    named = [_peer_named(one.strip()) for one in given.split(",")]
    if len(named) > MOST_NAMED:
        raise UsageError(f"--peer names {len(named)} peers, and a run has {MOST_NAMED} others", "Name fewer")
    return named


def _peer_named(text: str) -> NamedPeer:
    found = _PEER.fullmatch(text)
    if found is None or not 0 < int(found[3]) < 65536:
        raise UsageError(f"--peer {shown(text)} is no peer with an address", _FORM)
    return NamedPeer(bytes.fromhex(found[1]), found[2].strip("[]"), int(found[3]))


def addresses_of(peers: Sequence[NamedPeer]) -> dict[bytes, tuple[str, ...]]:
    """Their addresses, those of one key together. It may wait for a name service. Raises UsageError."""
    found: dict[bytes, tuple[str, ...]] = {}
    for peer in peers:
        found[peer.key] = (*found.get(peer.key, ()), *_looked_up(peer))[:MAX_ADDRESSES]
    return found


def _looked_up(peer: NamedPeer) -> list[str]:
    try:
        answers = socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--peer names the host {shown(peer.host)}, which has no address here: {error}",
            "Check the name, or write the address itself",
        ) from error
    hosts = dict.fromkeys(str(answer[4][0]) for answer in answers)
    return [f"[{host}]:{peer.port}" if ":" in host else f"{host}:{peer.port}" for host in hosts]


class NamedPeers:
    """A `Directory` of these addresses and those of another directory, if any."""

    def __init__(self, named: Mapping[bytes, tuple[str, ...]], other: Directory | None) -> None:
        self._named, self._other = named, other

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
        """Without another directory and a name the addresses are empty: whatever iroh itself knows is tried then."""
        found = self._other.read(node_id) if self._other is not None else Whereabouts(())
        named = self._named.get(node_id)
        if named is None:
            return found
        said = found or Whereabouts(())
        return Whereabouts(tuple(dict.fromkeys((*named, *said.addresses))), said.relay)
