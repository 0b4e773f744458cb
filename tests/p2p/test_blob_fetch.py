"""Test fetches of blobs: right bytes or a clear error, whatever holders do.

Bytes that have arrived are not requested again.
"""

import asyncio
import logging
import time

import pytest
from blake3 import blake3

from aftermath.p2p import (
    blob_fetch,
    connection_table,
    partial_download,
    peer_connection,
    peer_stats,
)
from aftermath.p2p.transport import BlobRejected, BlobUnavailable, short
from aftermath.p2p.wire import BlobRequest, Reply, ReplyStatus, frame_of, read_message
from p2p.nodes import blob_of, content, identity, join, stalling, until

SMALL = 300_000
LARGE = 12 << 20


@pytest.fixture
def honest_and_rogue(opened, rogue):
    """Return a fetching node, an honest holder of `data`, and a rogue with its own answers that is
    asked first.
    """

    async def build(answer, data: bytes):
        first, second = sorted((2, 3), key=identity)
        node = await opened(1)
        honest = await opened(second)
        cheat = await rogue(first)
        join([node, honest], cheat.node_id)
        await cheat.dial(node, answer)
        await until(lambda: honest.node_id in node.reachable())
        assert honest.publish(data) == blake3(data).digest()
        return node, honest, cheat

    return build


@pytest.mark.parametrize(("size", "holders"), [(1, 1), (SMALL, 3), (LARGE, 3), (LARGE + 1, 1)])
async def test_fetched_blob_is_delivered_once_and_exact(no_help, mesh, size, holders):
    nodes = await mesh(1, 2, 3, 4)
    data = content(size)
    digests = {node.publish(data) for node in nodes[:holders]}
    (digest,) = digests
    assert (
        await nodes[3].fetch(digest, size, [node.node_id for node in nodes[:holders]], 30) == data
    )
    stats = nodes[3].stats()
    assert size <= stats.received["blob"] <= size + partial_download.RANGE
    assert stats.retries == stats.rejected == 0
    if size >= partial_download.STRIPE_FROM and holders > 1:
        assert all(node.stats().sent["blob"] > 0 for node in nodes[:holders])


async def test_holder_of_abandoned_fetch_is_not_blamed(mesh, monkeypatch):
    """Bytes that are in flight when a fetch ends early still arrive, and nobody reads them."""
    monkeypatch.setattr(connection_table, "UNREAD_S", 0.02)
    node, holder = await mesh(1, 2)
    monkeypatch.setattr(peer_connection, "MOST_UNREAD", 3 << 20)
    data = content(LARGE)
    digest = holder.publish(data)
    for _ in range(6):
        before = node.stats().received["blob"]
        fetching = asyncio.create_task(node.fetch(digest, LARGE, [holder.node_id], 30))
        await until(lambda before=before: node.stats().received["blob"] > before)
        fetching.cancel()
        await asyncio.sleep(0.1)
    assert await node.fetch(digest, LARGE, [holder.node_id], 30) == data
    assert node.stats().violations == 0


async def test_kept_blob_is_served_until_retracted(mesh):
    first, second, third = await mesh(1, 2, 3)
    digest = first.publish(b"weights")
    await second.fetch(digest, 7, [first.node_id], 10)
    assert await second.fetch(digest, 7, [first.node_id], 10, keep=True) == b"weights"
    first.retract(digest)
    assert await third.fetch(digest, 7, [first.node_id, second.node_id], 10) == b"weights"
    assert await second.fetch(digest, 7, [], 1) == b"weights"
    second.retract(digest)
    with pytest.raises(BlobUnavailable, match="does not have it"):
        await third.fetch(digest, 7, [first.node_id, second.node_id], 10)


async def test_blob_source_is_read_piece_by_piece(mesh):
    first, second = await mesh(1, 2)
    data = content(LARGE)
    reads = []

    def read(offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return data[offset : offset + length]

    first.publish_source(blake3(data).digest(), LARGE, read)
    assert await second.fetch(blake3(data).digest(), LARGE, [first.node_id], 30) == data
    assert sum(length for _, length in reads) == LARGE
    assert max(length for _, length in reads) <= 1 << 20


@pytest.mark.parametrize("fault", ["short", "raises"])
async def test_failing_source_is_left_for_another_holder(quick, mesh, fault):
    first, second, third = await mesh(1, 2, 3)
    data = content(SMALL)

    def read(offset: int, length: int) -> bytes:
        if fault == "raises":
            raise OSError("disk gone")
        return data[offset : offset + length - 1]

    first.publish_source(blake3(data).digest(), SMALL, read)
    second.publish(data)
    assert (
        await third.fetch(blake3(data).digest(), SMALL, [first.node_id, second.node_id], 20) == data
    )


@pytest.mark.parametrize("stated", [SMALL - 1, SMALL + 1, 1 << 60, 0])
async def test_wrong_blob_size_is_refused_before_first_byte(opened, rogue, stated):
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    data = content(SMALL)
    await cheat.dial(node, blob_of(data, stated=stated))
    with pytest.raises(BlobRejected, match=f"{short(cheat.node_id)}: states {stated} bytes"):
        await node.fetch(blake3(data).digest(), SMALL, [cheat.node_id], 10)
    assert node.stats().received["blob"] == 0
    assert node.stats().rejected == 1
    assert len(cheat.requests) == 1


async def test_wrong_blob_hash_blames_holder_and_asks_next(honest_and_rogue):
    data = content(SMALL)
    node, honest, cheat = await honest_and_rogue(blob_of(content(SMALL, seed=2)), data)
    digest = blake3(data).digest()
    with pytest.raises(BlobRejected, match=short(cheat.node_id)):
        await node.fetch(digest, SMALL, [cheat.node_id], 10)
    assert await node.fetch(digest, SMALL, [cheat.node_id, honest.node_id], 10) == data
    assert len(cheat.requests) == 1, "a proven liar is asked last"
    assert node.stats().peers[cheat.node_id].failures >= 3


async def test_repeated_false_blobs_are_logged_once(opened, rogue, caplog):
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    await cheat.dial(node, blob_of(content(SMALL, seed=2)))
    for seed in (3, 4, 5):
        with pytest.raises(BlobRejected, match="another BLAKE3 hash"):
            await node.fetch(blake3(content(SMALL, seed=seed)).digest(), SMALL, [cheat.node_id], 10)
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1
    assert node.stats().rejected == 3


async def test_one_false_holder_among_many_is_identified(mesh, rogue):
    nodes = await mesh(1, 2, 3)
    cheat = await rogue(4)
    join(nodes, cheat.node_id)
    data = content(LARGE)
    for node in nodes[1:]:
        node.publish(data)
    await cheat.dial(nodes[0], blob_of(bytes(LARGE)))
    holders = [nodes[1].node_id, nodes[2].node_id, cheat.node_id]
    assert await nodes[0].fetch(blake3(data).digest(), LARGE, holders, 60) == data
    assert cheat.requests, "the test needs the liar to have taken part"
    stats = nodes[0].stats()
    assert stats.peers[cheat.node_id].failures >= 3
    assert all(stats.peers[node.node_id].failures == 0 for node in nodes[1:])
    assert stats.rejected == 1


async def test_truncated_blob_is_resumed_elsewhere(no_help, honest_and_rogue):
    data = content(SMALL)
    node, honest, cheat = await honest_and_rogue(blob_of(data, stop_after=100_000), data)
    assert (
        await node.fetch(blake3(data).digest(), SMALL, [cheat.node_id, honest.node_id], 10) == data
    )
    stats = node.stats()
    assert stats.received["blob"] == SMALL, "no byte that arrived is sent again"
    assert honest.stats().sent["blob"] == SMALL - 100_000
    assert stats.retries == 1


async def test_unexpected_fetch_error_costs_only_its_holder(honest_and_rogue, monkeypatch, caplog):
    """After any error, the blob comes from another holder, and the error is logged once."""
    data = content(SMALL)
    node, honest, cheat = await honest_and_rogue(blob_of(data), data)
    read = blob_fetch.Fetch._read

    async def fragile(self, attempt, link, pull):
        if link.peer == cheat.node_id:
            raise RecursionError("nobody has thought of it")
        await read(self, attempt, link, pull)

    monkeypatch.setattr(blob_fetch.Fetch, "_read", fragile)
    digest = blake3(data).digest()
    for _ in range(2):
        assert await node.fetch(digest, SMALL, [cheat.node_id, honest.node_id], 10) == data
    with pytest.raises(BlobUnavailable, match="caused a RecursionError"):
        await node.fetch(digest, SMALL, [cheat.node_id], 10)
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1


async def test_always_truncating_holder_is_abandoned(opened, rogue):
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    data = content(SMALL)
    await cheat.dial(node, blob_of(data, stop_after=1))
    with pytest.raises(BlobUnavailable, match=r"no holder is left.*ended early at byte 3"):
        await node.fetch(blake3(data).digest(), SMALL, [cheat.node_id], 30)


@pytest.mark.parametrize("after", [0, 100_000])
async def test_stalled_holder_is_replaced_at_its_position(honest_and_rogue, monkeypatch, after):
    monkeypatch.setattr(peer_stats, "PATIENCE_S", 0.5)
    data = content(SMALL)
    node, honest, cheat = await honest_and_rogue(stalling(data, after), data)
    began = time.monotonic()
    assert (
        await node.fetch(blake3(data).digest(), SMALL, [cheat.node_id, honest.node_id], 20) == data
    )
    assert time.monotonic() - began < 5
    assert honest.stats().sent["blob"] == SMALL - after


async def test_idle_holders_take_over_from_slow_one(no_help, honest_and_rogue, monkeypatch):
    monkeypatch.setattr(peer_stats, "PATIENCE_S", 0.8)
    monkeypatch.setattr(partial_download, "RANGE", LARGE // 2)
    data = content(LARGE)
    node, honest, cheat = await honest_and_rogue(stalling(data, 1 << 20), data)
    assert (
        await node.fetch(blake3(data).digest(), LARGE, [cheat.node_id, honest.node_id], 30) == data
    )
    assert node.stats().received["blob"] == LARGE


async def test_trickle_is_not_progress(opened, rogue, monkeypatch):
    monkeypatch.setattr(peer_stats, "PATIENCE_S", 0.25)
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    data = content(SMALL)

    async def trickle(request, stream):
        await blob_of(data, stop_after=0)(request, _Unfinished(stream))
        for position in range(request.offset, request.offset + 1000):
            await stream.send().write_all(data[position : position + 1])
            await asyncio.sleep(0.05)

    await cheat.dial(node, trickle)
    began = time.monotonic()
    with pytest.raises(BlobUnavailable, match="no progress"):
        await node.fetch(blake3(data).digest(), SMALL, [cheat.node_id], 30)
    assert time.monotonic() - began < 10


class _Unfinished:
    """A stream whose answer continues after the first part."""

    def __init__(self, stream) -> None:
        self._stream = stream

    def send(self):
        return self

    async def write_all(self, data: bytes) -> None:
        if data:
            await self._stream.send().write_all(data)

    async def finish(self) -> None:
        """Keep the stream open, because the trickle follows."""


async def test_fetch_without_reachable_peer_fails_at_deadline(opened):
    node = await opened(1)
    node.set_members([identity(9)])
    began = time.monotonic()
    with pytest.raises(BlobUnavailable, match=r"did not arrive within 0\.3 s"):
        await node.fetch(bytes(32), 100, [identity(9)], 0.3)
    assert time.monotonic() - began < 1.5
    with pytest.raises(BlobUnavailable, match="no holder was named"):
        await node.fetch(bytes(32), 100, [node.node_id], 1.0)
    with pytest.raises(ValueError, match="at least one byte"):
        await node.fetch(bytes(32), 0, [identity(9)], 1.0)


async def test_holder_without_blob_is_skipped(mesh):
    first, second, third = await mesh(1, 2, 3)
    digest = second.publish(b"here")
    assert await third.fetch(digest, 4, [first.node_id, second.node_id], 10) == b"here"


async def test_blob_published_slightly_late_is_fetched(mesh):
    first, second = await mesh(1, 2)
    task = asyncio.create_task(second.fetch(blake3(b"soon").digest(), 4, [first.node_id], 10))
    await asyncio.sleep(0.1)
    first.publish(b"soon")
    assert await task == b"soon"


async def test_range_outside_blob_is_refused(mesh, rogue):
    (node,) = await mesh(1)
    asker = await rogue(2)
    node.set_members([asker.node_id])
    digest = node.publish(b"12345")
    connection = await asker.dial(node)
    stream = await connection.open_bi()
    await stream.send().write_all(frame_of(BlobRequest(digest, 3, 3)))
    await stream.send().finish()
    assert await read_message(stream.recv(), Reply) == Reply(ReplyStatus.REFUSED, 5)
    assert await stream.recv().read(10) == b""
