"""What `doctor` looks at of the way to peers: QUIC over UDP, on this machine and, if it is asked for, beyond.

Decided: whether peers get through is only known with a peer. Alone, a machine can speak with itself, and ask a relay
where it sees it; what was not asked is said.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from aftermath.cli.findings import Findings
from aftermath.p2p.relay import AUTO, DISABLED

if TYPE_CHECKING:
    from aftermath.p2p.discovery import Whereabouts

LOOPBACK_SECONDS = 10.0
RELAY_SECONDS = 12.0
"""An endpoint says where it is every five."""
_HELLO = "doctor"


async def look_at_udp(findings: Findings, relay: str) -> None:
    """Whether peers can be spoken to: on loopback for certain, and beyond as far as a relay tells."""
    with findings.failing("udp"):
        took = await _over_loopback()
        findings.ok("udp", f"two QUIC endpoints on this machine spoke with each other in {1000 * took:.0f} ms")
    if relay in (AUTO, DISABLED):
        findings.unknown("reachability", "not looked at beyond this machine; --iroh-relay n0 asks n0's relays")
        return
    with findings.failing("reachability"):
        await _over_relay(findings, relay)


async def _over_loopback() -> float:
    """Seconds that a request between two endpoints took. Raises TransportError."""
    from aftermath.p2p.iroh import open_iroh
    from aftermath.p2p.transport import PeerUnreachable

    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as place:
        both = [
            await open_iroh(
                os.urandom(32), bind_host="127.0.0.1", relay=DISABLED, discovery="local", discovery_dir=Path(place)
            )
            for _ in range(2)
        ]
        try:
            for one in both:
                one.set_members([each.node_id for each in both])

            async def answer(peer: bytes, body: bytes) -> bytes:
                return body

            both[1].handle(_HELLO, answer)
            started, until = loop.time(), loop.time() + LOOPBACK_SECONDS
            while True:
                try:
                    await both[0].request(both[1].node_id, _HELLO, b"hello", 16, LOOPBACK_SECONDS)
                    return loop.time() - started
                except PeerUnreachable:
                    if loop.time() > until:
                        raise
                    await asyncio.sleep(0.1)
        finally:
            for one in both:
                await one.close()


async def _over_relay(findings: Findings, relay: str) -> None:
    """What a relay knows of us: nothing (blocked), or where we are to be reached."""
    from aftermath.p2p.iroh import open_iroh

    told = _Told()
    transport = await open_iroh(os.urandom(32), relay=relay, discovery="local", directory=told)
    try:
        async with asyncio.timeout(RELAY_SECONDS):
            await told.at_relay.wait()
    except TimeoutError:
        told.found = None
    finally:
        await transport.close()
    found = told.found
    if found is None:
        findings.fail(
            "reachability",
            f"blocked: no answer of the relay ({relay}) in {RELAY_SECONDS:.0f} s, and nothing else leads to peers",
            "Let UDP out to all ports, and TCP to port 443 for the relay; or name one that you can reach with "
            "--iroh-relay",
            "bind",
        )
        return
    direct = [one for one in found.addresses if not _private(one)]
    if direct:
        findings.ok("reachability", f"direct: seen from outside at {', '.join(direct)}; relay {found.relay}")
    else:
        findings.warn(
            "reachability",
            f"relayed: the relay {found.relay} answers, and no address of this machine is seen from outside",
            "Let UDP out and in, or forward one port to this machine and name it with --bind-p2p-port; through the "
            "relay it works too, more slowly",
        )


def _private(address: str) -> bool:
    from ipaddress import ip_address

    return not ip_address(address.rpartition(":")[0].strip("[]")).is_global


class _Told:
    """A `discovery.Directory` that keeps what the endpoint says of itself, for nobody."""

    def __init__(self) -> None:
        self.found: Whereabouts | None = None
        self.at_relay = asyncio.Event()

    def prepare(self) -> None:
        pass

    def write(self, whereabouts: Whereabouts) -> None:
        self.found = whereabouts
        if whereabouts.relay is not None:
            self.at_relay.set()

    def refresh(self, whereabouts: Whereabouts) -> None:
        self.write(whereabouts)

    def remove(self) -> None:
        pass

    def read(self, node_id: bytes) -> Whereabouts | None:
        return None
