"""Which incoming connections get a handshake: before it nobody has a key, so what is bounded is what addresses do.

Decided: handshakes are few at a time, in all and of each address, and few a second of each address. No more than
LOOKED_AT_RATE are looked at; the others are refused unseen, so that no queue grows of which the end is never reached,
and beyond REFUSED_RATE they wait in QUIC, which keeps a bounded number. While half of the handshakes are under way an
address has to prove first that it hears us, which costs us no memory: else packets that claim to come from many
addresses would lock all others out. Of IPv6 a whole /64 is one address, since whoever has one there has all of them.
The port from which a member was connected last has a place of its own, as often as a member may connect: else whoever
shares its address could keep it out once its connection is lost. It is proven first, since anybody may name it.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable

import iroh

from aftermath.p2p.bucket import Bucket
from aftermath.p2p.quota import ARRIVALS_BURST, ARRIVALS_RATE, REMEMBERED_PEERS

MAX_HANDSHAKES = 64
MAX_HANDSHAKES_OF_ADDRESS = 16
ADDRESS_RATE, ADDRESS_BURST = 10.0, 300.0
"""At once: 256 members of one machine, or behind one router."""
LOOKED_AT_RATE, LOOKED_AT_BURST = 100.0, 600.0
REFUSED_RATE, REFUSED_BURST = 400.0, 400.0
REMEMBERED = 1024
"""Addresses; those that came last."""


class Door:
    """`clock` returns seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._inside: Counter[str] = Counter()
        self._rates: OrderedDict[str, Bucket] = OrderedDict()
        self._ports: OrderedDict[bytes, str] = OrderedDict()
        self._members: dict[str, Bucket] = {}
        self.looks = Bucket(clock, LOOKED_AT_RATE, LOOKED_AT_BURST)
        self.refusals = Bucket(clock, REFUSED_RATE, REFUSED_BURST)

    @property
    def busy(self) -> bool:
        """Whether addresses have to be proven."""
        return self._inside.total() >= MAX_HANDSHAKES // 2

    def remember(self, member: bytes, port: str) -> None:
        """A member is connected from this address and port, and from no other one any more."""
        rate = self._members.pop(self._ports.pop(member, ""), None)
        self._ports[member] = port
        self._members[port] = rate or Bucket(self._clock, ARRIVALS_RATE, ARRIVALS_BURST)
        if len(self._ports) > REMEMBERED_PEERS:
            self._members.pop(self._ports.popitem(last=False)[1], None)

    def invites(self, port: str) -> bool:
        """Whether a member was connected from there last, and has not come too often since."""
        return port in self._members and not self._members[port].next_in()

    def enter(self, where: str) -> bool:
        """Begin a handshake of this place; False if there can be none now."""
        if self._inside.total() >= MAX_HANDSHAKES or self._inside[where] >= MAX_HANDSHAKES_OF_ADDRESS:
            return False
        if not self._rate(where).spare():
            return False
        self._inside[where] += 1
        return True

    def leave(self, where: str) -> None:
        """A handshake of this place has ended, however."""
        self._inside[where] -= 1
        if not self._inside[where]:
            del self._inside[where]

    def _rate(self, where: str) -> Bucket:
        if where in self._members:
            return self._members[where]
        if where not in self._rates:
            self._rates[where] = Bucket(self._clock, ADDRESS_RATE, ADDRESS_BURST)
        self._rates.move_to_end(where)
        if len(self._rates) > REMEMBERED:
            self._rates.popitem(last=False)
        return self._rates[where]


def place_of(address: iroh.IncomingAddr) -> str:
    """What the handshakes of one place have in common: its IP address, or the key that a relay saw the sender prove."""
    if not isinstance(address, iroh.IncomingAddr.IP):
        return str(address.endpoint_id if isinstance(address, iroh.IncomingAddr.RELAY) else address)
    return network_of(address.addr.rpartition(":")[0].strip("[]"))


def network_of(host: str) -> str:
    """What the addresses have in common that whoever has this one has."""
    host = host.partition("%")[0]
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is None:
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
