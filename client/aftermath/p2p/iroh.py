"""The transport over iroh: bind a QUIC endpoint, publish its addresses, connect the parts.

n0's relays and discovery are iroh's own presets. On one machine a private directory suffices, and
nothing leaves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import iroh
from iroh import iroh_ffi

from aftermath.base.concurrency import cancel
from aftermath.base.errors import UsageError
from aftermath.p2p import fast_ffi
from aftermath.p2p.announce import Announcer
from aftermath.p2p.blob_fetch import Fetch
from aftermath.p2p.blobs import BlobStore
from aftermath.p2p.connection_table import Links
from aftermath.p2p.discovery import Directory, LocalDirectory, StaticPeers, Whereabouts
from aftermath.p2p.line_faults import GOOD_LINE, LineFaults, MemberLine
from aftermath.p2p.partial_download import STRIPE_FROM
from aftermath.p2p.peer_connection import Link
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.relay import DISABLED, N0
from aftermath.p2p.requests import Requests
from aftermath.p2p.swarm import Swarms
from aftermath.p2p.transport import (
    Announcement,
    BindFailed,
    BlobUnavailable,
    DiscoveryFailed,
    Handler,
    ReadRange,
    TransportError,
    TransportStats,
)
from aftermath.p2p.wire import ALPN, LANE_ALPN, cause

REFRESH_S = 5.0
ENDPOINT_CLOSE_S = 0.5

log = logging.getLogger(__name__)
Discovery = Literal["local", "n0"]


class IrohTransport:
    """`aftermath.p2p.transport.Transport` over one iroh endpoint. Made by `open_iroh`."""

    def __init__(
        self,
        endpoint: iroh.Endpoint,
        directory: Directory | None,
        clock: Callable[[], float],
        faults: LineFaults | None = None,
    ) -> None:
        self.node_id = bytes(endpoint.id().to_bytes())
        self._endpoint = endpoint
        self._directory = directory
        self._pace = PeerMeasurements(clock)
        self._line = MemberLine(faults, self.node_id) if faults is not None else GOOD_LINE
        self._store = BlobStore(self._line)
        self._announcer = Announcer(self._pace, self._line)
        self._requests = Requests(self._store, self._pace, self._line)
        self._links = Links(endpoint, os.urandom(16), self._locate, self._pace, self._services)
        self._swarms = Swarms(
            self.node_id, self._links, self._requests, self._store, self._pace, self._line
        )
        self._refresher = asyncio.create_task(self._refresh(directory)) if directory else None
        self._closed = False

    def set_members(self, node_ids: Iterable[bytes]) -> None:
        """See `Transport.set_members`. ValueError if an id is not 32 bytes."""
        ids = list(node_ids)
        if any(len(node_id) != 32 for node_id in ids):
            raise ValueError("a member's p2p id is 32 bytes")
        self._ensure_open()
        self._links.set_members(ids)

    def bar(self, peer: bytes, why: str) -> None:
        """See `Transport.bar`."""
        self._links.bar(peer, why)

    async def announce(self, data: bytes) -> None:
        """See `Transport.announce`."""
        self._ensure_open()
        self._announcer.announce(data)

    def announcements(self) -> AsyncIterator[Announcement]:
        """See `Transport.announcements`."""
        self._ensure_open()
        return self._announcer.subscribe()

    def publish(self, data: bytes) -> bytes:
        """See `Transport.publish`."""
        return self._store.publish(data)

    def publish_source(self, digest: bytes, size: int, read: ReadRange) -> None:
        """See `Transport.publish_source`."""
        self._store.publish_source(digest, size, read)

    def retract(self, digest: bytes) -> None:
        """See `Transport.retract`."""
        self._store.retract(digest)

    async def fetch(
        self,
        digest: bytes,
        size: int,
        holders: Sequence[bytes],
        deadline_s: float,
        *,
        keep: bool = False,
        author: bytes | None = None,
    ) -> bytes:
        """See `Transport.fetch`. ValueError if `size` is not positive."""
        self._ensure_open()
        if size < 1:
            raise ValueError("a blob has at least one byte")
        stored = self._store.held(digest, size)
        if stored is not None:
            return stored
        remote_holders = [holder for holder in holders if holder != self.node_id]
        if not remote_holders:
            raise BlobUnavailable(f"blob {digest.hex()[:10]} ({size} bytes): no holder was named")
        blob = None
        ends = self._pace.clock() + deadline_s
        if keep and author in remote_holders and len(remote_holders) > 1 and size >= STRIPE_FROM:
            blob = await self._swarms.fetch(digest, size, author, remote_holders, deadline_s)
        if blob is None:
            left_s = max(0.0, ends - self._pace.clock())
            fetch = Fetch(self._links, self._pace, digest, size, left_s, self._line, author)
            blob = await fetch.run(remote_holders)
        if keep:
            self._store.keep(digest, blob)
        return blob

    async def request(
        self, peer: bytes, topic: str, body: bytes, max_reply: int, deadline_s: float
    ) -> bytes:
        """See `Transport.request`."""
        self._ensure_open()
        return await self._requests.call(self._links, peer, topic, body, max_reply, deadline_s)

    def handle(self, topic: str, handler: Handler) -> None:
        """See `Transport.handle`."""
        self._requests.handle(topic, handler)

    def reachable(self) -> frozenset[bytes]:
        """See `Transport.reachable`."""
        return self._links.live()

    def stats(self) -> TransportStats:
        """See `Transport.stats`."""
        return self._pace.snapshot(self._links.live(), self._links.members())

    async def close(self) -> None:
        """See `Transport.close`; closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        if self._refresher is not None:
            await cancel([self._refresher])
        if self._directory is not None:
            self._directory.remove()
        self._announcer.close()
        await self._swarms.close()
        await self._links.close()
        with contextlib.suppress(TimeoutError, iroh.IrohError):
            async with asyncio.timeout(ENDPOINT_CLOSE_S):
                await self._endpoint.close()

    def _ensure_open(self) -> None:
        if self._closed:
            raise TransportError("the transport is closed")

    def _services(self, link: Link) -> list[Coroutine[Any, Any, None]]:
        """Return what runs on a connection. A lane carries no announcements."""
        if link.main is not None:
            return [self._requests.serve(link)]
        return [self._announcer.write(link), self._announcer.read(link), self._requests.serve(link)]

    def _locate(self, peer: bytes) -> iroh.EndpointAddr | None:
        """Return where to dial a peer, or None if the directory has no entry."""
        if self._directory is None:
            return iroh.EndpointAddr(iroh.EndpointId.from_bytes(peer), None, [])
        entry = self._directory.read(peer)
        if entry is None:
            return None
        return iroh.EndpointAddr(
            iroh.EndpointId.from_bytes(peer), entry.relay, list(entry.addresses)
        )

    async def _refresh(self, directory: Directory) -> None:
        """Keep our directory entry present and correct. Log a problem once when it starts."""
        last_trouble = ""
        while True:
            await asyncio.sleep(REFRESH_S)
            trouble = ""
            try:
                directory.refresh(whereabouts(self._endpoint))
            except (DiscoveryFailed, iroh.IrohError) as error:
                trouble = cause(error)
            if trouble and trouble != last_trouble:
                log.warning("%s", trouble)
            last_trouble = trouble


def whereabouts(endpoint: iroh.Endpoint) -> Whereabouts:
    """Return where this endpoint can be reached. Include loopback if it listens on all
    interfaces.
    """
    address = endpoint.addr()
    addresses = dict.fromkeys(address.direct_addresses())
    for bound_address in endpoint.bound_sockets():
        host, _, port = bound_address.rpartition(":")
        if host == "0.0.0.0":
            addresses[f"127.0.0.1:{port}"] = None
    return Whereabouts(tuple(addresses), address.relay_url())


async def open_iroh(
    secret: bytes,
    *,
    bind_port: int = 0,
    bind_host: str | None = None,
    relay: str,
    discovery: Discovery,
    discovery_dir: Path | None = None,
    directory: Directory | None = None,
    static_peers: Mapping[bytes, tuple[str, ...]] | None = None,
    clock: Callable[[], float] = time.monotonic,
    faults: LineFaults | None = None,
) -> IrohTransport:
    """Open a transport whose id is the public key of the 32-byte ed25519 `secret`.

    `relay` is disabled, n0 or a URL (`relay.relay_named`). `bind_port` 0 lets the system choose;
    `bind_host` None listens on all interfaces. Local discovery needs `discovery_dir` (see
    `discovery.local_discovery_dir`), or another `directory` to look in. `static_peers` are
    addresses of peers, tried in addition to these. `faults` make this member's line worse. Raises
    BindFailed, DiscoveryFailed.
    """
    if len(secret) != 32:
        raise ValueError("the p2p secret key is 32 bytes")
    if discovery == "local" and discovery_dir is None and directory is None:
        raise ValueError("local discovery needs a directory")
    fast_ffi.leave_out_backtraces()
    fast_ffi.install(iroh_ffi)
    endpoint = await bound(secret, bind_host, bind_port, relay, discovery)
    if discovery == "local" and discovery_dir is not None:
        directory = LocalDirectory(discovery_dir, bytes(endpoint.id().to_bytes()))
    if static_peers:
        directory = StaticPeers(static_peers, directory)
    if directory is not None:
        try:
            directory.prepare()
            directory.write(whereabouts(endpoint))
        except DiscoveryFailed:
            await endpoint.close()
            raise
    return IrohTransport(endpoint, directory, clock, faults)


def check_interface(address: str | None) -> None:
    """Raise UsageError if `address` is not an IPv4 address."""
    try:
        ipaddress.IPv4Address(address or "0.0.0.0")
    except ValueError as error:
        raise UsageError(
            f"--bind-p2p-interface {address!r} is not a valid IPv4 address",
            "Use an address of this machine, for example 127.0.0.1",
        ) from error


def check_port(host: str | None, port: int) -> None:
    """Raise BindFailed if the UDP port cannot be bound. Call this before slow work. Port 0 is
    always free.
    """
    if not port:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host or "0.0.0.0", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _port_taken(port) from error
            raise _cannot_listen(f"{host or '0.0.0.0'}:{port}", str(error.strerror)) from error


def _port_taken(port: int) -> BindFailed:
    return BindFailed(
        f"UDP port {port} is already in use",
        "Stop the program that uses it, or choose another port with --bind-p2p-port (0 picks a free one)",
    )


def _cannot_listen(address: str, why: str) -> BindFailed:
    return BindFailed(
        f"cannot listen on UDP {address}: {why}",
        "Check --bind-p2p-port and --bind-p2p-interface, which takes an address of this machine",
    )


def _relay_mode(relay: str) -> iroh.RelayMode:
    """Return iroh's relay mode. Raises UsageError for an invalid URL."""
    if relay == DISABLED:
        return iroh.RelayMode.disabled()
    if relay == N0:
        return iroh.RelayMode.default_mode()
    try:
        return iroh.RelayMode.custom_from_urls([relay])
    except iroh.IrohError as error:
        raise UsageError(
            f"--iroh-relay {relay} is not a valid relay URL: {cause(error)}",
            "Use a URL such as https://relay.example.org",
        ) from error


async def bound(
    secret: bytes, host: str | None, port: int, relay: str, discovery: Discovery
) -> iroh.Endpoint:
    """Bind the endpoint. Raises BindFailed, which names the port and what to do."""
    preset = iroh.preset_n0() if discovery == "n0" else iroh.preset_minimal()
    address = f"{host or '0.0.0.0'}:{port}"
    options = iroh.EndpointOptions(
        preset=preset,
        secret_key=secret,
        alpns=[ALPN, LANE_ALPN],
        relay_mode=_relay_mode(relay),
        bind_addr=None if host is None and port == 0 else address,
    )
    try:
        return await iroh.Endpoint.bind(options)
    except iroh.IrohError as error:
        why = cause(error)
        if "in use" in why:
            raise _port_taken(port) from error
        raise _cannot_listen(address, why) from error


async def reachable_via_relay(relay: str, host: str | None, seconds: float) -> Whereabouts | None:
    """Return an endpoint's location once the relay accepts it, or None after `seconds`.

    A relay that answers a ping may still reject an endpoint, so this one connects, with a fresh
    key. Raises UsageError, BindFailed.
    """
    endpoint = await bound(secrets.token_bytes(32), host, 0, relay, "local")
    try:
        async with asyncio.timeout(seconds):
            await endpoint.online()
        return whereabouts(endpoint)
    except TimeoutError:
        return None
    finally:
        with contextlib.suppress(TimeoutError, iroh.IrohError):
            async with asyncio.timeout(ENDPOINT_CLOSE_S):
                await endpoint.close()
