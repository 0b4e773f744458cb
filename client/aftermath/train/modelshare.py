"""The model from one's peers: every member offers a snapshot, a joiner takes each tensor from several of them.

Choices:
- the unit is the schema's segment, so a small tier asks for nothing it does not hold;
- a snapshot is a copy taken at cooldown, never the live replica, and is dropped at the epoch's first apply;
- a peer's word is worth nothing: sizes come from the schema, and a level counts only once its hash is the one the
  members attested on chain.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from blake3 import blake3
from torch import Tensor

from aftermath.model.schema import Schema, Segment
from aftermath.model.segments import level_hash, segment_bytes, write_segment
from aftermath.p2p.transport import Transport, TransportError
from aftermath.train.context import Context

TOPIC = "model"
MAX_MANIFEST = 4 << 20  # bytes; 32 for each segment, so room for 100,000 of them


class ModelUnavailable(Exception):
    """No peer could give a level of the model; the message says which and why."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a peer offers: the step of its snapshot and, per level, the BLAKE3 of every segment in canonical order."""

    step: int
    levels: dict[int, list[bytes]]


class ModelShare:
    """Offers this member's snapshot to its peers."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._manifest: Manifest | None = None
        self._digests: list[bytes] = []
        transport.handle(TOPIC, self._answer)

    async def _answer(self, peer: bytes, body: bytes) -> bytes:
        del peer, body
        if self._manifest is None:
            raise LookupError("no snapshot is offered now")
        return msgspec.msgpack.encode(self._manifest)

    def offer(self, params: Mapping[str, Tensor], schema: Schema, tier: int, step: int) -> None:
        """Copy the replica's segments and serve them until `withdraw`."""
        self.withdraw()
        levels: dict[int, list[bytes]] = {}
        for level in range(tier, schema.levels):
            digests = []
            for segment in schema.of_level(level):
                digest = self._transport.publish(segment_bytes(params, segment))
                digests.append(digest)
            levels[level] = digests
            self._digests += digests
        self._manifest = Manifest(step, levels)

    def withdraw(self) -> None:
        """Stop serving the snapshot and free its memory."""
        self._manifest = None
        for digest in self._digests:
            self._transport.retract(digest)
        self._digests = []


@dataclass(frozen=True)
class Offer:
    """One agreed content of a level, and who holds it."""

    digests: tuple[bytes, ...]
    holders: tuple[bytes, ...]


async def ask_offers(
    transport: Transport, schema: Schema, peers: Sequence[bytes], step: int, deadline_s: float
) -> dict[int, list[Offer]]:
    """What the peers offer for `step`, per level; the content most peers agree on first."""
    replies = await asyncio.gather(
        *(transport.request(peer, TOPIC, b"", MAX_MANIFEST, deadline_s) for peer in peers), return_exceptions=True
    )
    holders: dict[int, dict[tuple[bytes, ...], list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for peer, reply in zip(peers, replies, strict=True):
        manifest = _checked(reply, schema, step)
        for level, digests in (manifest.levels if manifest else {}).items():
            holders[level][tuple(digests)].append(peer)
    return {
        level: sorted(
            (Offer(d, tuple(p)) for d, p in found.items()), key=lambda offer: (-len(offer.holders), offer.digests)
        )
        for level, found in holders.items()
    }


def _checked(reply: bytes | BaseException, schema: Schema, step: int) -> Manifest | None:
    """The manifest if it is well formed and of the wanted step."""
    if not isinstance(reply, bytes):
        if isinstance(reply, TransportError):
            return None
        raise reply
    try:
        manifest = msgspec.msgpack.decode(reply, type=Manifest)
    except msgspec.MsgspecError:
        return None
    fits = all(
        0 <= level < schema.levels
        and len(digests) == len(schema.of_level(level))
        and all(len(digest) == 32 for digest in digests)
        for level, digests in manifest.levels.items()
    )
    return manifest if fits and manifest.step == step else None


class LevelFetcher:
    """Fetches levels into a set of parameters and checks each against the hash the chain holds."""

    def __init__(self, context: Context, parallel: int, deadline_s: float) -> None:
        self._transport, self._schema, self._compute = context.transport, context.schema, context.compute
        self._deadline = deadline_s
        self._slots = asyncio.Semaphore(parallel)

    async def fetch(
        self, level: int, offers: Sequence[Offer], params: Mapping[str, Tensor], expected: bytes | None
    ) -> None:
        """Write `level` into `params`; `expected` is its hash on chain, if any. ModelUnavailable if no offer fits."""
        reasons = []
        for offer in offers:
            try:
                await self._take(level, offer, params)
            except (TransportError, ValueError) as error:
                reasons.append(str(error))
                continue
            if expected is None or await self._compute(lambda: level_hash(params, self._schema, level)) == expected:
                return
            reasons.append(f"{len(offer.holders)} peers offered tensors that are not the ones attested on chain")
        raise ModelUnavailable(f"level {level} of the model: " + ("; ".join(reasons) or "no peer offers it"))

    async def _take(self, level: int, offer: Offer, params: Mapping[str, Tensor]) -> None:
        async def one(index: int, segment: Segment) -> None:
            turn = index % len(offer.holders)
            holders = offer.holders[turn:] + offer.holders[:turn]  # spread segments over all holders
            async with self._slots:
                data = await self._transport.fetch(offer.digests[index], segment_size(segment), holders, self._deadline)
            write_segment(params, segment, data)

        tasks = [asyncio.create_task(one(i, segment)) for i, segment in enumerate(self._schema.of_level(level))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()


def segment_size(segment: Segment) -> int:
    """Bytes of a segment's fp32 tensor."""
    size = 4
    for extent in segment.shape:
        size *= extent
    return size


def digest_of(data: bytes) -> bytes:
    """BLAKE3 as the transport names blobs."""
    return blake3(data).digest()
