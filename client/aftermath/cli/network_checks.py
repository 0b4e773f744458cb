"""Checks of the network to other members: ports, UDP on this machine, and the relay.

Only a relay can report how other machines see this one. The checks contact no member.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from aftermath.cli.findings import Finding, Subject, broken, dubious, fine

CONNECT_SECONDS = 4.0
RELAY_SECONDS = 4.5
"""Timeouts. Closing the endpoints takes the rest of 5 seconds each."""
_NO_RELAY = (
    "pass members with --peer KEY@HOST:PORT, or forward a UDP port of the router to --bind-p2p-port"
)


def metrics_port(subject: Subject) -> Finding | None:
    """Check that the port for metrics is free."""
    from aftermath.events.metrics import ADDRESS

    port = subject.metrics_port
    if port is None:
        return None
    try:
        socket.create_server((ADDRESS, port)).close()
    except OSError as error:
        return broken(
            f"cannot listen on TCP port {port} of {ADDRESS} for metrics: {error.strerror}",
            "Stop the program that uses it, or choose another with --metrics-port",
        )
    return fine(f"TCP port {port} is free for metrics")


async def udp(subject: Subject) -> Finding:
    """Check that two QUIC endpoints of this machine reach each other, the first at the member's
    port.
    """
    from aftermath.p2p.iroh import IrohTransport, check_interface, open_iroh
    from aftermath.p2p.transport import BindFailed

    check_interface(subject.interface)
    endpoints: list[IrohTransport] = []
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            for port in (subject.bind_port, 0):
                try:
                    transport = await open_iroh(
                        secrets.token_bytes(32),
                        bind_port=port,
                        bind_host=subject.interface,
                        relay="disabled",
                        discovery="local",
                        discovery_dir=Path(directory) / "peers",
                    )
                except BindFailed as error:
                    return broken(error.message, error.fix)
                stack.push_async_callback(transport.close)
                endpoints.append(transport)
            for transport in endpoints:
                transport.set_members([endpoint.node_id for endpoint in endpoints])
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    while not all(endpoint.reachable() for endpoint in endpoints):
                        await asyncio.sleep(0.02)
            except TimeoutError:
                return broken(
                    f"UDP is blocked: two endpoints of this machine do not reach each other in {CONNECT_SECONDS:.0f} s",
                    "Let the firewall of this machine pass UDP, on loopback as well",
                )
    port_text = (
        f"UDP port {subject.bind_port}" if subject.bind_port else "a UDP port that the system chose"
    )
    interface_text = f" of {subject.interface}" if subject.interface else ""
    return fine(
        f"QUIC works on this machine, at {port_text}{interface_text}; "
        "whether other machines reach it cannot be tested from here",
        "If they do not: forward a UDP port of the router and pass it as --bind-p2p-port, pass members of your own "
        "network as --peer KEY@HOST:PORT, or use a relay: --iroh-relay n0 or its URL",
    )


async def relay(subject: Subject) -> Finding:
    """Check that the relay of `train` accepts this machine, and sees a UDP address that others
    could reach.
    """
    from aftermath.p2p.iroh import reachable_via_relay
    from aftermath.p2p.relay import AUTO, DISABLED, N0

    chosen = subject.relay
    # without a cluster, contact a relay only if the user names one
    if chosen == AUTO and (subject.chain is None or not subject.answers):
        return fine(
            "no relay was tested",
            "Pass --iroh-relay n0 or --iroh-relay URL, or pass --rpc with a cluster that answers",
        )
    if chosen == AUTO:
        assert subject.chain is not None
        chosen = DISABLED if subject.chain.pool.is_local else N0
    if chosen == DISABLED:
        return fine(
            "no relay is used: members have to reach each other directly",
            f"If they do not, {_NO_RELAY}",
        )
    seen = await reachable_via_relay(chosen, subject.interface, RELAY_SECONDS)
    return relay_finding(
        chosen, None if seen is None else seen.addresses, named=subject.relay != AUTO
    )


def relay_finding(chosen: str, addresses: Sequence[str] | None, *, named: bool) -> Finding:
    """Judge a relay by the addresses at which it sees this machine. None: the relay did not accept
    it.

    `named`: the user passed this relay, so its absence is a failure.
    """
    from aftermath.p2p.relay import N0

    name = "n0's relay" if chosen == N0 else f"the relay {chosen}"
    if addresses is None:
        return (broken if named else dubious)(
            f"{name} did not accept this machine within {RELAY_SECONDS} s: members can reach it only directly",
            _unreached(chosen),
        )
    if public := [address for address in addresses if _is_public(address)]:
        return fine(
            f"{name} accepts this machine, which others may also reach directly at {', '.join(public)}"
        )
    return (dubious if chosen == N0 else fine)(
        f"{name} accepts this machine but sees no public UDP address of it: it relays members elsewhere",
        "For direct connections let the firewall pass UDP to port 7842 of the relay and to members; your own relay "
        "needs TLS and enable_quic_addr_discovery = true. Members of one network need none of this",
    )


def _unreached(chosen: str) -> str:
    """Return the fix for a relay that is out of reach."""
    from urllib.parse import urlsplit

    from aftermath.p2p.relay import N0

    if chosen == N0:
        return (
            "Let the firewall pass TCP port 443, or use your own relay: --iroh-relay URL; "
            f"without a relay, {_NO_RELAY}"
        )
    parts = urlsplit(chosen)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return (
        f"Check that iroh-relay runs at {parts.hostname}, that firewalls pass TCP port {port}, and that this machine "
        "trusts its certificate; or pass --iroh-relay n0 or disabled"
    )


def _is_public(address: str) -> bool:
    return ipaddress.ip_address(address.rpartition(":")[0].strip("[]").partition("%")[0]).is_global
