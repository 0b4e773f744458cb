"""Test requests: each ends with the reply or a clear error, within the deadline."""

import asyncio
import logging
import time

import pytest

from aftermath.p2p.transport import (
    MAX_REQUEST,
    PeerUnreachable,
    RequestFailed,
    RequestRefused,
    short,
)
from aftermath.p2p.wire import Reply, ReplyStatus, frame_of


async def double(peer: bytes, body: bytes) -> bytes:
    return peer + body + body


async def test_handler_sees_requester_and_reply_arrives(mesh):
    first, second = await mesh(1, 2)
    first.handle("double", double)
    assert await second.request(first.node_id, "double", b"ab", 100, 5) == second.node_id + b"abab"
    assert await second.request(first.node_id, "double", b"", 32, 5) == second.node_id
    assert second.stats().received["request"] == 36 + 32


async def test_concurrent_requests_are_all_answered(mesh):
    first, second = await mesh(1, 2)
    first.handle("double", double)
    bodies = [b"%d" % number for number in range(200)]
    replies = await asyncio.gather(
        *(second.request(first.node_id, "double", body, 100, 20) for body in bodies)
    )
    assert replies == [second.node_id + body + body for body in bodies]


async def test_failed_request_tells_requester_without_details(mesh, caplog):
    first, second = await mesh(1, 2)

    async def broken(peer: bytes, body: bytes) -> bytes:
        raise RuntimeError("a secret detail")

    first.handle("broken", broken)
    first.handle("double", double)
    with pytest.raises(RequestFailed, match="answers no requests on this topic"):
        await second.request(first.node_id, "absent", b"", 10, 5)
    with pytest.raises(RequestFailed, match="failed to answer") as caught:
        await second.request(first.node_id, "broken", b"", 10, 5)
    assert "secret" not in str(caught.value)
    assert "a secret detail" in caplog.text
    assert "Traceback" not in caplog.text
    with pytest.raises(RequestFailed, match="larger than we accept"):
        await second.request(first.node_id, "double", b"", 31, 5)
    assert await second.request(first.node_id, "double", b"", 32, 5)


async def test_refusal_is_an_ordinary_answer(mesh, caplog):
    first, second = await mesh(1, 2)

    async def none_now(peer: bytes, body: bytes) -> bytes:
        raise RequestRefused("what we lack is our business")

    first.handle("scarce", none_now)
    with pytest.raises(
        RequestRefused, match=f"{short(first.node_id)} refused the request: 'scarce'"
    ) as caught:
        await second.request(first.node_id, "scarce", b"", 10, 5)
    assert "our business" not in str(caught.value)
    assert second.stats().peers[first.node_id].failures == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_failing_handler_is_logged_once_per_topic_and_peer(mesh, caplog):
    first, *askers = await mesh(1, 2, 3)

    async def broken(peer: bytes, body: bytes) -> bytes:
        raise ValueError("two\nlines \x1b[31m" + "long " * 1000)

    for topic in ("one", "two"):
        first.handle(topic, broken)
    for _ in range(3):
        for asker in askers:
            for topic in ("one", "two"):
                with pytest.raises(RequestFailed, match="failed to answer"):
                    await asker.request(first.node_id, topic, b"", 10, 5)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == len(set(lines)) == 4
    assert all(line.isprintable() and len(line) < 400 for line in lines)


async def test_slow_handler_ends_at_deadline(mesh):
    first, second = await mesh(1, 2)
    cancelled = asyncio.Event()

    async def slow(peer: bytes, body: bytes) -> bytes:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return b""

    first.handle("slow", slow)
    began = time.monotonic()
    with pytest.raises(PeerUnreachable):
        await second.request(first.node_id, "slow", b"", 10, 0.5)
    assert time.monotonic() - began < 1.5
    await asyncio.wait_for(cancelled.wait(), 5)


async def test_oversized_reply_is_not_read(opened, rogue):
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])

    async def huge(request, stream):
        await stream.send().write_all(frame_of(Reply(ReplyStatus.OK, 1 << 40)))
        await asyncio.Event().wait()

    await cheat.dial(node, huge)
    with pytest.raises(RequestFailed, match=rf"would send {1 << 40} bytes"):
        await node.request(cheat.node_id, "any", b"", 100, 5)


async def test_peer_without_answer_is_named(opened, rogue):
    node = await opened(1)
    mute = await rogue(2)
    node.set_members([mute.node_id])
    await mute.dial(node)
    with pytest.raises(PeerUnreachable, match=r"gave no answer on 'any' within 0\.3 s"):
        await node.request(mute.node_id, "any", b"", 100, 0.3)


@pytest.mark.parametrize(
    "junk", [b"\x00\x00\x00\x04junk", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"]
)
async def test_malformed_request_closes_connection(opened, rogue, junk):
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    connection = await cheat.dial(node)
    stream = await connection.open_bi()
    await stream.send().write_all(junk)
    assert "protocol violation" in await asyncio.wait_for(connection.closed(), 5)


async def test_invalid_own_request_is_a_value_error(opened):
    node = await opened(1)
    with pytest.raises(ValueError, match="publish a blob"):
        await node.request(bytes(32), "any", bytes(MAX_REQUEST + 1), 10, 1)
    with pytest.raises(ValueError, match="topic"):
        node.handle("t" * 65, double)
