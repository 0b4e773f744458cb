"""Which incoming connections get a handshake: before it nobody has a key, so what is bounded is
what addresses do.

Decided: handshakes are few at a time, in all and of each address, and few a second of each address.
No more than LOOKED_AT_RATE are looked at; the others are left without an answer: that is cheaper
than one, and QUIC tries again by itself, where a refusal would end an honest dial. Beyond LEFT_RATE
they wait in QUIC, which keeps tens of thousands, and later arrivals wait for the end of that queue:
so it is as high as can be afforded. While half of the handshakes are under way an address has to
prove first that it hears us, which costs us no memory: else packets that claim to come from many
addresses would lock all others out. Where all places are taken, the oldest handshake gives way of
the address that has most, to an address that has fewer: else a few addresses that begin handshakes
and say no more would lock all others out. One fewer counts only where that handshake takes longer
than it should: else all members of a run who come at once would prevent each other from ever ending
theirs. Of IPv6 a whole /64 is one address, since a host with one address there has all of them. The
port from which a member was connected last has a place of its own, as often as a member may
connect, and strangers' handshakes give way to it at once: else a peer that shares its address, or
has many and begins again before it is late, could keep it out once its connection is lost. It
counts where there is no other way in, and is proven first, since anybody may name it. Who comes by
way of a relay is known by a key that cost nothing, before the handshake: those who are no members
have one place together, since some dozens of keys would have all places.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Container
from dataclasses import dataclass

import iroh

from aftermath.base.rate_limit import Bucket, network_of
from aftermath.p2p.limits import ARRIVALS_BURST, ARRIVALS_RATE, REMEMBERED_PEERS

MAX_HANDSHAKES = 64
MAX_HANDSHAKES_OF_ADDRESS = 16
ADDRESS_RATE, ADDRESS_BURST = 10.0, 300.0
"""At once: 256 members of one machine, or behind one router."""
LOOKED_AT_RATE, LOOKED_AT_BURST = 100.0, 600.0
GIVE_WAY_S = 2.0
"""What a handshake may take, however many wait."""
LEFT_RATE, LEFT_BURST = 1000.0, 1000.0
RELAYED = "relayed"
"""The place of all who are no members and come by way of a relay."""
REMEMBERED = 1024
"""Addresses; those that came last."""


@dataclass(eq=False)
class Handshake:
    """One that is under way; `give_up` ends it."""

    where: str
    began: float
    give_up: Callable[[], object] = lambda: None


class Door:
    """`clock` returns seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._inside: dict[str, deque[Handshake]] = {}
        """By place, those that began first in front."""
        self._rates: OrderedDict[str, Bucket] = OrderedDict()
        self._ports: OrderedDict[bytes, str] = OrderedDict()
        self._members: dict[str, Bucket] = {}
        self.looks = Bucket(clock, LOOKED_AT_RATE, LOOKED_AT_BURST)
        self.leavings = Bucket(clock, LEFT_RATE, LEFT_BURST)

    @property
    def busy(self) -> bool:
        """Whether addresses have to be proven."""
        return self._total() >= MAX_HANDSHAKES // 2

    def remember(self, member: bytes, port: str) -> None:
        """A member is connected from this address and port, from no other one any more, and nobody
        else from it.
        """
        rate = self._members.pop(self._ports.pop(member, ""), None)
        for other in [one for one, where in self._ports.items() if where == port]:
            del self._ports[other]
        self._ports[member] = port
        self._members[port] = rate or Bucket(self._clock, ARRIVALS_RATE, ARRIVALS_BURST)
        if len(self._ports) > REMEMBERED_PEERS:
            self._members.pop(self._ports.popitem(last=False)[1], None)

    def invites(self, port: str) -> bool:
        """Whether a member was connected from there last, and has not come too often since."""
        return port in self._members and not self._members[port].next_in()

    def lets_in(self, where: str) -> bool:
        """Return whether it would accept an unproven handshake from this place."""
        room = not self.busy and len(self._inside.get(where, ())) < MAX_HANDSHAKES_OF_ADDRESS
        return room and not self.looks.next_in() and not self._rate(where).next_in()

    def enter(self, where: str) -> Handshake | None:
        """Begin a handshake of this place; None if there can be none now."""
        own = len(self._inside.get(where, ()))
        full = self._total() >= MAX_HANDSHAKES
        oldest = self._gives_way(where, own) if full else None
        if own >= MAX_HANDSHAKES_OF_ADDRESS or (full and oldest is None) or not self._rate(where).spare():
            return None
        if oldest is not None:
            self.leave(oldest)
            oldest.give_up()
        begun = Handshake(where, self._clock())
        self._inside.setdefault(where, deque()).append(begun)
        return begun

    def _gives_way(self, where: str, own: int) -> Handshake | None:
        """Return the handshake that ends for another one of this place, which has `own` of them."""
        strangers = [of for place, of in self._inside.items() if place not in self._members]
        at_once = where in self._members and bool(strangers)
        among = strangers if at_once else self._inside.values()
        most = max(among, key=lambda of: (len(of), -of[0].began))
        late = at_once or self._clock() >= most[0].began + GIVE_WAY_S
        return most[0] if len(most) > own + (not late) else None

    def leave(self, handshake: Handshake) -> None:
        """It has ended, however; once it has, nothing more happens."""
        of_place = self._inside.get(handshake.where, deque())
        if handshake in of_place:
            of_place.remove(handshake)
        if not of_place:
            self._inside.pop(handshake.where, None)

    def _total(self) -> int:
        return sum(map(len, self._inside.values()))

    def _rate(self, where: str) -> Bucket:
        if where in self._members:
            return self._members[where]
        if where not in self._rates:
            self._rates[where] = Bucket(self._clock, ADDRESS_RATE, ADDRESS_BURST)
        self._rates.move_to_end(where)
        if len(self._rates) > REMEMBERED:
            self._rates.popitem(last=False)
        return self._rates[where]


def place_of(address: iroh.IncomingAddr, members: Container[bytes]) -> str:
    """What the handshakes of one place have in common: its IP address, or the key that a relay saw
    a member prove.
    """
    if isinstance(address, iroh.IncomingAddr.RELAY):
        return str(address.endpoint_id) if bytes(address.endpoint_id.to_bytes()) in members else RELAYED
    if not isinstance(address, iroh.IncomingAddr.IP):
        return RELAYED
    return network_of(address.addr.rpartition(":")[0].strip("[]"))
