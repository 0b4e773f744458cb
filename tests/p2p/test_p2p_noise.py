"""Announcements over real connections that no member makes: the member that hears them goes on listening."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from solders.keypair import Keypair

from aftermath.member.archive import Archive
from aftermath.member.member import Member
from aftermath.member.wishes import Wishes
from aftermath.rules.commitment import Ready, encode_announcement
from member.desk import Desk
from p2p.nodes import join, secret, until

DEEP = b"\x91" * 1000 + b"\xc0"


def signed(seed: int, body: bytes) -> bytes:
    key = Keypair.from_seed(secret(seed))
    return bytes(key.pubkey()) + bytes(key.sign_message(b"aftermath announcement 2\x00" + body)) + body


@pytest.mark.parametrize("body", [DEEP, b"\x81\xa1x" + DEEP, b"\x92\x01" + DEEP])
async def test_a_member_hears_the_next_announcement_after_one_nested_beyond_reading(opened: Any, body: bytes) -> None:
    ours, theirs = await opened(1), await opened(2)
    desk = Desk()
    given = replace(desk.ports, transport=ours), desk.role, desk.workers
    member = Member(*given, None, None, Archive(None, None, 1, {}), Wishes(), weight=1, parallel=1)  # type: ignore[arg-type]
    heard: list[Ready] = []
    member._readiness.hear = heard.append  # type: ignore[method-assign]
    listening = asyncio.ensure_future(member._listen())
    join([ours, theirs])
    await until(lambda: theirs.node_id in ours.reachable() and ours.node_id in theirs.reachable())
    for data in (body, msgspec.msgpack.encode([body, bytes(64)]), theirs.node_id + bytes(64) + body, signed(2, body)):
        await theirs.announce(data)
    ready = Ready(sender=theirs.node_id, signer=b"w" * 32, run_id="test", epoch=2, slot=1)
    await theirs.announce(encode_announcement(ready, secret(2)))
    await until(lambda: bool(heard) or listening.done())
    assert not listening.done()
    assert heard == [ready]
    listening.cancel()
