"""Test announcements: each arrives once, again after a reconnect, and no peer delays the others."""

import asyncio

import pytest

from aftermath.p2p import announce, limits
from aftermath.p2p.transport import MAX_ANNOUNCEMENT, Announcement
from aftermath.p2p.wire import frame
from p2p.nodes import join, until


async def take(reader, count: int) -> list[Announcement]:
    """Return the next `count` announcements."""
    async with asyncio.timeout(15):
        return [await anext(reader) for _ in range(count)]


async def test_announcement_reaches_all_other_members(mesh):
    nodes = await mesh(1, 2, 3)
    readers = [node.announcements() for node in nodes]
    await nodes[0].announce(b"commitment")
    for reader in readers[1:]:
        assert await take(reader, 1) == [Announcement(nodes[0].node_id, b"commitment")]
    await nodes[1].announce(b"own come not back")
    assert (await take(readers[0], 1))[0].sender == nodes[1].node_id


async def test_announcements_are_ordered_and_delivered_once(mesh):
    first, second = await mesh(1, 2)
    reader = second.announcements()
    for data in (b"a", b"b", b"a", b"c"):
        await first.announce(data)
    assert [one.data for one in await take(reader, 3)] == [b"a", b"b", b"c"]
    await until(lambda: second.stats().duplicates >= 1)


async def test_first_subscriber_gets_earlier_announcements(mesh):
    first, second = await mesh(1, 2)
    await first.announce(b"early")
    await until(lambda: second.stats().received["announce"] > 0)
    readers = [second.announcements(), second.announcements()]
    await first.announce(b"late")
    assert [one.data for one in await take(readers[0], 2)] == [b"early", b"late"]
    assert [one.data for one in await take(readers[1], 1)] == [b"late"]


async def test_late_or_returning_peer_gets_last_64_announcements(mesh, opened):
    first, second = await mesh(1, 2)
    reader = second.announcements()
    await first.announce(b"seen")
    assert (await take(reader, 1))[0].data == b"seen"
    second.set_members([])
    await until(lambda: not first.reachable())
    for number in range(70):
        await first.announce(b"missed %d" % number)
    second.set_members([first.node_id])
    assert [one.data for one in await take(reader, 64)] == [
        b"missed %d" % number for number in range(6, 70)
    ]
    second.set_members([])
    await until(lambda: not first.reachable())
    second.set_members([first.node_id])
    await until(lambda: second.stats().duplicates >= 64)  # crossing dials replay twice
    await first.announce(b"fresh")
    assert (await take(reader, 1))[0].data == b"fresh"


async def test_slow_subscriber_loses_oldest_and_delays_nobody(mesh, monkeypatch):
    monkeypatch.setattr(announce, "INBOX", 8)
    first, second = await mesh(1, 2)
    slow = second.announcements()
    quick = second.announcements()
    for number in range(50):
        await first.announce(b"%d" % number)
        assert (await take(quick, 1))[0].data == b"%d" % number
    assert [one.data for one in await take(slow, 8)] == [b"%d" % number for number in range(42, 50)]
    assert second.stats().dropped == 42


async def test_peer_not_reading_costs_only_itself(opened, rogue, monkeypatch):
    monkeypatch.setattr(limits, "ANNOUNCEMENT_RATE", 1e9)
    first = await opened(1)
    second = await opened(2)
    deaf = await rogue(3)
    join([first, second], deaf.node_id)
    await deaf.dial(first)
    await until(lambda: second.node_id in first.reachable())
    reader = second.announcements()
    for number in range(1500):
        await first.announce(number.to_bytes(4, "big") + bytes(MAX_ANNOUNCEMENT - 4))
        if number % 50 == 49:
            received = await take(reader, 50)
            assert [int.from_bytes(one.data[:4], "big") for one in received] == list(
                range(number - 49, number + 1)
            )
    assert first.stats().dropped > 0
    assert second.stats().dropped == 0


async def test_announcement_flood_is_read_at_allowed_rate(opened, rogue, monkeypatch):
    monkeypatch.setattr(limits, "ANNOUNCEMENT_RATE", 100.0)
    monkeypatch.setattr(limits, "ANNOUNCEMENT_BURST", 10.0)
    node = await opened(1)
    flooder = await rogue(2)
    node.set_members([flooder.node_id])
    reader = node.announcements()
    connection = await flooder.dial(node)
    stream = await connection.open_uni()
    began = asyncio.get_running_loop().time()
    await stream.write_all(b"".join(frame(b"%d" % number) for number in range(60)))
    assert len(await take(reader, 60)) == 60
    assert asyncio.get_running_loop().time() - began >= 50 / limits.ANNOUNCEMENT_RATE * 0.9
    assert node.stats().throttled > 0


@pytest.mark.parametrize("junk", [(MAX_ANNOUNCEMENT + 1).to_bytes(4, "big"), b"\xff\xff\xff\xff"])
async def test_oversized_announcement_closes_connection(opened, rogue, junk):
    node = await opened(1)
    cheat = await rogue(2)
    node.set_members([cheat.node_id])
    connection = await cheat.dial(node)
    stream = await connection.open_uni()
    await stream.write_all(junk + bytes(100))
    assert "protocol violation" in await asyncio.wait_for(connection.closed(), 5)
    await until(lambda: node.stats().violations == 1)
    assert not node.reachable()


async def test_oversized_own_announcement_is_an_error_with_fix(opened):
    node = await opened(1)
    with pytest.raises(ValueError, match=r"at most 4096.*publish a blob"):
        await node.announce(bytes(MAX_ANNOUNCEMENT + 1))


async def test_readers_end_when_transport_closes(mesh):
    first, second = await mesh(1, 2)
    reader = second.announcements()
    await first.announce(b"last")
    await until(lambda: second.stats().received["announce"] > 0)
    await second.close()
    assert [one.data async for one in reader] == [b"last"]
