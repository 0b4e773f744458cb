"""Test lanes: who opens them, what travels over them, and that limits stay those of one peer."""

import asyncio
import contextlib
import threading

import iroh
import pytest

from aftermath.p2p import connection_table, lanes, partial_download, peer_connection
from aftermath.p2p.blob_fetch import Fetch
from aftermath.p2p.iroh import IrohTransport
from aftermath.p2p.lanes import MAX_TRANSFERS_PER_LANE, MIN_LANE_BYTES, MOST_LANES, lanes_for
from aftermath.p2p.partial_download import WORTH_STEALING_FROM_LANE, PartialBlob
from aftermath.p2p.peer_connection import LANE_STREAMS_OPEN, STREAMS_SERVED, Link, greet
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.piece_choice import PieceFetch
from aftermath.p2p.requests import Requests
from aftermath.p2p.wire import LANE_ALPN, CallRequest, ProtocolViolation, frame, frame_of
from p2p.nodes import Rogue, content, identity, join, until

INSTANCE = b"i" * 16
SIZE = 2 << 20


def link_to(node: IrohTransport, peer: bytes) -> Link:
    """Return the main link to a connected peer."""
    link = node._links._peers[peer].link
    assert link is not None
    return link


def publish_behind_gate(author: IrohTransport) -> tuple[bytes, bytes, threading.Event]:
    """Publish a blob that is sent once an event is set. Return its data, its hash and the event."""
    data = content(SIZE)
    digest = author.publish(data)
    author.retract(digest)
    gate = threading.Event()

    def read(offset: int, length: int) -> bytes:
        gate.wait()
        return data[offset : offset + length]

    author.publish_source(digest, SIZE, read)
    return data, digest, gate


async def with_lanes(nodes: list[IrohTransport]) -> list[Link]:
    """Let each of two nodes fetch a blob, and return their links once all lanes are open."""
    for author, reader in (nodes, reversed(nodes)):
        data = content(MIN_LANE_BYTES, author.node_id[0])
        await reader.fetch(author.publish(data), len(data), [author.node_id], 30)
    links = [link_to(nodes[0], nodes[1].node_id), link_to(nodes[1], nodes[0].node_id)]
    await until(lambda: all(len(link.lanes) == MOST_LANES for link in links))
    return links


async def open_lane(rogue: Rogue, node: IrohTransport, instance: bytes) -> iroh.Connection:
    connection = await rogue.endpoint.connect(node._endpoint.addr(), LANE_ALPN)
    with contextlib.suppress(Exception):
        await greet(connection, instance)
    return connection


async def rogue_with_lanes(rogue: Rogue, node: IrohTransport) -> list[iroh.Connection]:
    """Return a rogue's link and all the lanes that it may have."""
    node.set_members([rogue.node_id])
    connections = [await rogue.dial(node, instance=INSTANCE)]
    connections += [await open_lane(rogue, node, INSTANCE) for _ in range(MOST_LANES)]
    await until(lambda: len(link_to(node, rogue.node_id).lanes) == MOST_LANES)
    return connections


@pytest.mark.parametrize(
    ("peers", "expected"), [(0, 2), (1, 2), (8, 2), (9, 1), (12, 1), (13, 0), (255, 0)]
)
def test_number_of_lanes_falls_with_number_of_peers(peers: int, expected: int) -> None:
    assert lanes_for(peers) == expected


async def test_blob_travels_over_all_lanes_of_its_author(mesh):
    nodes = await mesh(1, 2)
    reader, author = nodes
    links = await with_lanes(nodes)
    before = [lane.bytes_read for lane in links[0].lanes]
    data = content(SIZE)
    fetched = await reader.fetch(
        author.publish(data), SIZE, [author.node_id], 30, keep=True, author=author.node_id
    )
    assert fetched == data
    read = [lane.bytes_read - old for lane, old in zip(links[0].lanes, before, strict=True)]
    assert min(read) >= WORTH_STEALING_FROM_LANE
    assert not any(lane.transfers for lane in links[0].lanes)
    for node in nodes:
        assert (node.stats().connects, node.stats().disconnects) == (1, 0)


async def test_small_blob_opens_no_lane(mesh, monkeypatch):
    nodes = await mesh(1, 2)
    peers = list[bytes]()
    monkeypatch.setattr(connection_table.Links, "lanes", lambda self, peer: peers.append(peer))
    data = content(MIN_LANE_BYTES - 1)
    await nodes[0].fetch(nodes[1].publish(data), len(data), [nodes[1].node_id], 30)
    assert not peers


async def test_lanes_close_with_their_link(mesh):
    nodes = await mesh(1, 2)
    await with_lanes(nodes)
    nodes[0].set_members([])
    await until(lambda: not any(node._links._open for node in nodes))


async def test_fetch_completes_when_its_lanes_close(mesh):
    nodes = await mesh(1, 2)
    reader, author = nodes
    links = await with_lanes(nodes)
    data, digest, gate = publish_behind_gate(author)
    fetching = asyncio.create_task(reader.fetch(digest, SIZE, [author.node_id], 30))
    await until(lambda: all(lane.transfers for lane in links[0].lanes))
    for lane in links[0].lanes:
        lane.close(peer_connection.Code.DONE, "test")
    await until(lambda: not links[0].lanes)
    gate.set()
    assert await fetching == data


async def test_pause_of_author_counts_once_over_all_lanes(mesh, monkeypatch):
    """The author sends nothing at first, so the link and its lanes all run out of patience."""
    nodes = await mesh(1, 2)
    reader, author = nodes
    links = await with_lanes(nodes)
    data, digest, gate = publish_behind_gate(author)
    monkeypatch.setattr(Fetch, "_patience", lambda self, holder: 30.0 if gate.is_set() else 0.3)
    fetching = asyncio.create_task(
        reader.fetch(digest, SIZE, [author.node_id], 30, author=author.node_id)
    )
    try:
        await until(lambda: not links[0].lanes or fetching.done())
    finally:
        gate.set()
    assert await fetching == data


async def test_hanging_lanes_do_not_count_against_author_of_pieces(mesh, monkeypatch, quick):
    nodes = await mesh(1, 2)
    reader, author = nodes
    links = await with_lanes(nodes)
    asked = list(links[0].lanes)
    failed = list[bytes]()
    struck = list[bytes]()
    answer = Requests._answer

    async def answer_on_link(self, link, stream):
        if link.main is not None:
            await asyncio.Event().wait()
        await answer(self, link, stream)

    monkeypatch.setattr(Requests, "_answer", answer_on_link)
    monkeypatch.setattr(PeerMeasurements, "failed", lambda self, peer: failed.append(peer))
    monkeypatch.setattr(PieceFetch, "strike", lambda self, peer, index: struck.append(peer))
    data = content(SIZE)
    digest = author.publish(data)
    fetched = await reader._swarms.fetch(digest, SIZE, author.node_id, [author.node_id], 30)
    assert fetched == data
    assert not failed
    assert not struck
    assert all(lane.connection.close_reason() for lane in asked)
    assert reader.stats().retries >= len(asked)


async def test_small_transfers_choose_no_more_lanes_than_allowed(mesh):
    nodes = await mesh(1, 2)
    reader, author = nodes
    links = await with_lanes(nodes)
    blobs = [content(MIN_LANE_BYTES, number) for number in range(8)]
    for lane in links[0].lanes:
        lane.transfers = MAX_TRANSFERS_PER_LANE - 1
    most = 0
    work = Fetch._work

    async def watched(self, *given):
        nonlocal most
        most = max(most, *(lane.transfers for lane in links[0].lanes))
        await work(self, *given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Fetch, "_work", watched)
        fetches = [
            reader.fetch(author.publish(data), len(data), [author.node_id], 30) for data in blobs
        ]
        assert await asyncio.gather(*fetches) == blobs
    assert most == MAX_TRANSFERS_PER_LANE
    assert [lane.transfers for lane in links[0].lanes] == [MAX_TRANSFERS_PER_LANE - 1] * MOST_LANES


async def test_peer_that_closes_lanes_is_dialled_a_few_times(opened, rogue, monkeypatch):
    dialled = 0
    done = asyncio.Event()
    dial = connection_table.Links._dial
    open_lanes = connection_table.Links._open_lanes

    async def counted(self, peer, main=None):
        nonlocal dialled
        dialled += main is not None
        if dialled > MOST_LANES:
            done.set()
        await dial(self, peer, main)
        if main is not None:
            for lane in main.lanes:
                lane.close(peer_connection.Code.DONE, "test")
            await until(lambda: not main.lanes)

    async def opened_lanes(self, link):
        await open_lanes(self, link)
        done.set()

    monkeypatch.setattr(connection_table.Links, "_dial", counted)
    monkeypatch.setattr(connection_table.Links, "_open_lanes", opened_lanes)
    nodes = [await opened(1), await opened(2)]
    join(nodes)
    await until(lambda: all(node.reachable() for node in nodes))
    for node, other in (nodes, reversed(nodes)):
        node._links.lanes(other.node_id)
    await asyncio.wait_for(done.wait(), 10)
    assert dialled == MOST_LANES


async def test_lane_beyond_maximum_is_refused(opened, rogue):
    node = await opened(1)
    cheater = await rogue(2)
    connections = await rogue_with_lanes(cheater, node)
    surplus = await open_lane(cheater, node, INSTANCE)
    assert "no room" in await asyncio.wait_for(surplus.closed(), 10)
    assert not any(connection.close_reason() for connection in connections)
    assert len(link_to(node, cheater.node_id).lanes) == MOST_LANES


@pytest.mark.parametrize("connected", [True, False])
async def test_lane_without_link_of_same_process_is_refused(opened, rogue, connected):
    node = await opened(1)
    cheater = await rogue(2)
    node.set_members([cheater.node_id])
    if connected:
        await cheater.dial(node, instance=INSTANCE)
    lane = await open_lane(cheater, node, b"j" * 16)
    assert "no room" in await asyncio.wait_for(lane.closed(), 10)


async def test_stranger_cannot_open_lane(opened, rogue):
    node = await opened(1)
    stranger = await rogue(2)
    node.set_members([identity(3)])
    lane = await open_lane(stranger, node, INSTANCE)
    assert "not a member" in await asyncio.wait_for(lane.closed(), 10)


async def test_violation_on_lane_bans_peer_once(opened, rogue):
    node = await opened(1)
    cheater = await rogue(2)
    link, *lanes_of_cheater = await rogue_with_lanes(cheater, node)
    stream = await lanes_of_cheater[1].open_bi()
    await stream.send().write_all(frame(b"no request"))
    for connection in (link, *lanes_of_cheater):
        await asyncio.wait_for(connection.closed(), 10)
    await until(lambda: node.stats().violations == 1)
    assert node._links._bans.seconds_left(cheater.node_id) > 0


async def test_violation_in_greeting_of_lane_closes_its_link(opened, rogue):
    node = await opened(1)
    cheater = await rogue(2)
    link, *_ = await rogue_with_lanes(cheater, node)
    link_to(node, cheater.node_id).lanes[0].close(peer_connection.Code.DONE, "make room")
    lane = await cheater.endpoint.connect(node._endpoint.addr(), LANE_ALPN)
    stream = await lane.open_bi()
    await stream.send().write_all(frame(b"no greeting"))
    await asyncio.wait_for(link.closed(), 10)
    await until(lambda: node.stats().violations == 1)
    assert node._links._bans.seconds_left(cheater.node_id) > 0


async def test_violation_in_answer_on_lane_closes_its_link(opened, monkeypatch):
    nodes = [await opened(1), await opened(2)]
    join(nodes)
    await until(lambda: all(node.reachable() for node in nodes))
    links = [link_to(nodes[0], nodes[1].node_id), link_to(nodes[1], nodes[0].node_id)]
    number = 0 if links[0].dialer == nodes[0].node_id else 1

    async def greeted(connection, instance):
        raise ProtocolViolation("no greeting")

    monkeypatch.setattr(connection_table, "greet", greeted)
    dialer = nodes[number]
    other = nodes[1 - number]
    dialer._links.lanes(other.node_id)
    await asyncio.wait_for(links[number].closed.wait(), 10)
    assert dialer.stats().violations == 1
    assert dialer._links._bans.seconds_left(other.node_id) > 0


async def test_given_up_bytes_are_limited_over_all_lanes(mesh):
    link, _ = await with_lanes(await mesh(1, 2))
    for connection in (link, *link.lanes):
        connection.give_up(1 << 30)
    assert link.given_up == peer_connection._MOST_GIVEN_UP
    assert not any(lane.given_up for lane in link.lanes)


async def test_served_streams_are_limited_over_all_lanes(opened, rogue):
    node = await opened(1)
    other = await opened(3)
    cheater = await rogue(2)
    connections = await rogue_with_lanes(cheater, node)
    join([node, other], cheater.node_id)
    served = 0

    async def slow(peer: bytes, body: bytes) -> bytes:
        nonlocal served
        served += 1
        await asyncio.Event().wait()
        return b""

    async def echo(peer: bytes, body: bytes) -> bytes:
        return body

    node.handle("slow", slow)
    node.handle("echo", echo)
    for connection in connections:
        for _ in range(LANE_STREAMS_OPEN):
            stream = await connection.open_bi()
            await stream.send().write_all(frame_of(CallRequest("slow", 0, 9, 60_000)))
            await stream.send().finish()
    await until(lambda: served == STREAMS_SERVED)
    for _ in range(5):
        assert await other.request(node.node_id, "echo", b"x", 9, 30) == b"x"
    assert served == STREAMS_SERVED


async def test_unread_bytes_are_limited_over_all_lanes(opened, rogue, monkeypatch):
    monkeypatch.setattr(peer_connection, "MOST_UNREAD", 3 << 20)
    node = await opened(1)
    cheater = await rogue(2)
    connections = await rogue_with_lanes(cheater, node)
    for connection in connections:
        # These fit one connection, but not all of them.
        for _ in range(2):
            stream = await connection.open_bi()
            with contextlib.suppress(iroh.IrohError):
                await stream.send().write_all(
                    frame_of(CallRequest("slow", 0, 9, 60_000)) + bytes(1 << 20)
                )
    await asyncio.wait_for(connections[0].closed(), 10)
    await until(lambda: node.stats().violations == 1)


def test_lane_splits_its_holders_small_range() -> None:
    ours = b"a" * 32
    other = b"b" * 32
    filled = PartialBlob.of(WORTH_STEALING_FROM_LANE)
    first = filled.take((ours, 0), 0.0)
    assert first is not None
    assert filled.take((other, 0), 0.0) is None, "another holder takes larger rests only"
    second = filled.take((ours, 1), 0.0)
    assert second is not None
    assert (second.start, second.request_end) == (first.span.end, WORTH_STEALING_FROM_LANE)


def test_spread_cuts_waiting_ranges_until_all_workers_have_one() -> None:
    filled = PartialBlob.of(SIZE)
    filled.spread(4)
    assert [one.rest for one in filled.todo] == [SIZE // 4] * 4
    tiny = PartialBlob.of(WORTH_STEALING_FROM_LANE - 1)
    tiny.spread(4)
    assert len(tiny.todo) == 1
    assert partial_download.RANGE > lanes.MIN_LANE_BYTES
