"""Test announcements that no member makes: the receiver continues to listen."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from solders.keypair import Keypair

from aftermath.member.announced_results import Results
from aftermath.member.gossip import GossipListener
from aftermath.member.readiness import Readiness
from aftermath.rules.announcements import Ready, encode_announcement, statement
from member.result_inbox import ResultInbox
from p2p.nodes import join, secret, until

DEEP = b"\x91" * 1000 + b"\xc0"


def signed(seed: int, body: bytes) -> bytes:
    key = Keypair.from_seed(secret(seed))
    head = b"\x02"
    return bytes(key.pubkey()) + bytes(key.sign_message(statement(head, body))) + head + body


@pytest.mark.parametrize(
    "body", [DEEP, b"\x81\xa1x" + DEEP, b"\x92\x01" + DEEP], ids=["bare", "in a map", "in a list"]
)
async def test_deeply_nested_announcement_costs_only_its_sender(opened: Any, body: bytes) -> None:
    """The announcer is banned. When it returns with another key, its announcements are ignored."""
    ours, honest, *cheats = [await opened(seed) for seed in range(1, 7)]
    inbox = ResultInbox()
    readiness = Readiness()
    announcements = list[Ready]()
    readiness.hear = announcements.append  # type: ignore[method-assign]
    ports = replace(inbox.ports, transport=ours)
    results = Results(ports, inbox.role, inbox.workers.decode)
    listening = asyncio.ensure_future(
        GossipListener(ports, inbox.role, readiness, results).listen()
    )
    join([ours, honest, *cheats])
    await until(lambda: len(ours.reachable()) == 5)
    bodies = (
        body,
        msgspec.msgpack.encode([body, bytes(64)]),
        cheats[2].node_id + bytes(64) + body,
        signed(6, body),
    )
    for cheat, data in zip(cheats, bodies, strict=True):
        await cheat.announce(data)
    await until(lambda: ours.reachable() == {honest.node_id} and ours.stats().violations == 4)
    ready = Ready(sender=honest.node_id, signer=b"w" * 32, run_id="test", epoch=2, seat=1)
    await honest.announce(encode_announcement(ready, secret(2)))
    await until(lambda: bool(announcements) or listening.done())
    assert not listening.done()
    assert announcements == [ready]
    listening.cancel()
