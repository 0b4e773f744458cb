"""The table of connections: dialling, redialling, and choosing between duplicates.

Every pair of members keeps one connection. The smaller id dials at once and the larger one after a
short grace, so that one side may be behind a NAT. A peer that broke the protocol is closed, and
neither accepted nor dialled while banned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

import iroh

from aftermath.base.concurrency import cancel, first_of
from aftermath.p2p.incoming_connections import IncomingConnections
from aftermath.p2p.lanes import LANES_RETRY_S, MAX_TRANSFERS_PER_LANE, lanes_for
from aftermath.p2p.limits import Bans, LogLimits, Quota
from aftermath.p2p.peer_connection import (
    MOST_UNREAD,
    MOST_UNREAD_OF_ALL,
    Link,
    Peer,
    backoff,
    close_connection,
    close_reason,
    greet,
    only_an_answer,
    run_link,
)
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.transport import PeerUnreachable, TransportError, escaped, short
from aftermath.p2p.wire import ALPN, LANE_ALPN, Code, ProtocolViolation, cause

DIAL_S = 10.0
GRACE_S = 1.0
STABLE_S = 10.0
LINGER_S = 2.0
OTHER_PROCESS = "superseded by another process with your key"
"""Close reason for a link whose peer connects from another process."""

log = logging.getLogger(__name__)
Services = Callable[[Link], list[Coroutine[Any, Any, None]]]
Locate = Callable[[bytes], iroh.EndpointAddr | None]


class Links:
    """All connections of one endpoint."""

    def __init__(
        self,
        endpoint: iroh.Endpoint,
        instance: bytes,
        locate: Locate,
        pace: PeerMeasurements,
        services: Services,
    ) -> None:
        self._endpoint = endpoint
        self._me = bytes(endpoint.id().to_bytes())
        self._instance = instance
        self._locate = locate
        self._pace = pace
        self._services = services
        self._peers: dict[bytes, Peer] = {}
        self._bans = Bans(pace.clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._log_limits = LogLimits(log)
        self._open: set[Link] = set()
        self._reporters: set[bytes] = set()
        self._closed = False
        self._incoming = IncomingConnections(
            endpoint, instance, self._peers, self._bans, pace, self._offer, self._spawn
        )
        self._spawn(self._incoming.accept())
        self._spawn(watch_pulse(self._peers, pace))
        self._spawn(watch_unread(self._open))

    def set_members(self, node_ids: Iterable[bytes]) -> None:
        """Keep connections to exactly these peers (our own id is ignored)."""
        members = set(node_ids) - {self._me}
        for peer in [known for known in self._peers if known not in members]:
            self._evict(peer)
        for peer in sorted(members - self._peers.keys()):
            contact = self._peers[peer] = Peer(Quota(self._pace.clock))
            contact.keeper = self._spawn(self._keep(peer, contact))

    def members(self) -> list[bytes]:
        """Return the members with a slot, in order."""
        return sorted(self._peers)

    def live(self) -> frozenset[bytes]:
        """Return the members that are connected now."""
        return frozenset(peer for peer, contact in self._peers.items() if contact.link is not None)

    def bytes_sent(self) -> int:
        """Return the bytes that QUIC sent on the open links and did not lose."""
        stats = [link.connection.stats() for link in self._open]
        return sum(one.udp_tx_bytes - one.lost_bytes for one in stats)

    def bar(self, peer: bytes, why: str) -> None:
        """Close the connection of a peer that broke the rules, and ban it for a while."""
        contact = self._peers.get(peer)
        if contact is not None and contact.link is not None:
            contact.link.violated(ProtocolViolation(why))

    async def get(self, peer: bytes, wait_s: float) -> Link:
        """Return the link to a member, waiting up to `wait_s` for it. Raises PeerUnreachable with
        the reason, or TransportError if we are closed.
        """
        if self._closed:
            raise TransportError("the transport is closed")
        contact = self._peers.get(peer)
        if contact is None:
            raise PeerUnreachable(f"peer {short(peer)} is not a member of this run")
        if contact.link is None and self._bans.seconds_left(peer):
            raise PeerUnreachable(f"peer {short(peer)} is banned for breaking the protocol")
        if contact.link is None:
            contact.stir.set()
            try:
                async with asyncio.timeout(wait_s):
                    await contact.up.wait()
            except TimeoutError:
                pass
        if contact.link is None:
            raise PeerUnreachable(
                f"peer {short(peer)} cannot be reached within {wait_s:.1f} s: {contact.trouble}",
                "Check that the peer runs, that both members joined the same run, and that UDP is not blocked",
            )
        return contact.link

    def lanes(self, peer: bytes) -> list[Link]:
        """Return a peer's lanes with fewer than MAX_TRANSFERS_PER_LANE of our transfers.

        If this side dialled the link, also dial missing lanes for later calls.
        """
        contact = self._peers.get(peer)
        link = contact.link if contact is not None else None
        if link is None:
            return []
        # The side that dialled the link can reach the other one. Lanes serve both.
        missing = len(link.lanes) < lanes_for(len(self._peers))
        if missing and link.dialer == self._me and self._pace.clock() >= link.lanes_due_at:
            link.lanes_due_at = self._pace.clock() + LANES_RETRY_S
            self._spawn(self._open_lanes(link))
        return [lane for lane in link.lanes if lane.transfers < MAX_TRANSFERS_PER_LANE]

    async def close(self) -> None:
        """Close every connection and stop dialling and accepting."""
        self._closed = True
        for link in self._open:
            link.close(Code.SHUTDOWN, "shutting down")
        for contact in self._peers.values():
            contact.up.set()
        await cancel(self._tasks)
        self._peers.clear()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _evict(self, peer: bytes) -> None:
        contact = self._peers.pop(peer)
        if contact.keeper is not None:
            contact.keeper.cancel()
        if contact.link is not None:
            contact.link.close(Code.NOT_A_MEMBER, "no longer a member of this run")

    # --- dialling ---

    async def _keep(self, peer: bytes, contact: Peer) -> None:
        """Keep one member connected as long as it is a member."""
        attempt = 0
        while True:
            if contact.link is not None:
                link = contact.link
                await link.closed.wait()
                attempt = 0 if self._pace.clock() - link.opened_at > STABLE_S else attempt + 1
            if peer < self._me:
                await contact.pause(GRACE_S)
            await self._wait_out_ban(peer)
            if attempt:
                await contact.pause(backoff(self._me, peer, attempt))
            if contact.link is not None:
                continue
            try:
                await self._dial(peer)
            except PeerUnreachable as error:
                contact.trouble = error.message
                attempt += 1
            except Exception as error:
                self._log_limits.failure("dialling", peer, error)
                attempt += 1

    async def _wait_out_ban(self, peer: bytes) -> None:
        """Wait until this peer is no longer banned."""
        while seconds := self._bans.seconds_left(peer):
            await asyncio.sleep(seconds)

    async def _open_lanes(self, link: Link) -> None:
        """Dial the missing lanes of a link, one after another."""
        try:
            # A fixed number of dials: a peer may close every lane as soon as it opens.
            for _ in range(lanes_for(len(self._peers)) - len(link.lanes)):
                if link.closed.is_set():
                    return
                await self._dial(link.peer, link)
        except PeerUnreachable as error:
            log.debug("no lane to %s: %s", short(link.peer), error.message)

    async def _dial(self, peer: bytes, main: Link | None = None) -> None:
        """Connect and greet. With `main`, open a lane of that link.

        Raises PeerUnreachable with the cause.
        """
        connection = None
        try:
            address = self._locate(peer)
            if address is None:
                raise PeerUnreachable(
                    "its address is unknown (it has not started, or uses another discovery)"
                )
            async with asyncio.timeout(DIAL_S):
                connection = await self._endpoint.connect(address, LANE_ALPN if main else ALPN)
                instance = await first_of(
                    greet(connection, self._instance), only_an_answer(connection)
                )
        except (iroh.IrohError, ProtocolViolation, TimeoutError) as error:
            self._pace.events["failed_handshakes"] += 1
            if connection is not None:
                close_connection(connection, Code.VIOLATION, "no greeting")
            if isinstance(error, ProtocolViolation):
                if main is not None:
                    main.violated(error)
                else:
                    self._pace.events["violations"] += 1
                    self._bans.offended(peer)
            raise PeerUnreachable(cause(error)) from error
        contact = self._peers.get(peer)
        quota = contact.quota if contact is not None else Quota(self._pace.clock)
        link = Link(peer, connection, self._me, instance, self._pace.clock(), quota)
        link.main = main
        self._offer(link)

    # --- the table ---

    def _offer(self, link: Link) -> None:
        """Take a greeted link, unless its peer left the run, is banned, or has a better link."""
        contact = self._peers.get(link.peer)
        if contact is None:
            link.close(Code.NOT_A_MEMBER, "not a member of this run")
            return
        if self._bans.seconds_left(link.peer):
            link.close(Code.NOT_A_MEMBER, "banned for breaking the protocol")
            return
        if link.main is not None:
            self._add_lane(link, link.main)
            return
        old = contact.link
        if old is not None:
            if not link.supersedes(old):
                link.close(Code.DUPLICATE, "already connected")
                return
            self._retire(old, link)
        contact.link = link
        contact.up.set()
        contact.stir.set()
        self._pace.connected(link.peer, link.instance, link.rtt())
        self._spawn(self._serve(contact, link))

    def _add_lane(self, lane: Link, main: Link) -> None:
        """Attach a greeted lane. Close it if its link is closed, restarted or full."""
        if lane.close_without_room(lanes_for(len(self._peers))):
            return
        main.lanes.append(lane)
        self._spawn(self._serve_lane(lane, main))

    async def _serve_lane(self, lane: Link, main: Link) -> None:
        """Run a lane until it or its link closes."""
        self._open.add(lane)
        try:
            await run_link(lane, self._services(lane), self._log_limits)
        finally:
            self._open.discard(lane)
            main.lanes.remove(lane)
            lane.closed.set()

    def _retire(self, old: Link, new: Link) -> None:
        """Close a superseded link: at once if its peer is gone, otherwise after a delay, so that
        pending requests can finish.
        """
        old.retired = True
        reason = "superseded" if old.instance == new.instance else OTHER_PROCESS
        delay = LINGER_S if old.instance == new.instance and old.dialer != new.dialer else 0.0
        asyncio.get_running_loop().call_later(delay, old.close, Code.DUPLICATE, reason)

    async def _serve(self, contact: Peer, link: Link) -> None:
        """Run a link until it closes."""
        self._open.add(link)
        try:
            await run_link(link, self._services(link), self._log_limits)
        finally:
            self._open.discard(link)
            if OTHER_PROCESS in link.end_reason and not link.retired:
                self._warn_of_other_process(link)
            self._pace.events["disconnects"] += 1
            if link.broke_rules:
                self._pace.events["violations"] += 1
                self._log_violation(link, self._bans.offended(link.peer))
            if contact.link is link:
                contact.link = None
                contact.trouble = close_reason(link.connection) or "the connection was lost"
                contact.up.clear()
            link.closed.set()
            for lane in link.lanes:
                lane.close(Code.DONE, "its link was closed")

    def _warn_of_other_process(self, link: Link) -> None:
        """Warn, once, that peers say they are connected to another process that proved our key.

        A peer chooses the reason of a close, so it may lie. One peer's word counts only while no
        other peer is connected, and even then the warning does not ask to stop a process.
        """
        self._reporters.add(link.peer)
        saying = sorted(self._reporters & self._peers.keys())
        alone = len(saying) == 1
        if not saying or (alone and self.live() - {link.peer}):
            return
        if not self._log_limits.is_new("another process", b"one" if alone else b"several"):
            return
        log.warning(
            "%s: another process takes part with this member's key, perhaps on another machine. %s: the processes "
            "undo each other's work, and two different results of one round cost the seat and the bond",
            f"peer {short(saying[0])} says"
            if alone
            else f"peers {', '.join(map(short, saying))} say",
            "Only one peer reports it, so check whether this wallet runs elsewhere before you stop a process"
            if alone
            else "Stop one of the two",
        )

    def _log_violation(self, link: Link, seconds: float) -> None:
        """Log a protocol violation, once per peer: it can repeat it at every connection."""
        first = self._log_limits.is_new("breaking the protocol", link.peer)
        log.log(
            logging.WARNING if first else logging.DEBUG,
            "peer %s broke the protocol: %s; it is banned for %.0f s, and longer each time (logged once)",
            short(link.peer),
            escaped(link.broke_rules),
            seconds,
        )


PROBE_S = 2.0
UNREAD_S = 0.5


async def watch_pulse(peers: Mapping[bytes, Peer], pace: PeerMeasurements) -> None:
    """Probe every link and drop the silent ones, until cancelled."""
    while True:
        await asyncio.sleep(PROBE_S)
        for peer, contact in list(peers.items()):
            try:
                if contact.link is not None:
                    pace.peer(peer).rtt = contact.link.rtt()
                    if not contact.link.pulse():
                        contact.link.close(Code.SILENT, "nothing heard for too long")
            except Exception as error:
                log.debug("link to %s: %s", short(peer), cause(error))


async def watch_unread(links: Collection[Link]) -> None:
    """Close links of peers that send far more than we read, until cancelled.

    If all links together hold too much, close the worst ones. One link's errors do not stop the
    watch.
    """
    while True:
        await asyncio.sleep(UNREAD_S)
        for link in list(links):
            try:
                if not link.is_within_limit():
                    link.violated(
                        ProtocolViolation(
                            f"more than {MOST_UNREAD >> 20} MiB that we did not request"
                        )
                    )
            except Exception as error:
                log.debug("link to %s: %s", short(link.peer), cause(error))
        unread = sum(link.unread for link in links)
        main_links = [link for link in links if link.main is None]
        for link in sorted(main_links, key=lambda item: -item.unread_of_peer()):
            if unread <= MOST_UNREAD_OF_ALL:
                break
            unread -= link.unread_of_peer()
            link.close(Code.STALLED, "peers sent more than could be read")
