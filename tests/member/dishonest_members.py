"""Dishonest members: real members whose outgoing announcements, payloads or tensors are
replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from aftermath.member.announced_results import TOPIC as COMMITMENTS_TOPIC
from aftermath.replica.model_sharing import TOPIC as MODEL_TOPIC
from aftermath.replica.model_sharing import SnapshotManifest
from aftermath.rules.announcements import (
    Commitment,
    LevelPayload,
    decode_announcement,
    encode_announcement,
)
from aftermath.rules.seal import key_of, masked
from aftermath.sim.sim_member import SimMember
from aftermath.sim.sim_transport import SimTransport
from aftermath.sim.simulation import SimulatedRun

Lie = Callable[[Commitment, SimTransport], Awaitable[None]]


def falsify_results(sim_member: SimMember, lie: Lie) -> None:
    """Replace all later announcements of results by `lie`, and answer no questions."""
    transport = sim_member.transport
    assert transport is not None
    honest = transport.announce

    async def announce(data: bytes) -> None:
        announcement = decode_announcement(data)
        if isinstance(announcement, Commitment):
            await lie(announcement, transport)
        else:
            await honest(data)

    async def answer(peer: bytes, body: bytes) -> bytes:
        raise LookupError("it does not answer")

    transport.announce = announce  # type: ignore[method-assign]
    transport.handle(COMMITMENTS_TOPIC, answer)


def sign(sim_member: SimMember, commitment: Commitment) -> bytes:
    return encode_announcement(commitment, sim_member.identity.secret())


def tell_all(transport: SimTransport, raw: bytes) -> None:
    for peer in sorted(transport.reachable()):
        transport.tell(peer, raw)


def payload_of(
    sim_member: SimMember, commitment: Commitment, transport: SimTransport, level: int
) -> bytes:
    """Return the encoded payload, which the member serves masked."""
    return masked(
        transport._blobs[commitment.levels[level].blake3],
        key_of(sim_member.identity.secret(), commitment.place),
        level,
    )


def with_payload(
    sim_member: SimMember, commitment: Commitment, transport: SimTransport, level: int, data: bytes
) -> Commitment:
    """Return the commitment to these bytes, masked, instead of the member's own."""
    sealed = masked(data, key_of(sim_member.identity.secret(), commitment.place), level)
    levels = {**commitment.levels, level: LevelPayload(transport.publish(sealed), len(data))}
    return msgspec.structs.replace(commitment, levels=levels)


def garbage_in(sim_member: SimMember, levels: range) -> Lie:
    """Commit, at these levels, to bytes of the right size that are not a valid encoding."""

    async def lie(commitment: Commitment, transport: SimTransport) -> None:
        for level in levels:
            size = commitment.levels[level].size
            commitment = with_payload(sim_member, commitment, transport, level, b"\xff" * size)
        tell_all(transport, sign(sim_member, commitment))

    return lie


def hides(sim_member: SimMember, level: int) -> Lie:
    """Commit to a correct result and serve all levels except one."""

    async def lie(commitment: Commitment, transport: SimTransport) -> None:
        transport.retract(commitment.levels[level].blake3)
        tell_all(transport, sign(sim_member, commitment))

    return lie


def serves_late(sim_member: SimMember, level: int, seconds: float) -> Lie:
    """Commit to a correct result and serve one level with a delay."""

    async def lie(commitment: Commitment, transport: SimTransport) -> None:
        digest = commitment.levels[level].blake3
        asyncio.get_running_loop().call_later(seconds, transport.publish, transport._blobs[digest])
        transport.retract(digest)
        tell_all(transport, sign(sim_member, commitment))

    return lie


def hides_from(sim_member: SimMember, level: int, victims: Sequence[SimMember]) -> Lie:
    """Commit to a correct result and serve one level to all members except these."""
    hidden: set[bytes] = set()
    for victim in victims:
        assert victim.transport is not None
        never_fetch_from(victim.transport, sim_member.id, hidden)

    async def lie(commitment: Commitment, transport: SimTransport) -> None:
        hidden.add(commitment.levels[level].blake3)
        tell_all(transport, sign(sim_member, commitment))

    return lie


def never_fetch_from(transport: SimTransport, shunning: bytes, hidden: set[bytes]) -> None:
    """Let the peer `shunning` refuse the `hidden` payloads to this transport."""
    fetch = transport.fetch

    async def fetch_from_others(
        digest: bytes, size: int, holders: Sequence[bytes], deadline_s: float, **options: Any
    ) -> bytes:
        serving = [one for one in holders if one != shunning or digest not in hidden]
        return await fetch(digest, size, serving, deadline_s, **options)

    transport.fetch = fetch_from_others  # type: ignore[method-assign]


def conspire(sim_members: Sequence[SimMember], level: int) -> None:
    """Let these members serve a level of their results only to each other."""
    shared: dict[bytes, bytes] = {}
    for sim_member in sim_members:
        transport = sim_member.transport
        assert transport is not None
        _fetch_from(transport, shared)
        falsify_results(sim_member, _shares_with_few(sim_member, level, shared))


def _fetch_from(transport: SimTransport, shared: Mapping[bytes, bytes]) -> None:
    fetch = transport.fetch

    async def fetch_from_others(
        digest: bytes, size: int, holders: Sequence[bytes], deadline_s: float, **options: Any
    ) -> bytes:
        return shared.get(digest) or await fetch(digest, size, holders, deadline_s, **options)

    transport.fetch = fetch_from_others  # type: ignore[method-assign]


def _shares_with_few(sim_member: SimMember, level: int, shared: dict[bytes, bytes]) -> Lie:
    async def lie(commitment: Commitment, transport: SimTransport) -> None:
        digest = commitment.levels[level].blake3
        shared[digest] = transport._blobs[digest]
        transport.retract(digest)
        tell_all(transport, sign(sim_member, commitment))

    return lie


def nan_in(sim: SimulatedRun, sim_member: SimMember) -> Lie:
    """Commit to float votes that are NaN."""

    async def lie(commitment: Commitment, transport: SimTransport) -> None:
        for level in commitment.levels:
            data = bytearray(payload_of(sim_member, commitment, transport, level))
            start = sim.schema.results.index_bytes(level)
            data[start:] = np.full((len(data) - start) // 4, np.nan, "<f4").tobytes()
            commitment = with_payload(sim_member, commitment, transport, level, bytes(data))
        tell_all(transport, sign(sim_member, commitment))

    return lie


def other_result(sim: SimulatedRun, commitment: Commitment, transport: SimTransport) -> Commitment:
    """Return another valid result of the share: one vote of the common level has the other sign."""
    level, sim_member = (
        max(commitment.levels),
        next(sim_member for sim_member in sim.sim_members if sim_member.id == commitment.sender),
    )
    data = bytearray(payload_of(sim_member, commitment, transport, level))
    data[sim.schema.results.index_bytes(level)] ^= 1
    return with_payload(sim_member, commitment, transport, level, bytes(data))


def offer_garbage(sim: SimulatedRun, sim_member: SimMember, fill: float) -> None:
    """Answer every joiner with a valid manifest of tensors that are full of one number."""
    transport = sim_member.transport
    assert transport is not None

    async def answer(peer: bytes, body: bytes) -> bytes:
        levels = {
            level: [
                transport.publish(np.full(segment.size // 4, fill, "<f4").tobytes())
                for segment in sim.schema.state.of_level(level)
            ]
            for level in range(sim_member.tier, sim.schema.state.levels)
        }
        return msgspec.msgpack.encode(SnapshotManifest(sim.run.attested_step, levels))

    transport.handle(MODEL_TOPIC, answer)
    transport.handle = lambda topic, handler: None  # type: ignore[method-assign]


def offer_inconsistently(sim_member: SimMember, friends: Collection[bytes]) -> None:
    """Offer the real model to `friends` and a made-up one to all others."""
    transport = sim_member.transport
    member = sim_member.member
    assert transport is not None
    assert member is not None
    honest = member._share._answer

    async def answer(peer: bytes, body: bytes) -> bytes:
        reply = await honest(peer, body)
        if peer in friends:
            return reply
        true = msgspec.msgpack.decode(reply, type=SnapshotManifest)
        made_up = {
            level: [b"\1" * len(digest) for digest in digests]
            for level, digests in true.levels.items()
        }
        return msgspec.msgpack.encode(SnapshotManifest(true.step, made_up))

    transport.handle(MODEL_TOPIC, answer)
