"""Test what silent, slow and empty holders cost a fetch and later fetches."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from blake3 import blake3

from aftermath.p2p import peer_stats
from aftermath.p2p.iroh import IrohTransport
from aftermath.p2p.transport import BlobUnavailable
from aftermath.p2p.wire import Reply, ReplyStatus, frame_of
from p2p.nodes import Answer, Rogue, blob_of, content, identity, join, stalling, until

MIB = 1 << 20


@dataclass
class Trio:
    """A fetching node, two honest holders, and a rogue whose id is the lowest of all."""

    node: IrohTransport
    honest: list[IrohTransport]
    cheat: Rogue

    @property
    def holders(self) -> list[bytes]:
        """Return the holders, the rogue first."""
        return [self.cheat.node_id, *(one.node_id for one in self.honest)]

    def publish(self, data: bytes) -> bytes:
        """Let both honest holders serve `data`."""
        (digest,) = {one.publish(data) for one in self.honest}
        return digest

    async def fetch(self, data: bytes, deadline_s: float) -> bool:
        """Publish `data` at the honest holders and fetch it, with the rogue named first.

        Return whether it arrives.
        """
        return (
            await self.node.fetch(self.publish(data), len(data), self.holders, deadline_s) == data
        )


@pytest.fixture
def trio(opened, rogue) -> Callable[[Answer], Awaitable[Trio]]:
    async def build(answer: Answer) -> Trio:
        lowest, *others = sorted((1, 2, 3, 4), key=identity)
        nodes = [await opened(seed) for seed in others]
        cheat = await rogue(lowest)
        join(nodes, cheat.node_id)
        await cheat.dial(nodes[0], answer)
        await until(lambda: len(nodes[0].reachable()) == 3)
        return Trio(nodes[0], nodes[1:], cheat)

    return build


async def mute(request, stream) -> None:
    await asyncio.Event().wait()


async def lacking(request, stream) -> None:
    await stream.send().write_all(frame_of(Reply(ReplyStatus.MISSING, 0)))
    await stream.send().finish()


def trickling(data: bytes, piece: int, seconds: float) -> Answer:
    """Send `piece` bytes, and wait `seconds` after each."""

    async def answer(request, stream) -> None:
        await stream.send().write_all(frame_of(Reply(ReplyStatus.OK, len(data))))
        for start in range(request.offset, request.offset + request.length, piece):
            await stream.send().write_all(
                data[start : min(start + piece, request.offset + request.length)]
            )
            await asyncio.sleep(seconds)
        await stream.send().finish()

    return answer


async def test_silent_holder_is_awaited_once_and_then_asked_last(endless_patience, trio):
    three = await trio(mute)
    for seed in range(12):
        assert await three.fetch(content(MIB, seed), 60)
    assert 1 <= len(three.cheat.requests) <= 6, "on a slow machine the others may seem silent too"
    assert three.node.stats().peers[three.cheat.node_id].failures == 0, (
        "nobody waited until it was given up"
    )
    assert three.node.stats().rejected == 0


async def test_concurrent_fetches_all_pass_silent_holder(endless_patience, trio):
    three = await trio(mute)
    assert all(await asyncio.gather(*(three.fetch(content(MIB, seed), 200) for seed in range(12))))
    assert three.node.stats().peers[three.cheat.node_id].failures == 0, (
        "nobody waited until it was given up"
    )


async def test_rotated_holder_orders_spread_load(mesh):
    node, *holders = await mesh(1, 2, 3, 4)
    ids = [one.node_id for one in holders]
    for seed in range(6):
        data = content(MIB, seed)
        (digest,) = {one.publish(data) for one in holders}
        turn = seed % 3
        assert await node.fetch(digest, len(data), ids[turn:] + ids[:turn], 30) == data
    assert all(one.stats().sent["blob"] >= MIB for one in holders)


async def test_missing_blob_at_holder_is_not_a_failure(mesh):
    node, lacking, holding = await mesh(1, 2, 3)
    holders = [lacking.node_id, holding.node_id]
    for number in range(peer_stats.FAILURES_TO_EXCLUDE + 1):
        data = b"%d" % number
        assert await node.fetch(holding.publish(data), len(data), holders, 10) == data
    assert node.stats().peers[lacking.node_id].failures == 0
    digest = lacking.publish(b"both")
    holding.publish(b"both")
    assert await node.fetch(digest, 4, holders, 10) == b"both"
    assert lacking.stats().sent["blob"] == 4, "it is asked in its turn"


async def test_failed_holder_is_asked_once_others_lack_blob(rogue, mesh):
    node, holding = await mesh(1, 2)
    lacks = await rogue(3)
    join([node, holding], lacks.node_id)
    await lacks.dial(node, lacking)
    for _ in range(peer_stats.FAILURES_TO_EXCLUDE):
        node._pace.failed(holding.node_id)
    data = content(1000)
    assert (
        await node.fetch(holding.publish(data), len(data), [holding.node_id, lacks.node_id], 10)
        == data
    )
    assert len(lacks.requests) == 1, "it is not asked again and again before the one that has it"


async def test_restarted_holder_is_asked_in_its_turn(opened, mesh):
    node, other, dying = await mesh(1, 2, 3)
    await dying.close()
    holders = [dying.node_id, other.node_id]
    for _ in range(peer_stats.FAILURES_TO_EXCLUDE):
        node._pace.failed(dying.node_id)
    back = await opened(3)
    join([node, other, back])
    await until(
        lambda: len(node.reachable()) == len(other.reachable()) == len(back.reachable()) == 2
    )
    data = content(MIB)
    other.publish(data)
    assert await node.fetch(back.publish(data), len(data), holders, 10) == data
    assert back.stats().sent["blob"] == MIB


async def test_holder_pending_at_deadline_is_asked_last(no_help, trio):
    data = content(16 * MIB)
    three = await trio(trickling(data, 65536, 0.1))
    with pytest.raises(BlobUnavailable):
        await three.node.fetch(blake3(data).digest(), len(data), [three.cheat.node_id], 1)
    assert three.node.stats().peers[three.cheat.node_id].failures >= 1
    count = len(three.cheat.requests)
    assert await three.fetch(content(MIB), 30)
    assert len(three.cheat.requests) == count


async def test_holder_too_slow_for_deadline_gets_help(quick, trio):
    data = content(MIB)
    three = await trio(trickling(data, 2048, 0.025))  # 13 s for all of it
    assert await three.fetch(data, 5)
    assert three.node.stats().received["blob"] < MIB + 65536, "what is taken over is not sent twice"


async def test_holder_fast_enough_for_deadline_gets_no_help(quick, trio):
    data = content(MIB)
    three = await trio(trickling(data, 25_600, 0.025))  # 1 s for all of it
    assert await three.fetch(data, 60)
    assert not any(one.stats().sent["blob"] for one in three.honest)


async def test_silent_range_is_taken_over_early(endless_patience, trio):
    data = content(10 * MIB)
    three = await trio(stalling(data, MIB))
    assert await three.fetch(data, 200)
    assert three.node.stats().peers[three.cheat.node_id].failures == 0, (
        "nobody waited until it was given up"
    )
    assert three.cheat.requests


async def test_late_holder_answer_still_counts(quick, trio):
    """A second holder is asked too, but the first one delivers."""
    data = content(MIB)
    helper_asked = asyncio.Event()
    over = threading.Event()
    loop = asyncio.get_running_loop()

    async def late(request, stream) -> None:
        await helper_asked.wait()
        await blob_of(data)(request, stream)

    def never(offset: int, length: int) -> bytes:
        loop.call_soon_threadsafe(helper_asked.set)
        over.wait(60)
        return data[offset : offset + length]

    three = await trio(late)
    for one in three.honest:
        one.publish_source(blake3(data).digest(), len(data), never)
    try:
        assert await three.node.fetch(blake3(data).digest(), len(data), three.holders, 30) == data
    finally:
        over.set()
    assert sum(one.stats().sent["blob"] for one in three.honest) == 0


async def test_false_bytes_before_silence_are_discarded(quick, trio):
    data = content(MIB)
    three = await trio(stalling(bytes(MIB), 100_000))
    assert await three.fetch(data, 30)
    stats = three.node.stats()
    assert stats.rejected == 1
    assert stats.peers[three.cheat.node_id].failures >= peer_stats.FAILURES_TO_EXCLUDE
    assert all(stats.peers[one.node_id].failures == 0 for one in three.honest)
