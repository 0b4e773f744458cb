"""Fetch the model from peers: members offer snapshots, and a joiner fetches tensors from several.

The unit is the schema's segment, so a small tier fetches only what it holds. Sizes come from the
schema, and only offers with the attested hash are used. Each segment has a digest, so a false
segment is detected on arrival and fetched from another peer.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from blake3 import blake3
from torch import Tensor

from aftermath.base.bounded import Malformed, msgpack_as
from aftermath.base.concurrency import Worker, every
from aftermath.base.merkle import DIGEST
from aftermath.base.text import counted
from aftermath.coordinator.ports import Clock
from aftermath.model.levels import Segment
from aftermath.model.schema import StateSchema
from aftermath.model.segments import SegmentError, level_root, segment_bytes, write_segment
from aftermath.p2p.limits import LogLimits
from aftermath.p2p.transport import RequestRefused, Transport, TransportError

TOPIC = "model"
_complaints = LogLimits(logging.getLogger(__name__))


class ModelUnavailable(Exception):
    """No peer could deliver a level of the model. The message names the level and the reason."""


class SnapshotManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A peer's offer: the step of its snapshot, and each level's segment digests in order.

    Digests are BLAKE3.
    """

    step: int
    levels: dict[int, list[bytes]]


@dataclass(frozen=True)
class Snapshot:
    """A copy of a replica, taken at cooldown: its manifest and the bytes behind every digest."""

    manifest: SnapshotManifest
    blobs: Mapping[bytes, bytes]


def snapshot(params: Mapping[str, Tensor], schema: StateSchema, tier: int, step: int) -> Snapshot:
    """Copy a tier's segments of a `Schema.shared`. Slow: call it on the replica's thread."""
    levels: dict[int, list[bytes]] = {}
    blobs: dict[bytes, bytes] = {}
    for level in range(tier, schema.levels):
        levels[level] = []
        for segment in schema.of_level(level):
            data = segment_bytes(params, segment)
            digest = blake3(data).digest()
            levels[level].append(digest)
            blobs[digest] = data
    return Snapshot(SnapshotManifest(step, levels), blobs)


class ModelShare:
    """Offers this member's snapshot to its peers."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.manifest: SnapshotManifest | None = None
        self._digests: list[bytes] = []
        transport.handle(TOPIC, self._answer)

    async def _answer(self, peer: bytes, body: bytes) -> bytes:
        del peer, body
        if self.manifest is None:
            raise RequestRefused("this member has no snapshot to offer now")
        return msgspec.msgpack.encode(self.manifest)

    def offer(self, copy: Snapshot) -> None:
        """Serve a snapshot until `withdraw`, at the epoch's first apply."""
        self.withdraw()
        for digest, data in copy.blobs.items():
            self._transport.publish_source(digest, len(data), functools.partial(_piece, data))
        self._digests = list(copy.blobs)
        self.manifest = copy.manifest

    def withdraw(self) -> None:
        """Stop serving the snapshot and free its memory."""
        self.manifest = None
        for digest in self._digests:
            self._transport.retract(digest)
        self._digests = []


@dataclass(frozen=True)
class Offer:
    """One version of a level at one step, and the peers that hold it."""

    step: int
    digests: tuple[bytes, ...]
    holders: tuple[bytes, ...]


async def ask_offers(
    transport: Transport, schema: StateSchema, peers: Sequence[bytes], deadline_s: float
) -> dict[int, list[Offer]]:
    """Return the peers' offers per level, the most offered version first.

    Ignore offers that do not fit the schema.
    """
    manifests = await asyncio.gather(*(_ask(transport, schema, peer, deadline_s) for peer in peers))
    holders: dict[int, dict[tuple[int, tuple[bytes, ...]], list[bytes]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for peer, manifest in zip(peers, manifests, strict=True):
        for level, digests in (manifest.levels if manifest else {}).items():
            assert manifest is not None
            holders[level][manifest.step, tuple(digests)].append(peer)
    return {
        level: sorted(
            (Offer(step, digests, tuple(names)) for (step, digests), names in contents.items()),
            key=lambda offer: (-len(offer.holders), offer.step, offer.digests),
        )
        for level, contents in holders.items()
    }


async def _ask(
    transport: Transport, schema: StateSchema, peer: bytes, deadline_s: float
) -> SnapshotManifest | None:
    try:
        return checked(
            await transport.request(peer, TOPIC, b"", manifest_limit(schema), deadline_s), schema
        )
    except TransportError:
        return None
    except Exception as error:  # an invalid offer must not end this member
        _complaints.failure("reading an offer of", peer, error)
        return None


def manifest_limit(schema: StateSchema) -> int:
    """Return the largest manifest in bytes. Every peer of a run may send one at once."""
    return 64 + sum(16 + 2 * DIGEST * len(schema.of_level(level)) for level in range(schema.levels))


def checked(reply: bytes, schema: StateSchema) -> SnapshotManifest | None:
    """Return the manifest in a peer's reply, or None if it is malformed or does not fit the
    schema.
    """
    try:
        manifest: SnapshotManifest = msgpack_as(reply, SnapshotManifest)
    except Malformed:
        return None
    fits = all(
        0 <= level < schema.levels
        and len(digests) == len(schema.of_level(level))
        and all(len(digest) == DIGEST for digest in digests)
        for level, digests in manifest.levels.items()
    )
    return manifest if fits else None


class LevelFetcher:
    """Fetches levels into parameters, only from offers with the hash on chain."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        schema: StateSchema,
        decode: Worker,
        *,
        parallel: int,
        deadline_s: float,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._schema = schema
        self._decode = decode
        self._ends = clock.monotonic() + deadline_s
        self._at_once = asyncio.Semaphore(parallel)

    async def fetch(
        self, level: int, offers: Sequence[Offer], params: Mapping[str, Tensor], expected: bytes
    ) -> None:
        """Write `level` into `params`. `expected` is its hash on chain. Raises ModelUnavailable.

        Bytes come only from peers that offer the expected content, at any step.
        """
        reasons = []
        right, wrong = self._right(level, offers, expected)
        if wrong:
            reasons.append(
                f"{counted(wrong, 'peer')} offered tensors that differ from the attested ones"
            )
        for offer in right:
            try:
                segments = enumerate(self._schema.of_level(level))
                await every(
                    self._take(offer, index, segment, params) for index, segment in segments
                )
                return
            except (TransportError, SegmentError) as error:
                reasons.append(str(error))
        raise ModelUnavailable(
            f"cannot fetch level {level} of the model: "
            + ("; ".join(reasons) or "no peer offers it")
        )

    def _right(
        self, level: int, offers: Sequence[Offer], expected: bytes
    ) -> tuple[list[Offer], int]:
        """Return the offers with this hash, in order, and how many peers offer another version."""
        right = []
        wrong = 0
        for offer in offers:
            if level_root(self._schema, level, offer.digests) == expected:
                right.append(offer)
            else:
                wrong += len(offer.holders)
        holders = tuple(dict.fromkeys(holder for offer in right for holder in offer.holders))
        return [Offer(right[0].step, right[0].digests, holders)] if right else [], wrong

    async def _take(
        self, offer: Offer, index: int, segment: Segment, params: Mapping[str, Tensor]
    ) -> None:
        turn = index % len(offer.holders)
        holders = offer.holders[turn:] + offer.holders[:turn]  # spread segments over all holders
        async with self._at_once:
            seconds_left = max(0.0, self._ends - self._clock.monotonic())
            data = await self._transport.fetch(
                offer.digests[index], segment.size, holders, seconds_left
            )
            await self._decode(lambda: write_segment(params, segment, data))


def _piece(data: bytes, offset: int, size: int) -> bytes:
    return data[offset : offset + size]
