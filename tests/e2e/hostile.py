"""Members that lie: real wallets, real endpoints, real signatures, and a transport that changes what they announce.

Run as a process with the path of a JSON list of {"lie", "epoch", "settings"}: each is a member with the settings of
`train` that lies in this epoch and is honest in all others, so that every lie meets members that can afford it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from blake3 import blake3
from msgspec import msgpack
from msgspec.structs import replace
from solders.keypair import Keypair

from aftermath.chain.wallet import identity_secret, load_wallet
from aftermath.member import member
from aftermath.member.results import TOPIC as COMMITMENTS
from aftermath.p2p.iroh import IrohTransport, open_iroh
from aftermath.p2p.transport import Handler
from aftermath.replica.origin import Origin
from aftermath.rules.commitment import (
    Commitment,
    LevelPayload,
    SequenceInterval,
    decode_announcement,
    encode_announcement,
)
from aftermath.train import session, sinks
from aftermath.train.settings import TrainSettings

DECLARED = 20_000  # sequences per minute
Lie = Callable[["LyingTransport", Commitment], Iterator[Commitment | bytes]]
"""Gives what is announced in place of a commitment; bytes are sent as they are."""


class LyingTransport:
    """The real transport, except that in one epoch its announcements are replaced by lies."""

    def __init__(self, inner: IrohTransport, secret: bytes, lie: Lie, epoch: int) -> None:
        self.inner, self._secret, self._lie, self._epoch = inner, secret, lie, epoch
        self.published: dict[bytes, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def publish(self, data: bytes) -> bytes:
        digest = self.inner.publish(data)
        self.published[digest] = data
        return digest

    def handle(self, topic: str, handler: Handler) -> None:
        """Who asks a liar for its commitments hears of none."""
        self.inner.handle(topic, _silent if topic == COMMITMENTS else handler)

    async def announce(self, data: bytes) -> None:
        said = decode_announcement(data)
        if not isinstance(said, Commitment) or said.epoch != self._epoch:
            await self.inner.announce(data)
            return
        for forged in self._lie(self, said):
            raw = forged if isinstance(forged, bytes) else encode_announcement(forged, self._secret)
            await self.inner.announce(raw)

    def sign(self, body: bytes) -> bytes:
        """This member's signature of any announcement's body."""
        return bytes(Keypair.from_seed(self._secret).sign_message(b"aftermath announcement 2\x00" + body))

    def forge(self, said: Commitment, change: Callable[[bytes], bytes]) -> Commitment:
        """The same commitment to changed payloads, which are served."""
        levels = {}
        for level, payload in said.levels.items():
            data = change(self.published[payload.blake3])
            levels[level] = LevelPayload(self.inner.publish(data), len(data))
        return replace(said, levels=levels)


async def _silent(peer: bytes, body: bytes) -> bytes:
    del peer, body
    return msgpack.encode([])


def wrong_hash(transport: LyingTransport, said: Commitment) -> Iterator[Commitment]:
    """The payloads that are served do not have the announced hashes."""
    levels = {}
    for level, payload in said.levels.items():
        data = transport.published[payload.blake3]
        digest = blake3(b"something else" + data).digest()
        transport.inner.publish_source(digest, len(data), partial(_read, data))
        levels[level] = LevelPayload(digest, len(data))
    yield replace(said, levels=levels)


def _read(data: bytes, offset: int, length: int) -> bytes:
    return data[offset : offset + length]


def oversized(transport: LyingTransport, said: Commitment) -> Iterator[Commitment]:
    """Payloads larger than the schema's."""
    yield transport.forge(said, lambda data: data + bytes(1 << 20))


def not_a_number(transport: LyingTransport, said: Commitment) -> Iterator[Commitment]:
    """A vote of NaN (payloads without 1-bit end with an fp32 value)."""
    yield transport.forge(said, lambda data: data[:-4] + struct.pack("<f", float("nan")))


def out_of_range(transport: LyingTransport, said: Commitment) -> Iterator[Commitment]:
    """A number of no set of places: the highest there is, in the first block and some after it."""
    yield transport.forge(said, lambda data: b"\xff" * 32 + data[32:])


def another_share(transport: LyingTransport, said: Commitment) -> Iterator[Commitment]:
    """A result for sequences of somebody else, and one in somebody else's name."""
    del transport
    moved = tuple(SequenceInterval(i.start + 1, i.stop + 1) for i in said.intervals)
    yield replace(said, intervals=moved)
    for slot in range(8):
        if slot != said.slot:
            yield replace(said, slot=slot)


def nested(transport: LyingTransport, said: Commitment) -> Iterator[bytes]:
    """No commitment, but arrays in arrays, under a field that nobody knows and bare, signed and not."""
    del said
    deep = b"\x91" * 1000 + b"\xc0"
    for body in (b"\x81\xa1x" + deep, deep, b"\x92\x01" + deep):
        yield body
        yield msgpack.encode([body, bytes(64)])
        yield transport.inner.node_id + transport.sign(body) + body


LIES: dict[str, Lie] = {
    lie.__name__: lie for lie in (wrong_hash, oversized, not_a_number, out_of_range, another_share, nested)
}


async def live(members: list[dict[str, Any]]) -> None:
    """All of them at once, until the run is finished."""
    with contextlib.ExitStack() as stack:
        sessions = []
        for given in members:
            settings = TrainSettings.model_validate(given["settings"])
            events = sinks.events_of(settings, stack)
            sessions.append(session._session(settings, session._named(settings), events))
        await asyncio.gather(*sessions)


def corrupt(members: list[dict[str, Any]]) -> None:
    """Make every transport a lying one, and declare a speed that earns a share in every round, whatever it becomes."""
    parts = {}
    for given in members:
        settings = TrainSettings.model_validate(given["settings"])
        wallet = load_wallet(settings.wallet_private_key_path)
        parts[identity_secret(settings.run_id, wallet)] = LIES[given["lie"]], given["epoch"]

    async def opened(secret: bytes, **options: Any) -> LyingTransport:
        return LyingTransport(await open_iroh(secret, **options), secret, *parts[secret])

    session.open_iroh = opened  # type: ignore[assignment, attr-defined]
    Origin.measure_weight = lambda self, seq_len: DECLARED  # type: ignore[method-assign]
    member._WEIGHT_DRIFT = float("inf")


if __name__ == "__main__":
    cast = json.loads(Path(sys.argv[1]).read_text())
    corrupt(cast)
    asyncio.run(live(cast))
