"""Decide which incoming connections get a handshake.

Before a handshake nobody has a key, so the limits apply to addresses. An IPv6 /64 counts as one
address, because a host with one address in it has all of them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Container
from dataclasses import dataclass

import iroh

from aftermath.base.rate_limit import TokenBucket, network_of
from aftermath.p2p.limits import CONNECTION_BURST, CONNECTION_RATE, REMEMBERED_PEERS

MAX_HANDSHAKES = 64
MAX_HANDSHAKES_OF_ADDRESS = 16
ADDRESS_RATE = 10.0
ADDRESS_BURST = 300.0
"""The burst admits 256 members on one machine or behind one router."""
LOOKED_AT_RATE = 100.0
LOOKED_AT_BURST = 600.0
GIVE_WAY_S = 2.0
"""Time that a handshake gets, even if others wait."""
LEFT_RATE = 1000.0
LEFT_BURST = 1000.0
RELAYED = "relayed"
"""The shared key of relayed peers that are not members."""
REMEMBERED = 1024
"""Most recent addresses to remember."""


@dataclass(eq=False)
class Handshake:
    """A handshake in progress. `give_up` ends it."""

    where: str
    started: float
    give_up: Callable[[], object] = lambda: None


class AcceptLimits:
    """Limits on handshakes, in all and for each address. `clock` returns seconds and never goes
    back.

    At most LOOKED_AT_RATE connections per second get an answer. The rest are dropped, which is
    cheaper, and QUIC retries by itself, while a refusal would end an honest dial. Beyond LEFT_RATE
    they wait in QUIC, which can hold tens of thousands.

    From half of MAX_HANDSHAKES on, an address must first prove that it receives our packets.
    Otherwise packets with forged source addresses would lock everyone out.

    When all slots are taken, the oldest handshake of the address with the most handshakes is
    evicted for an address with fewer. Otherwise a few silent addresses could hold all slots. If the
    difference is one, only a late handshake is evicted, so that members that start together do not
    evict each other.

    The port from which a member was last connected has its own slot, and evicts strangers'
    handshakes at once. Otherwise a peer that shares the member's address could lock the member out
    after a lost connection. The slot is used only when there is no other one, and the port must be
    proven first, because anyone may claim it.

    Peers on a relay are identified by keys, which are free. So all relayed peers that are not
    members share one slot.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._inside: dict[str, deque[Handshake]] = {}
        """Handshakes by address, the oldest first."""
        self._rates: OrderedDict[str, TokenBucket] = OrderedDict()
        self._ports: OrderedDict[bytes, str] = OrderedDict()
        self._members: dict[str, TokenBucket] = {}
        self.looks = TokenBucket(clock, LOOKED_AT_RATE, LOOKED_AT_BURST)
        self.leavings = TokenBucket(clock, LEFT_RATE, LEFT_BURST)

    @property
    def busy(self) -> bool:
        """Return whether new connections must prove their address."""
        return self._total() >= MAX_HANDSHAKES // 2

    def remember(self, member: bytes, port: str) -> None:
        """Record the address and port of a connected member."""
        rate = self._members.pop(self._ports.pop(member, ""), None)
        for earlier in [peer for peer, where in self._ports.items() if where == port]:
            del self._ports[earlier]
        self._ports[member] = port
        self._members[port] = rate or TokenBucket(self._clock, CONNECTION_RATE, CONNECTION_BURST)
        if len(self._ports) > REMEMBERED_PEERS:
            self._members.pop(self._ports.popitem(last=False)[1], None)

    def invites(self, port: str) -> bool:
        """Return whether a member was last connected from there and has not reconnected too
        often.
        """
        return port in self._members and not self._members[port].next_in()

    def lets_in(self, where: str) -> bool:
        """Return whether an unproven handshake from this address would be accepted now."""
        room = not self.busy and len(self._inside.get(where, ())) < MAX_HANDSHAKES_OF_ADDRESS
        return room and not self.looks.next_in() and not self._rate(where).next_in()

    def enter(self, where: str) -> Handshake | None:
        """Start a handshake from this address. Return None if there is no slot."""
        active = len(self._inside.get(where, ()))
        full = self._total() >= MAX_HANDSHAKES
        oldest = self._gives_way(where, active) if full else None
        if (
            active >= MAX_HANDSHAKES_OF_ADDRESS
            or (full and oldest is None)
            or not self._rate(where).spare()
        ):
            return None
        if oldest is not None:
            self.leave(oldest)
            oldest.give_up()
        handshake = Handshake(where, self._clock())
        self._inside.setdefault(where, deque()).append(handshake)
        return handshake

    def _gives_way(self, where: str, active: int) -> Handshake | None:
        """Return the handshake to evict for a new one from `where`, or None."""
        strangers = [of for place, of in self._inside.items() if place not in self._members]
        at_once = where in self._members and bool(strangers)
        among = strangers if at_once else self._inside.values()
        most = max(among, key=lambda of: (len(of), -of[0].started))
        late = at_once or self._clock() >= most[0].started + GIVE_WAY_S
        return most[0] if len(most) > active + (not late) else None

    def leave(self, handshake: Handshake) -> None:
        """End a handshake. A second call does nothing."""
        of_place = self._inside.get(handshake.where, deque())
        if handshake in of_place:
            of_place.remove(handshake)
        if not of_place:
            self._inside.pop(handshake.where, None)

    def _total(self) -> int:
        return sum(map(len, self._inside.values()))

    def _rate(self, where: str) -> TokenBucket:
        if where in self._members:
            return self._members[where]
        if where not in self._rates:
            self._rates[where] = TokenBucket(self._clock, ADDRESS_RATE, ADDRESS_BURST)
        self._rates.move_to_end(where)
        if len(self._rates) > REMEMBERED:
            self._rates.popitem(last=False)
        return self._rates[where]


def place_of(address: iroh.IncomingAddr, members: Container[bytes]) -> str:
    """Return the key for limits: the IP network, or on a relay the proven key of a member."""
    if isinstance(address, iroh.IncomingAddr.RELAY):
        return (
            str(address.endpoint_id)
            if bytes(address.endpoint_id.to_bytes()) in members
            else RELAYED
        )
    if not isinstance(address, iroh.IncomingAddr.IP):
        return RELAYED
    return network_of(address.addr.rpartition(":")[0].strip("[]"))
