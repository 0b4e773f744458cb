"""Tests of connections: members only, one for each pair, back after a restart, gone on close."""

import asyncio
import contextlib
import time

import iroh
import pytest

from aftermath.p2p import connection_table, incoming_connections
from aftermath.p2p.transport import BindFailed, PeerUnreachable, TransportError, short
from p2p.nodes import identity, join, until


async def test_members_hold_one_connection_per_pair(mesh):
    nodes = await mesh(1, 2, 3, 4)
    for node in nodes:
        stats = node.stats()
        assert stats.connects == 3
        assert stats.disconnects == 0
        assert all(peer.connected for peer in stats.peers.values())


async def test_simultaneous_dials_end_with_one_connection(opened, monkeypatch):
    monkeypatch.setattr(connection_table, "GRACE_S", 0.0)
    monkeypatch.setattr(connection_table, "LINGER_S", 0.0)
    nodes = [await opened(seed) for seed in (1, 2)]
    join(nodes)

    def settled() -> bool:
        counts = [node.stats() for node in nodes]
        return all(one.connects - one.disconnects == 1 for one in counts) and all(
            n.reachable() for n in nodes
        )

    await until(settled)
    nodes[0].handle("who", lambda peer, _: _echo(peer))
    async with asyncio.timeout(30):
        while True:  # a connection may still be replaced by one that was on its way
            with contextlib.suppress(PeerUnreachable):
                assert (
                    await nodes[1].request(nodes[0].node_id, "who", b"", 32, 5) == nodes[1].node_id
                )
                break
    await until(settled)


async def _echo(peer: bytes) -> bytes:
    return peer


async def test_stranger_is_refused_with_reason(opened):
    member = await opened(1)
    stranger = await opened(2)
    stranger.set_members([member.node_id])
    with pytest.raises(PeerUnreachable, match=r"not a member of this run") as caught:
        await stranger.request(member.node_id, "any", b"", 10, 1.5)
    assert short(member.node_id) in str(caught.value)
    assert member.stats().refused > 0
    assert member.stats().connects == 0
    assert not member.reachable()


async def test_request_to_nonmember_fails_at_once(opened):
    node = await opened(1)
    began = time.monotonic()
    with pytest.raises(PeerUnreachable, match="not a member"):
        await node.request(identity(9), "any", b"", 10, 30)
    assert time.monotonic() - began < 1


async def test_absent_peer_is_unreachable_within_deadline(opened):
    node = await opened(1)
    node.set_members([identity(9)])
    began = time.monotonic()
    with pytest.raises(PeerUnreachable, match=r"(?s)address is unknown.*Check that the peer runs"):
        await node.request(identity(9), "any", b"", 10, 0.3)
    assert time.monotonic() - began < 1.5


async def test_invalid_member_key_does_not_stop_others(opened):
    node = await opened(1)
    other = await opened(2)
    not_a_point = next(
        bytes([i]) + bytes(30) + b"\x7f"
        for i in range(256)
        if not _is_key(bytes([i]) + bytes(30) + b"\x7f")
    )
    join([node, other], not_a_point)
    await until(lambda: other.node_id in node.reachable())
    with pytest.raises(PeerUnreachable):
        await node.request(not_a_point, "any", b"", 10, 0.5)


def _is_key(data: bytes) -> bool:
    try:
        iroh.EndpointId.from_bytes(data)
    except iroh.IrohError:
        return False
    return True


async def test_removed_member_is_disconnected_and_may_return(mesh):
    first, second = await mesh(1, 2)
    first.set_members([])
    await until(lambda: not first.reachable() and not second.reachable())
    first.set_members([second.node_id])
    await until(lambda: bool(first.reachable()) and bool(second.reachable()))


async def test_restarted_peer_is_found_again(mesh, opened):
    first, second = await mesh(1, 2)
    await second.close()
    await until(lambda: not first.reachable())
    again = await opened(2)
    again.set_members([first.node_id])
    await until(lambda: bool(first.reachable()) and bool(again.reachable()))


async def test_changed_key_needs_changed_member_list(mesh, opened):
    first, second = await mesh(1, 2)
    await second.close()
    renewed = await opened(3)
    renewed.set_members([first.node_id])
    await until(lambda: first.stats().refused > 0)
    assert renewed.node_id not in first.reachable()
    first.set_members([renewed.node_id])
    await until(lambda: first.reachable() == {renewed.node_id})
    assert second.node_id not in first.stats().peers


async def test_occupied_port_error_names_fix(opened):
    node = await opened(1)
    port = int(node._endpoint.bound_sockets()[0].rpartition(":")[2])
    with pytest.raises(
        BindFailed, match=rf"(?s)UDP port {port} is already in use.*--bind-p2p-port"
    ):
        await opened(2, bind_port=port)


async def test_close_under_load_is_quick(mesh):
    nodes = await mesh(1, 2, 3)
    data = bytes(32 << 20)
    digest = nodes[0].publish(data)

    async def slow(peer: bytes, body: bytes) -> bytes:
        await asyncio.sleep(60)
        return b""

    nodes[0].handle("slow", slow)
    load = [
        asyncio.create_task(nodes[1].fetch(digest, len(data), [nodes[0].node_id], 60)),
        asyncio.create_task(nodes[2].fetch(digest, len(data), [nodes[0].node_id], 60)),
        asyncio.create_task(nodes[1].request(nodes[0].node_id, "slow", b"", 10, 60)),
    ]
    await until(lambda: nodes[0].stats().sent["blob"] > 1 << 20)
    for _ in range(100):
        await nodes[0].announce(b"x")
    began = time.monotonic()
    await nodes[0].close()
    assert time.monotonic() - began < 1
    for node in nodes[1:]:
        began = time.monotonic()
        await node.close()
        assert time.monotonic() - began < 1
    for task in load:
        task.cancel()
    await asyncio.gather(*load, return_exceptions=True)
    with pytest.raises(TransportError, match="closed"):
        await nodes[0].announce(b"late")


async def test_member_without_greeting_delays_nobody(opened, rogue, monkeypatch):
    monkeypatch.setattr(incoming_connections, "HANDSHAKE_S", 0.3)
    node = await opened(1)
    other = await opened(2)
    mute = await rogue(3)
    join([node, other], mute.node_id)
    connection = await mute.endpoint.connect(node._endpoint.addr(), b"aftermath/1")
    await until(lambda: other.node_id in node.reachable())
    assert "no greeting" in await asyncio.wait_for(connection.closed(), 5)
    assert mute.node_id not in node.reachable()
