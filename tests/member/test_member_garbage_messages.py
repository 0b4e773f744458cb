"""Garbage from one peer neither ends a member nor changes a replica."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from aftermath.member.announced_results import TOPIC as COMMITMENTS
from aftermath.member.gossip import GossipListener
from aftermath.p2p.transport import Announcement, PeerUnreachable
from aftermath.replica.model_sharing import TOPIC as MODEL
from aftermath.rules.announcements import MAX_ANNOUNCEMENT_BYTES, Ready, statement
from aftermath.sim.sim_member import SimMember
from aftermath.sim.sim_transport import SimTransport
from aftermath.sim.simulation import SimulatedRun, play
from fuzz.mutations import mutations, nested
from member.dishonest_members import sign
from member.short_runs import SHORT

READY = b"\x02"  # the head of an announcement that is not a commitment


def noise(sim_member: SimMember, data: bytes) -> Iterator[bytes]:
    """Yield announcements that no member sends: too deeply nested, signed or not, and changed real
    ones.
    """
    unknown = b"\x81\xa1x"  # a map with one unknown field
    for body in (nested(1000), unknown + nested(1000), nested(MAX_ANNOUNCEMENT_BYTES - 100)):
        yield body
        yield msgspec.msgpack.encode([body, bytes(64)])
        yield sim_member.id + bytes(64) + body
        yield (
            sim_member.id
            + bytes(sim_member.identity.sign_message(statement(READY, body)))
            + READY
            + body
        )
    yield from mutations(random.Random(5), [data], 100)


async def junk(peer: bytes, body: bytes) -> bytes:
    """Return an answer with deep nesting where bytes are expected."""
    del peer, body
    return nested(5000)


async def pester(sim_member: SimMember, transport: SimTransport) -> None:
    """Send and answer garbage until cancelled."""
    for topic in (COMMITMENTS, MODEL):
        transport.handle(topic, junk)
    message = sign(
        sim_member,
        Ready(
            sender=sim_member.id,
            signer=bytes(sim_member.key.pubkey()),
            run_id="sim",
            epoch=0,
            seat=0,
        ),
    )
    while True:
        for data in noise(sim_member, message):
            for peer in sorted(transport.reachable()):
                transport.tell(peer, data)
        for peer in sorted(transport.reachable()):
            for body in (nested(1000), b"\x92\x01" + nested(1000), b"", message):
                for topic in (COMMITMENTS, MODEL):
                    try:
                        await transport.request(peer, topic, body, 1 << 20, 1.0)
                    except PeerUnreachable:
                        pass
        await asyncio.sleep(0.5)


@pytest.mark.slow
def test_garbage_messages_change_no_replica(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        pest, *_ = [sim.add(tier) for tier in (0, 0, 1, 2)]
        await sim.until_round(1)
        assert pest.transport is not None
        pestering = asyncio.ensure_future(pester(pest, pest.transport))
        await sim.until_finished()
        assert not pestering.done()
        pestering.cancel()

    sim = play(tmp_path, scenario, init_min_clients=4, **SHORT)
    pest, *others = sim.sim_members
    assert sim.check(hostile=[pest]) > 0
    assert sim.run.lost_sequences == 0
    for sim_member in others:
        assert len(sim_member.saw("applied")) == 6
        assert len([event for event in sim_member.saw("refused") if event.get("peer")]) == 1, (
            "logged once"
        )
        assert sim_member.transport is not None
        assert len({who for who, _ in sim_member.transport.barred}) == 1


def test_message_handler_error_costs_only_that_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Stands for parser bugs: the handler fails at every announcement of one member."""
    errors = (RecursionError, MemoryError, KeyError, AssertionError)
    count = 0

    async def scenario(sim: SimulatedRun) -> None:
        odd, *_ = [sim.add(tier) for tier in (0, 1, 2, 0)]
        hear = GossipListener._hear

        def fails(self: GossipListener, announcement: Announcement) -> None:
            nonlocal count
            if announcement.sender == odd.id and self._ports.transport is not odd.transport:
                count += 1
                raise errors[count % len(errors)]("as a parser might")
            hear(self, announcement)

        monkeypatch.setattr(GossipListener, "_hear", fails)
        await sim.until(lambda run: run.epoch == 1)

    sim = play(tmp_path, scenario, init_min_clients=4, rounds_per_epoch=3)
    assert count > len(errors)
    assert sim.check(dropped=sim.sim_members[:1]) > 0
    assert caplog.text.count("logged once") == 3
