"""Members that announce something else than their results, or keep it from some."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from aftermath.member.results import TOPIC as COMMITMENTS
from aftermath.p2p.transport import Handler
from aftermath.rules.announcements import (
    NOTHING,
    Announcement,
    Commitment,
    LevelPayload,
    SequenceInterval,
    decode_announcement,
)
from aftermath.rules.seal import Key, masked
from hostile.member import Behaviour, Hostile, Said, garbage

_encode = msgspec.msgpack.encode
_UNASSIGNED = "not what it was assigned"
_ANOTHER = "it announced another result too"


async def _silent(peer: bytes, body: bytes) -> bytes:
    del peer, body
    return _encode([])


class Lies(Behaviour):
    """Announces something else than its result, and tells nobody who asks."""

    provable = True

    def announce(self, me: Hostile, said: Announcement) -> Iterable[Said]:
        if isinstance(said, Commitment):
            me.deeds += 1
            yield from self.lie(me, said)
        else:
            yield said

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        raise NotImplementedError

    def handler(self, me: Hostile, topic: str, honest: Handler) -> Handler:
        return _silent if topic == COMMITMENTS else honest


# --- results that are none


class WrongHash(Lies):
    """The payloads that are served do not have the announced hashes."""

    blamed_for = "sent bytes with another"

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        levels = {}
        for level, payload in said.levels.items():
            data = me.published[payload.blake3]
            digest = blake3(b"something else" + data).digest()
            me.transport.publish_source(digest, len(data), partial(_read, data))
            levels[level] = LevelPayload(digest, len(data))
        yield replace(said, levels=levels)


def _read(data: bytes, offset: int, length: int) -> bytes:
    return data[offset : offset + length]


class Oversized(Lies):
    blamed_for = _UNASSIGNED

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        yield me.forge(said, lambda data: data + bytes(1 << 20))


class Truncated(Lies):
    blamed_for = _UNASSIGNED

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        yield me.forge(said, lambda data: data[:-8])


class Garbage(Lies):
    """Bytes of the right size under the right hash that are no encoding."""

    blamed_for = "level 2: "

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        yield me.forge(said, lambda data: b"\xff" * 64 + garbage(len(data) - 64))


class NotANumber(Lies):
    """A vote of NaN: payloads without 1-bit end with an fp32 value."""

    blamed_for = "zero, too small or not finite"

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        yield me.forge(said, lambda data: data[:-4] + struct.pack("<f", float("nan")))


class OutOfRange(Lies):
    """A number of no set of places: the highest there is, in the first block and some after it."""

    blamed_for = "not a set of at most"

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        yield me.forge(said, lambda data: b"\xff" * 32 + data[32:])


class WrongLevel(Lies):
    """One level's payload under another one's name."""

    blamed_for = _UNASSIGNED

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        turned = dict(zip(said.levels, reversed(list(said.levels.values())), strict=True))
        yield replace(said, levels=turned)


class SmallerTier(Lies):
    """Has declared tier 0, and delivers what one of tier 2 would."""

    blamed_for = _UNASSIGNED

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        yield replace(said, tier=2, levels={2: said.levels[2]})


class AnotherShare(Lies):
    """Send a result for another member's sequences, and one in every other member's name."""

    blamed_for = _UNASSIGNED

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        yield replace(
            said, intervals=tuple(SequenceInterval(i.start + 1, i.stop + 1) for i in said.intervals)
        )
        yield from (replace(said, seat=seat) for seat in range(8) if seat != said.seat)


class Respelled(Lies):
    """A right commitment, signed, whose levels are not in order, and one that names a
    level twice.
    """

    blamed_for = "canonical form"

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        fields: list[Any] = msgspec.msgpack.decode(_encode(said))
        at = next(index for index, value in enumerate(fields) if isinstance(value, dict))
        entries = [_encode(level) + _encode(payload) for level, payload in fields[at].items()]
        for order in (entries[::-1], [*entries, entries[0]]):
            parts = [_encode(value) for value in fields]
            parts[at] = bytes([0x80 | len(order)]) + b"".join(order)
            body = bytes([0x90 | len(parts)]) + b"".join(parts)
            yield me.signed(said, body)


class Nested(Lies):
    """No commitment, but arrays in arrays, under a field that nobody knows and bare, signed and
    not.
    """

    blamed_for = "begins with another head"

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        deep = b"\x91" * 1000 + b"\xc0"
        for body in (b"\x81\xa1x" + deep, deep, b"\x92\x01" + deep):
            yield from (body, _encode([body, bytes(64)]), me.signed(said, body))


class Replays(Lies):
    """In place of its results: what it and others said before, and itself in another epoch and
    another run.
    """

    blamed_for = "of another run"

    def __init__(self) -> None:
        self._first: Commitment | None = None

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        if self._first is not None:
            yield self._first
        self._first = self._first or said
        # which no earlier place contradicts
        empty = said.private._replace(before=NOTHING, since=None)
        yield replace(said, epoch=said.epoch - 1, private=empty)
        yield replace(said, height=max(0, said.height - 1), private=empty)
        yield from list(me.said)[-8:]
        yield replace(said, run_id="another")


class Silent(Lies):
    """Delivers nothing."""

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        return ()


# --- results to some


class TwoResults(Lies):
    """Two results of every share, to everybody."""

    blamed_for = _ANOTHER

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        yield said
        yield _other(me, said, 1)


def _other(me: Hostile, said: Commitment, number: int) -> Commitment:
    """Another valid result: some of the last values of the common level have the other sign."""
    level = max(said.levels)
    data = bytearray(me.published[said.levels[level].blake3])
    for back in range(number):
        data[-1 - 4 * back] ^= 0x80  # under the mask too
    return replace(
        said, levels={**said.levels, level: LevelPayload(me.publish(bytes(data)), len(data))}
    )


class ResultForSome(Lies):
    """Another result to every second peer."""

    provable = False
    faces = 2

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        faces = [_other(me, said, number) if number else said for number in range(self.faces)]
        for index, peer in enumerate(me.peers()):
            me.tell(peer, faces[index % len(faces)])
        return ()


class ResultForEach(ResultForSome):
    """Another result to each peer, so that there is none that a quorum has."""

    provable = True
    faces = 3


class WithholdsLevel(Behaviour):
    """Announces its result and does not serve the payload of level 0: one word against that of its
    other holder.
    """

    def announce(self, me: Hostile, said: Announcement) -> Iterable[Said]:
        if isinstance(said, Commitment) and 0 in said.levels:
            me.deeds += 1
            me.transport.retract(said.levels[0].blake3)
        yield said


class WithholdsFromOne(Behaviour):
    """Has nothing to do with one of its peers: the only other one of its tier."""

    async def meanwhile(self, me: Hostile) -> None:
        victim = await me.other_of_tier(0)
        listed = me.transport.set_members

        def without(node_ids: Iterable[bytes]) -> None:
            listed(one for one in node_ids if one != victim)

        me.transport.set_members = without  # type: ignore[method-assign]
        without(me.transport._links.members())
        me.deeds += 1


class Late(Lies):
    """Announces when 78 % of a round's time are over."""

    provable = False

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        raw = me.sign(said)
        later = 0.78 * me.run.config.max_round_train_time
        asyncio.get_running_loop().call_later(later, me.transport._announcer.announce, raw)
        return ()


class LateByLevel(Behaviour):
    """Serves one level of its result when 78 % of a round's time are over, the next level in each
    round: so it is late for others each time.
    """

    def announce(self, me: Hostile, said: Announcement) -> Iterable[Said]:
        if isinstance(said, Commitment) and said.levels:
            me.deeds += 1
            late = sorted(said.levels)[said.height % len(said.levels)]
            digest = said.levels[late].blake3
            me.transport.retract(digest)
            later = 0.78 * me.run.config.max_round_train_time
            asyncio.get_running_loop().call_later(later, me.publish, me.published[digest])
        yield said


# --- others' results


class Copies(Lies):
    """In place of its own result: the bytes of the other member of its tier, once that one has
    announced them.
    """

    opened = False
    """Whether it waits for the key, so that it can mask the bytes as its own."""

    def __init__(self) -> None:
        self._theirs: dict[int, Commitment] = {}
        self._keys: dict[int, bytes] = {}
        self._news = asyncio.Event()
        self._copying: set[asyncio.Task[None]] = set()

    async def meanwhile(self, me: Hostile) -> None:
        victim = await me.other_of_tier(0)
        async for heard in me.transport.announcements():
            said = decode_announcement(heard.data)
            if heard.sender == victim and isinstance(said, Commitment):
                self._theirs[said.height] = said
            elif heard.sender == victim and isinstance(said, Key):
                self._keys[said.height] = said.key
            self._news.set()

    def lie(self, me: Hostile, said: Commitment) -> Iterable[Said]:
        self._copying.add(asyncio.ensure_future(self._copy(me, said)))
        return ()

    async def _copy(self, me: Hostile, said: Commitment) -> None:
        while said.height not in (self._keys if self.opened else self._theirs):
            self._news.clear()
            await self._news.wait()
        theirs = self._theirs[said.height]
        levels = {}
        for level, payload in theirs.levels.items():
            data = await me.transport.fetch(payload.blake3, payload.size, [theirs.sender], 5.0)
            if self.opened:
                data = masked(masked(data, self._keys[said.height], level), me.key(said), level)
            levels[level] = LevelPayload(me.publish(data), len(data))
        me.transport._announcer.announce(me.sign(replace(said, levels=levels)))


class CopiesWhatIsOpened(Copies):
    """Announce a copy after the reveal, with a seal of its own. It is valid except that it comes
    too late.
    """

    opened = True


class NeverOpens(Behaviour):
    """Announces its results and keeps their keys."""

    provable = True

    def announce(self, me: Hostile, said: Announcement) -> Iterable[Said]:
        if isinstance(said, Key):
            me.deeds += 1
        else:
            yield said

    def handler(self, me: Hostile, topic: str, honest: Handler) -> Handler:
        return _silent if topic == COMMITMENTS else honest


class OpensToOne(NeverOpens):
    """Tells its keys to one peer only, which passes them on."""

    provable = False

    def announce(self, me: Hostile, said: Announcement) -> Iterable[Said]:
        yield from super().announce(me, said)
        if isinstance(said, Key) and (peers := me.peers()):
            me.tell(peers[0], said)
