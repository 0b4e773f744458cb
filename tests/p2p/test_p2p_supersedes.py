"""Test which of two connections of a pair stays.

Both sides must choose the same one, in any order.
"""

import asyncio
from typing import Any, cast

import iroh
import pytest

from aftermath.p2p import connection_table
from aftermath.p2p.limits import Quota
from aftermath.p2p.peer_connection import Link
from aftermath.p2p.transport import short
from aftermath.p2p.wire import Code
from p2p.nodes import until

SMALL = b"\x01" * 32
LARGE = b"\x02" * 32
OLD = b"o" * 16
NEW = b"n" * 16


def link(dialer: bytes, instance: bytes = OLD) -> Link:
    return Link(LARGE, cast(iroh.Connection, None), dialer, instance, 0.0, Quota(lambda: 0.0))


@pytest.mark.parametrize("dialer", [SMALL, LARGE], ids=["small", "large"])
def test_newer_connection_of_same_side_replaces_older(dialer: bytes) -> None:
    assert link(dialer).supersedes(link(dialer))


def test_simultaneous_dials_keep_smaller_ids_connection() -> None:
    assert link(SMALL).supersedes(link(LARGE))
    assert not link(LARGE).supersedes(link(SMALL))


@pytest.mark.parametrize("dialer", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("other", [SMALL, LARGE], ids=["small", "large"])
def test_restarted_peer_replaces_old_connection(dialer: bytes, other: bytes) -> None:
    assert link(dialer, NEW).supersedes(link(other, OLD))


async def test_redialling_peer_is_served_on_new_connection(
    opened: Any, rogue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only after crossing dials does the older connection linger.

    Here neither side has work under way on it.
    """
    monkeypatch.setattr(connection_table, "LINGER_S", 1000.0)
    node = await opened(1)
    peer = await rogue(2)
    node.set_members([peer.node_id])
    first = await peer.dial(node, instance=OLD)
    second = await peer.dial(node, instance=OLD)
    async with asyncio.timeout(15):
        await first.closed()
    assert "superseded" in (first.close_reason() or "")
    assert second.close_reason() is None
    assert node.reachable() == {peer.node_id}


async def test_two_processes_with_one_key_are_both_told(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    node = await opened(1)
    first = await opened(2)
    node.set_members([first.node_id])
    first.set_members([node.node_id])
    await until(lambda: node.reachable() == {first.node_id})
    second = await opened(2)
    second.set_members([node.node_id])
    await until(
        lambda: caplog.text.count("another process takes part with this member's key") == 2, 30.0
    )
    assert not any(
        "another process" in message
        for message in caplog.messages
        if short(first.node_id) in message
    )


@pytest.mark.parametrize(
    ("connected", "saying", "warning", "advice"),
    [
        (1, 1, "peer {} says", "Only one peer reports it"),
        (2, 1, "", ""),
        (2, 2, "peers {}, {} say", "Stop one of the"),
    ],
)
async def test_other_process_warning_needs_two_peers_or_only_one(
    opened: Any,
    rogue: Any,
    caplog: pytest.LogCaptureFixture,
    connected: int,
    saying: int,
    warning: str,
    advice: str,
) -> None:
    """Any peer can give this reason when it closes a connection."""
    node = await opened(1)
    peers = [await rogue(seed) for seed in range(2, 2 + connected)]
    node.set_members([peer.node_id for peer in peers])
    dialled = [await peer.dial(node) for peer in peers]
    for connection in dialled[:saying]:
        connection.close(int(Code.DUPLICATE), connection_table.OTHER_PROCESS.encode())
    await until(lambda: len(node.reachable()) == connected - saying)
    messages = [message for message in caplog.messages if "another process" in message]
    names = sorted(peer.node_id for peer in peers[:saying])
    assert [message.partition(":")[0] for message in messages] == [
        warning.format(*map(short, names))
    ] * bool(warning)
    assert all(advice in message for message in messages)
    assert saying > 1 or "Stop one" not in caplog.text


async def test_older_connection_dialled_by_other_side_lingers(
    opened: Any, rogue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests may be under way on it, from a side that has not seen the new one yet."""
    node = await opened(1)
    peer = await rogue(2)
    node.set_members([peer.node_id])
    smaller, larger = sorted((node.node_id, peer.node_id))
    first = await peer.dial(node, instance=OLD)
    contact = node._links._peers[peer.node_id]
    assert contact.link is not None
    contact.link.dialer = larger
    monkeypatch.setattr(connection_table, "LINGER_S", 1000.0)
    newer = Link(peer.node_id, contact.link.connection, smaller, OLD, 0.0, contact.quota)
    node._links._retire(contact.link, newer)
    await asyncio.sleep(0.2)
    assert first.close_reason() is None
    monkeypatch.setattr(connection_table, "LINGER_S", 0.0)
    node._links._retire(contact.link, newer)
    async with asyncio.timeout(15):
        await first.closed()
