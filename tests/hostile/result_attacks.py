"""Attacks with results: false, inconsistent or withheld announcements."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from aftermath.member.announced_results import TOPIC as COMMITMENTS
from aftermath.p2p.transport import Handler
from aftermath.rules.announcements import (
    NOTHING,
    Announcement,
    Commitment,
    LevelPayload,
    SequenceInterval,
    decode_announcement,
)
from aftermath.rules.seal import Reveal, masked
from hostile.hostile_member import Behaviour, HostileMember, Message, garbage

_encode = msgspec.msgpack.encode
_UNASSIGNED = "that it was not assigned"
_ANOTHER = "it announced another result too"


async def _silent(peer: bytes, body: bytes) -> bytes:
    del peer, body
    return _encode([])


class FalseResult(Behaviour):
    """Announces something other than its result, and answers no request for commitments."""

    provable = True

    def announce(self, me: HostileMember, message: Announcement) -> Iterable[Message]:
        if isinstance(message, Commitment):
            me.actions += 1
            yield from self.falsify(me, message)
        else:
            yield message

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        raise NotImplementedError

    def handler(self, me: HostileMember, topic: str, honest: Handler) -> Handler:
        return _silent if topic == COMMITMENTS else honest


# --- invalid results


class WrongHash(FalseResult):
    """Serves payloads that do not have the announced hashes."""

    blamed_for = "sent bytes with another"

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        levels = {}
        for level, payload in commitment.levels.items():
            data = me.published[payload.blake3]
            digest = blake3(b"something else" + data).digest()
            me.transport.publish_source(digest, len(data), partial(_read, data))
            levels[level] = LevelPayload(digest, len(data))
        yield replace(commitment, levels=levels)


def _read(data: bytes, offset: int, length: int) -> bytes:
    return data[offset : offset + length]


class Oversized(FalseResult):
    blamed_for = _UNASSIGNED

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        yield me.forge(commitment, lambda data: data + bytes(1 << 20))


class Truncated(FalseResult):
    blamed_for = _UNASSIGNED

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        yield me.forge(commitment, lambda data: data[:-8])


class Garbage(FalseResult):
    """Serves bytes of the right size and hash that are not a valid encoding."""

    blamed_for = "level 2: "

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        yield me.forge(commitment, lambda data: b"\xff" * 64 + garbage(len(data) - 64))


class NotANumber(FalseResult):
    """Votes NaN: payloads without 1-bit end with an fp32 value."""

    blamed_for = "zero, too small or not finite"

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        yield me.forge(commitment, lambda data: data[:-4] + struct.pack("<f", float("nan")))


class OutOfRange(FalseResult):
    """Sends index sets out of range: the highest number, in the first block and some after it."""

    blamed_for = "not a set of at most"

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        yield me.forge(commitment, lambda data: b"\xff" * 32 + data[32:])


class WrongLevel(FalseResult):
    """Announces one level's payload as another's."""

    blamed_for = _UNASSIGNED

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        turned = dict(
            zip(commitment.levels, reversed(list(commitment.levels.values())), strict=True)
        )
        yield replace(commitment, levels=turned)


class SmallerTier(FalseResult):
    """Declares tier 0, and delivers the result of tier 2."""

    blamed_for = _UNASSIGNED

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        yield replace(commitment, tier=2, levels={2: commitment.levels[2]})


class AnotherShare(FalseResult):
    """Sends a result for another member's sequences, and one in every other member's name."""

    blamed_for = _UNASSIGNED

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        yield replace(
            commitment,
            intervals=tuple(
                SequenceInterval(i.start + 1, i.stop + 1) for i in commitment.intervals
            ),
        )
        yield from (replace(commitment, seat=seat) for seat in range(8) if seat != commitment.seat)


class Respelled(FalseResult):
    """Signs its commitment with the levels out of order, and with one level twice."""

    blamed_for = "canonical form"

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        fields: list[Any] = msgspec.msgpack.decode(_encode(commitment))
        at = next(index for index, value in enumerate(fields) if isinstance(value, dict))
        entries = [_encode(level) + _encode(payload) for level, payload in fields[at].items()]
        for order in (entries[::-1], [*entries, entries[0]]):
            parts = [_encode(value) for value in fields]
            parts[at] = bytes([0x80 | len(order)]) + b"".join(order)
            body = bytes([0x90 | len(parts)]) + b"".join(parts)
            yield me.signed(commitment, body)


class Nested(FalseResult):
    """Sends deeply nested arrays instead of a commitment, with and without an unknown field, signed
    and unsigned.
    """

    blamed_for = "begins with another head"

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        deep = b"\x91" * 1000 + b"\xc0"
        for body in (b"\x81\xa1x" + deep, deep, b"\x92\x01" + deep):
            yield from (body, _encode([body, bytes(64)]), me.signed(commitment, body))


class Replays(FalseResult):
    """Replays announcements of its own and of others, and its result under another epoch, round and
    run.
    """

    blamed_for = "of another run"

    def __init__(self) -> None:
        self._first: Commitment | None = None

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        if self._first is not None:
            yield self._first
        self._first = self._first or commitment
        # does not contradict an earlier result
        empty = commitment.private._replace(before=NOTHING, since=None)
        yield replace(commitment, epoch=commitment.epoch - 1, private=empty)
        yield replace(commitment, height=max(0, commitment.height - 1), private=empty)
        yield from list(me.sent)[-8:]
        yield replace(commitment, run_id="another")


class Silent(FalseResult):
    """Delivers nothing."""

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        return ()


# --- results for some peers


class TwoResults(FalseResult):
    """Sends two results of every share to all peers."""

    blamed_for = _ANOTHER

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        yield commitment
        yield _other(me, commitment, 1)


def _other(me: HostileMember, commitment: Commitment, number: int) -> Commitment:
    """Return another valid result: some of the last values of the common level have the other
    sign.
    """
    level = max(commitment.levels)
    data = bytearray(me.published[commitment.levels[level].blake3])
    for back in range(number):
        data[-1 - 4 * back] ^= 0x80  # flips the sign also under the mask
    return replace(
        commitment,
        levels={**commitment.levels, level: LevelPayload(me.publish(bytes(data)), len(data))},
    )


class ResultForSome(FalseResult):
    """Sends a different result to every second peer."""

    provable = False
    variants = 2

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        variants = [
            _other(me, commitment, number) if number else commitment
            for number in range(self.variants)
        ]
        for index, peer in enumerate(me.peers()):
            me.tell(peer, variants[index % len(variants)])
        return ()


class ResultForEach(ResultForSome):
    """Sends a different result to each peer, so that no result has a quorum."""

    provable = True
    variants = 3


class WithholdsLevel(Behaviour):
    """Announces its result but does not serve the payload of level 0. The votes of the level's two
    holders then contradict each other.
    """

    def announce(self, me: HostileMember, message: Announcement) -> Iterable[Message]:
        if isinstance(message, Commitment) and 0 in message.levels:
            me.actions += 1
            me.transport.retract(message.levels[0].blake3)
        yield message


class WithholdsFromOne(Behaviour):
    """Ignores one peer, the only other one of its tier."""

    async def background(self, me: HostileMember) -> None:
        victim = await me.other_of_tier(0)
        listed = me.transport.set_members

        def without(node_ids: Iterable[bytes]) -> None:
            listed(one for one in node_ids if one != victim)

        me.transport.set_members = without  # type: ignore[method-assign]
        without(me.transport._links.members())
        me.actions += 1


class Late(FalseResult):
    """Announces its result after 78 % of a round's time."""

    provable = False

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        raw = me.sign(commitment)
        later = 0.78 * me.run.config.max_round_train_time
        asyncio.get_running_loop().call_later(later, me.transport._announcer.announce, raw)
        return ()


class LateByLevel(Behaviour):
    """Serves one level of its result after 78 % of a round's time. The level changes each round, so
    the result is late for other members each time.
    """

    def announce(self, me: HostileMember, message: Announcement) -> Iterable[Message]:
        if isinstance(message, Commitment) and message.levels:
            me.actions += 1
            late = sorted(message.levels)[message.height % len(message.levels)]
            digest = message.levels[late].blake3
            me.transport.retract(digest)
            later = 0.78 * me.run.config.max_round_train_time
            asyncio.get_running_loop().call_later(later, me.publish, me.published[digest])
        yield message


# --- copies of results


class Copies(FalseResult):
    """Sends a copy of the result of the other member of its tier, once that one has announced
    it.
    """

    after_reveal = False
    """Whether it waits for the key, so that it can mask the bytes as its own."""

    def __init__(self) -> None:
        self._theirs: dict[int, Commitment] = {}
        self._keys: dict[int, bytes] = {}
        self._news = asyncio.Event()
        self._copying: set[asyncio.Task[None]] = set()

    async def background(self, me: HostileMember) -> None:
        victim = await me.other_of_tier(0)
        async for heard in me.transport.announcements():
            message = decode_announcement(heard.data)
            if heard.sender == victim and isinstance(message, Commitment):
                self._theirs[message.height] = message
            elif heard.sender == victim and isinstance(message, Reveal):
                self._keys[message.height] = message.key
            self._news.set()

    def falsify(self, me: HostileMember, commitment: Commitment) -> Iterable[Message]:
        self._copying.add(asyncio.ensure_future(self._copy(me, commitment)))
        return ()

    async def _copy(self, me: HostileMember, commitment: Commitment) -> None:
        while commitment.height not in (self._keys if self.after_reveal else self._theirs):
            self._news.clear()
            await self._news.wait()
        theirs = self._theirs[commitment.height]
        levels = {}
        for level, payload in theirs.levels.items():
            data = await me.transport.fetch(payload.blake3, payload.size, [theirs.sender], 5.0)
            if self.after_reveal:
                data = masked(
                    masked(data, self._keys[commitment.height], level), me.key(commitment), level
                )
            levels[level] = LevelPayload(me.publish(data), len(data))
        me.transport._announcer.announce(me.sign(replace(commitment, levels=levels)))


class CopiesRevealed(Copies):
    """Announces a copy after the reveal, with its own seal. The copy is valid, but too late."""

    after_reveal = True


class NeverReveals(Behaviour):
    """Announces its results and never reveals their keys."""

    provable = True

    def announce(self, me: HostileMember, message: Announcement) -> Iterable[Message]:
        if isinstance(message, Reveal):
            me.actions += 1
        else:
            yield message

    def handler(self, me: HostileMember, topic: str, honest: Handler) -> Handler:
        return _silent if topic == COMMITMENTS else honest


class RevealsToOne(NeverReveals):
    """Reveals its keys to one peer only, which passes them on."""

    provable = False

    def announce(self, me: HostileMember, message: Announcement) -> Iterable[Message]:
        yield from super().announce(me, message)
        if isinstance(message, Reveal) and (peers := me.peers()):
            me.tell(peers[0], message)
