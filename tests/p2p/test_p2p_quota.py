"""Test each limit on what one peer, or all together, may make us do and store, with endpoints on
loopback.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

import iroh
import pytest
from blake3 import blake3

from aftermath.p2p import (
    blob_fetch,
    blobs,
    connection_table,
    incoming_connections,
    limits,
    partial_download,
    peer_connection,
    requests,
)
from aftermath.p2p.incoming_connections import (
    ADDRESS_BURST,
    MAX_HANDSHAKES,
    MAX_HANDSHAKES_OF_ADDRESS,
    AcceptLimits,
    Handshake,
)
from aftermath.p2p.limits import SharedLimit
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.transport import PeerUnreachable
from aftermath.p2p.wire import (
    ALPN,
    BlobRequest,
    CallRequest,
    Reply,
    ReplyStatus,
    frame,
    frame_of,
    read_message,
)
from p2p.nodes import QUIC_STREAMS, QUIC_WINDOW, content, join, until


async def test_shared_limit_prefers_largest_remaining_quota() -> None:
    shared = SharedLimit(time.monotonic, 50, 1)
    order = list[str]()
    assert not await shared.turn(0), "there is one to spare"

    async def wait(name: str, left: float) -> None:
        assert await shared.turn(left)
        order.append(name)

    flooding = [asyncio.create_task(wait(f"flooder {number}", -1)) for number in range(5)]
    await asyncio.sleep(0)
    await asyncio.gather(wait("honest", 100), *flooding)
    assert order == ["honest", *(f"flooder {number}" for number in range(5))]


async def test_shared_limit_total_turns_are_bounded() -> None:
    shared = SharedLimit(time.monotonic, 100, 10)
    began = time.monotonic()
    await asyncio.gather(*(shared.turn(left) for left in range(40)))
    assert time.monotonic() - began >= 30 / 100 * 0.9


async def test_shared_limit_cancelled_wait_takes_no_turn() -> None:
    shared = SharedLimit(time.monotonic, 20, 1)
    await shared.turn(0)
    first = asyncio.create_task(shared.turn(9))
    second = asyncio.create_task(shared.turn(1))
    await asyncio.sleep(0)
    first.cancel()
    assert await second
    assert not shared._waiting
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_reconnect_does_not_refill_quota(opened, rogue, monkeypatch):
    monkeypatch.setattr(limits, "REQUEST_RATE", 1e-3)
    monkeypatch.setattr(limits, "REQUEST_BURST", 5.0)
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    for _ in range(2):
        connection = await cheat.dial(node)
        streams = [await connection.open_bi() for _ in range(4)]
        for stream in streams:
            await stream.send().write_all(frame_of(BlobRequest(bytes(32), 0, 1)))
        answers = asyncio.gather(*(read_message(stream.recv(), Reply) for stream in streams))
        with contextlib.suppress(TimeoutError, iroh.IrohError):
            async with asyncio.timeout(0.4):
                await answers
    assert node._links._peers[cheat.node_id].quota.requests.left < 0
    assert node.stats().throttled == 1, "the second of its connections waits at its second request"


@pytest.mark.parametrize("repeats", [False, True], ids=["new", "repeated"])
async def test_peer_announcing_beyond_quota_is_banned(opened, rogue, monkeypatch, repeats):
    """A reconnecting member repeats its last 64 announcements. More repeats count as a flood."""
    monkeypatch.setattr(limits, "ANNOUNCEMENT_RATE", 200.0)
    monkeypatch.setattr(limits, "ANNOUNCEMENT_BURST", 5.0)
    monkeypatch.setattr(limits, "EXCESS_BURST", 10.0)
    node = await opened(1)
    honest = await opened(2)
    cheat = await rogue(3)
    join([node, honest], cheat.node_id)
    connection = await cheat.dial(node)
    stream = await connection.open_uni()
    await stream.write_all(b"".join(frame(b"the same") for _ in range(40)))
    await until(lambda: node.stats().duplicates == 39)
    assert connection.close_reason() is None, "these repeats wait, and that is all"
    reader = node.announcements()
    with contextlib.suppress(iroh.IrohError):
        await stream.write_all(
            b"".join(frame(b"the same" if repeats else b"%d" % number) for number in range(1000))
        )
    await asyncio.wait_for(connection.closed(), 10)
    await until(lambda: node.stats().violations == 1 and honest.node_id in node.reachable())
    assert node._links._bans.seconds_left(cheat.node_id) > 0
    await honest.announce(b"still heard")
    async with asyncio.timeout(10):
        while (await anext(reader)).sender != honest.node_id:
            pass


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "alone"])
async def test_peer_connecting_beyond_quota_is_banned(opened, rogue, monkeypatch, connected):
    monkeypatch.setattr(limits, "CONNECTION_RATE", 1e-3)
    monkeypatch.setattr(limits, "CONNECTION_BURST", 1.0)
    monkeypatch.setattr(limits, "EXCESS_BURST", 3.0)
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    first = await cheat.dial(node)
    if not connected:
        first.close(0, b"")
        await until(lambda: not node.reachable())
    for _ in range(4):
        assert node._links._bans.seconds_left(cheat.node_id) == 0
        with pytest.raises(PeerUnreachable, match="connecting too often"):
            await cheat.dial(node)
    await until(lambda: node._links._bans.seconds_left(cheat.node_id) > 0)
    with pytest.raises(PeerUnreachable, match="banned"):
        await cheat.dial(node)
    await until(lambda: not node.reachable())
    assert node._links._bans._records[cheat.node_id].offences == 1


async def test_busy_listener_admits_proven_addresses(opened):
    node = await opened(1)
    other = await opened(2)
    inside = [
        node._links._incoming.limits.enter(f"192.0.2.{number}")
        for number in range(MAX_HANDSHAKES // 2)
    ]
    assert node._links._incoming.limits.busy
    node.set_members([other.node_id])
    node._links._peers[other.node_id].keeper.cancel()  # so that only the other one dials
    other.set_members([node.node_id])
    await until(lambda: other.node_id in node.reachable())
    for begun in inside:
        assert begun is not None
        node._links._incoming.limits.leave(begun)
    assert not node._links._incoming.limits._inside


def test_handshakes_of_one_address_are_limited() -> None:
    now = 0.0
    one = AcceptLimits(lambda: now)
    begun = [handshake for _ in range(100) if (handshake := one.enter("here"))]
    assert len(begun) == MAX_HANDSHAKES_OF_ADDRESS
    assert one.enter("there")
    for handshake in begun:
        one.leave(handshake)
    entered = 0
    for _ in range(1000):
        if handshake := one.enter("here"):
            entered += 1
            one.leave(handshake)
    assert entered == ADDRESS_BURST - MAX_HANDSHAKES_OF_ADDRESS


def entering(one: AcceptLimits, gave_way: list[Handshake]) -> Callable[[str], Handshake | None]:
    """Begin handshakes from these places, and record which of them are evicted."""

    def enter(where: str) -> Handshake | None:
        if begun := one.enter(where):
            begun.give_up = lambda: gave_way.append(begun)
        return begun

    return enter


def test_full_slots_evict_oldest_of_busiest_address() -> None:
    now = 0.0
    one = AcceptLimits(lambda: now)
    gave_way = list[Handshake]()
    enter = entering(one, gave_way)
    for number in range(MAX_HANDSHAKES):
        assert enter(f"crowd {number % 4}")
    assert not any(enter(f"crowd {number}") for number in range(4))
    others = MAX_HANDSHAKES - 4
    assert [bool(enter(f"one {number}")) for number in range(MAX_HANDSHAKES)] == [True] * others + [
        False
    ] * 4
    assert [begun.where for begun in gave_way] == [
        f"crowd {number % 4}" for number in range(others)
    ]
    now = incoming_connections.GIVE_WAY_S
    assert not enter("one 7")
    assert enter("another")
    one.leave(gave_way[0])  # this handshake has ended
    assert sum(map(len, one._inside.values())) == MAX_HANDSHAKES


def test_restarting_strangers_do_not_exclude_former_peer() -> None:
    now = 0.0
    one = AcceptLimits(lambda: now)
    gave_way = list[Handshake]()
    enter = entering(one, gave_way)
    for number in range(2):
        one.remember(bytes([number]), f"192.0.2.1:{number}")
    for number in range(MAX_HANDSHAKES):
        assert enter(f"stranger {number}")
    assert not enter("newcomer")
    assert enter("192.0.2.1:0")
    assert [begun.where for begun in gave_way] == ["stranger 0"]
    assert not enter("192.0.2.1:0"), "it has one"
    assert enter("192.0.2.1:1")
    assert [begun.where for begun in gave_way] == ["stranger 0", "stranger 1"]


def test_reassigned_port_is_lost_only_to_its_old_member() -> None:
    one = AcceptLimits(lambda: 0.0)
    one.remember(b"first", "192.0.2.1:1")
    one.remember(b"second", "192.0.2.1:1")
    one.remember(b"first", "192.0.2.1:2")
    assert one.invites("192.0.2.1:1")
    assert one.invites("192.0.2.1:2")
    one.remember(b"second", "192.0.2.1:3")
    assert not one.invites("192.0.2.1:1")


def test_equal_addresses_evict_oldest_handshake() -> None:
    now = 0.0
    one = AcceptLimits(lambda: now)
    gave_way = list[Handshake]()
    enter = entering(one, gave_way)
    first = enter("first")
    assert first is not None
    assert all(enter(str(number)) for number in range(MAX_HANDSHAKES - 2))
    now = incoming_connections.GIVE_WAY_S
    assert enter("first")
    one.leave(first)
    assert enter("last")
    assert enter("newcomer")
    assert [begun.where for begun in gave_way] == ["0"]


def test_remembered_addresses_and_peers_are_bounded() -> None:
    one = AcceptLimits(time.monotonic)
    measured = PeerMeasurements(time.monotonic)
    for number in range(2 * incoming_connections.REMEMBERED):
        begun = one.enter(str(number))
        assert begun is not None
        one.leave(begun)
        measured.failed(number.to_bytes(32, "big"))
    assert len(one._rates) == incoming_connections.REMEMBERED
    assert len(measured.peers) == limits.REMEMBERED_PEERS
    assert not one._inside


async def test_bytes_without_greeting_close_and_ban_dialler(opened, rogue):
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    connection = await cheat.endpoint.connect(node._endpoint.addr(), ALPN)
    greeting = await connection.open_bi()
    await greeting.send().write_all(b"\0\0")
    pouring = [asyncio.create_task(_pour(connection)) for _ in range(QUIC_STREAMS // 2)]
    await asyncio.wait_for(connection.closed(), 10)
    await asyncio.gather(*pouring)
    await until(lambda: node.stats().violations == 1)
    assert node._links._bans.seconds_left(cheat.node_id) > 0
    assert not node._links._incoming.limits._inside


async def _pour(connection: iroh.Connection) -> None:
    with contextlib.suppress(iroh.IrohError):
        stream = (await connection.open_bi()).send()
        while True:
            await stream.write_all(bytes(1 << 16))


async def test_bytes_without_greeting_close_and_ban_dialled_peer(opened, rogue, monkeypatch):
    monkeypatch.setattr(connection_table, "DIAL_S", 120.0)
    monkeypatch.setattr(peer_connection, "MOST_BEFORE_ANSWER", 64 << 10)
    node = await opened(1)
    cheat = await rogue(2)
    monkeypatch.setattr(node._links, "_locate", lambda peer: cheat.endpoint.addr())
    node.set_members([cheat.node_id])
    incoming = await asyncio.wait_for(cheat.endpoint.accept_next(), 10)
    connection = await (await incoming.accept()).connect()
    pouring = [asyncio.create_task(_pour(connection)) for _ in range(QUIC_STREAMS // 2)]
    await asyncio.wait_for(connection.closed(), 60)
    await asyncio.gather(*pouring)
    await until(lambda: node.stats().violations == 1)
    assert node._links._bans.seconds_left(cheat.node_id) > 0


@pytest.mark.slow
async def test_bytes_admitted_by_quic_match_our_bound(opened, rogue, monkeypatch):
    monkeypatch.setattr(peer_connection, "MOST_BEFORE_GREETING", 1 << 40)
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    connection = await cheat.endpoint.connect(node._endpoint.addr(), ALPN)
    greeting = await connection.open_bi()
    await greeting.send().write_all(b"\0\0")
    most = QUIC_STREAMS // 2 * QUIC_WINDOW
    pouring = [asyncio.create_task(_pour(connection)) for _ in range(QUIC_STREAMS)]

    def received() -> int:
        return connection.stats().udp_tx_bytes

    await until(lambda: received() > 0.9 * most, 60)
    await asyncio.sleep(0.5)
    assert received() < 1.2 * most, "of one kind of streams; there are as many of the other"
    connection.close(0, b"")
    await asyncio.gather(*pouring)


async def test_member_greets_over_one_connection_at_a_time(opened, rogue):
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    first = await cheat.endpoint.connect(node._endpoint.addr(), ALPN)
    await until(lambda: node._links._peers[cheat.node_id].greeting is not None)
    second = await cheat.endpoint.connect(node._endpoint.addr(), ALPN)
    assert "another one came" in await asyncio.wait_for(first.closed(), 5)
    assert second.close_reason() is None


async def test_worst_of_all_unread_senders_is_closed(opened, rogue, monkeypatch):
    monkeypatch.setattr(connection_table, "MOST_UNREAD_OF_ALL", 3 << 20)
    node = await opened(1)
    little = await rogue(2)
    much = await rogue(3)
    node.handle("slow", _never)
    node.set_members([little.node_id, much.node_id])
    await little.dial(node)
    await much.dial(node)
    for cheat in (little, much):
        streams = [
            await cheat.connection.open_bi() for _ in range(peer_connection.STREAMS_OPEN - 2)
        ]
        for one in streams:
            await one.send().write_all(frame_of(CallRequest("slow", 0, 9, 60_000)))
    for one in streams:  # of the second: as much as those that wait can hold
        with contextlib.suppress(iroh.IrohError, TimeoutError):
            async with asyncio.timeout(0.2):
                await one.send().write_all(bytes(1 << 20))
    why = await asyncio.wait_for(much.connection.closed(), 10)
    # What it poured in may have crowded out the packet that says why; a later one is answered by a
    # reset.
    assert "more than could be read" in why or "reset by peer" in why
    assert little.connection.close_reason() is None
    assert node.stats().violations == 0


async def _never(peer: bytes, body: bytes) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def test_unread_answers_are_bounded(opened, rogue, monkeypatch):
    monkeypatch.setattr(requests, "ANSWERS", 5 << 20)
    monkeypatch.setattr(requests, "ALL_ANSWERS", 5 << 20)
    node = await opened(1)
    other = await opened(2)
    deaf = await rogue(3)
    join([node, other], deaf.node_id)

    async def large(peer: bytes, body: bytes) -> bytes:
        return bytes(2 << 20)

    node.handle("large", large)
    connection = await deaf.dial(node)
    streams = [await connection.open_bi() for _ in range(6)]
    for stream in streams:
        await stream.send().write_all(frame_of(CallRequest("large", 0, 1 << 30, 60_000)))
        await stream.send().finish()
    await until(lambda: node._requests._untaken[deaf.node_id] == 4 << 20)
    assert len(await other.request(node.node_id, "large", b"", 4 << 20, 10)) == 2 << 20
    statuses = [(await read_message(stream.recv(), Reply)).status for stream in streams]
    assert sorted(statuses) == [ReplyStatus.OK] * 2 + [ReplyStatus.REFUSED] * 4
    connection.close(0, b"")
    await until(lambda: not node._requests._untaken)


async def test_large_pieces_in_flight_are_limited(opened, rogue, monkeypatch):
    monkeypatch.setattr(blobs, "LARGE_PIECES", 1)
    node = await opened(1)
    deaf = await rogue(2)
    node.set_members([deaf.node_id])
    sizes: dict[bytes, list[int]] = {bytes(32): [], bytes([1] * 32): []}
    for digest, read in sizes.items():

        def piece(offset: int, length: int, read: list[int] = read) -> bytes:
            read.append(length)
            return bytes(length)

        node.publish_source(digest, 1 << 30, piece)
    connection = await deaf.dial(node)
    streams = []
    for digest, read in sizes.items():
        streams.append(stream := await connection.open_bi())
        await stream.send().write_all(frame_of(BlobRequest(digest, 0, 1 << 30)))
        await until(lambda read=read: len(read) >= 2)
    first, second = sizes.values()
    assert set(first) == {blobs.PIECE}
    await until(lambda: sum(second) > QUIC_WINDOW)
    assert set(second) == {blobs.SMALL_PIECE}


async def test_single_byte_sender_costs_few_reads(opened, rogue, monkeypatch):
    monkeypatch.setattr(blob_fetch, "TRICKLE_S", 0.2)
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    data = content(500)
    puts = 0
    put = partial_download.PartialBlob.put

    def counted(self, pull, chunk):
        nonlocal puts
        puts += 1
        return put(self, pull, chunk)

    monkeypatch.setattr(partial_download.PartialBlob, "put", counted)

    async def drip(request, stream):
        await stream.send().write_all(frame_of(Reply(ReplyStatus.OK, len(data))))
        for byte in data:
            await stream.send().write_all(bytes([byte]))
            await asyncio.sleep(0.001)
        await stream.send().finish()

    await cheat.dial(node, drip)
    began = time.monotonic()
    assert await node.fetch(blake3(data).digest(), len(data), [cheat.node_id], 30) == data
    assert puts <= 2 + (time.monotonic() - began) / 0.2


async def test_overrun_accept_limits_drop_connections(opened, monkeypatch):
    monkeypatch.setattr(incoming_connections, "LOOKED_AT_RATE", 1e-3)
    monkeypatch.setattr(incoming_connections, "LOOKED_AT_BURST", 1.0)
    node = await opened(1)
    first = await opened(2)
    second = await opened(3)
    for one in (first, second):
        one.set_members([node.node_id])
    await until(lambda: node.stats().refused >= 3)
    with pytest.raises(PeerUnreachable):
        await second.request(node.node_id, "any", b"", 10, 0.5)
