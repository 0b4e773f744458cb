"""Fetching the model's outline (config and tokenizer) from peers.

A config is trusted only if its schema has the hash on chain. No hash covers the tokenizer, which
training does not need. The tokenizer is used if all peers with a correct config serve the same one.
Replies are small; the tokenizer's files are blobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from aftermath.base.bounded import Malformed, json_value, msgpack_as
from aftermath.base.concurrency import Worker
from aftermath.base.errors import AftermathError
from aftermath.base.merkle import DIGEST
from aftermath.model.json_documents import COMPANIONS, MAX_CONFIG_BYTES
from aftermath.model.outline import Outline
from aftermath.model.save_checkpoint import MAX_COMPANION_BYTES
from aftermath.optim.schema import Schema
from aftermath.p2p.limits import LogLimits
from aftermath.p2p.transport import Transport, TransportError

TOPIC = "outline"
ASKED_AT_ONCE = 4
_complaints = LogLimits(logging.getLogger(__name__))
_MAX_REPLY = MAX_CONFIG_BYTES + 4096
_MAX_COMPANIONS = 2 * MAX_COMPANION_BYTES
"""Bytes of a model's companion files together, held in memory."""
_ANSWER = 10.0  # seconds for a reply
_FETCH = 60.0  # seconds for all companion files


class CompanionFile(msgspec.Struct, frozen=True, array_like=True):
    """A companion file of the model: its size in bytes and its BLAKE3."""

    size: int
    blake3: bytes


Answer = tuple[dict[str, Any], dict[str, CompanionFile]]
"""A peer's config, and the companion files that the peer names."""


class OutlineReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member's description of its model."""

    config: bytes
    """The `config.json`, at most MAX_CONFIG_BYTES."""
    companions: dict[str, CompanionFile]


class OutlineShare:
    """Serves a member's outline for as long as its transport is open."""

    def __init__(self, transport: Transport, outline: Outline) -> None:
        files = {
            name: CompanionFile(len(data), transport.publish(data))
            for name, data in outline.companions.items()
            if data
        }
        self._reply = msgspec.msgpack.encode(OutlineReply(outline.config_json(), files))
        transport.handle(TOPIC, self._answer)

    async def _answer(self, peer: bytes, body: bytes) -> bytes:
        del peer, body
        return self._reply


def checked(reply: bytes) -> Answer | None:
    """Return the config and the files in a peer's reply, or None if it is malformed."""
    try:
        message: OutlineReply = msgpack_as(reply, OutlineReply)
        config = json_value(message.config)
    except Malformed:
        return None
    is_valid = all(
        name in COMPANIONS and 0 < file.size <= MAX_COMPANION_BYTES and len(file.blake3) == DIGEST
        for name, file in message.companions.items()
    )
    is_valid = (
        is_valid and sum(file.size for file in message.companions.values()) <= _MAX_COMPANIONS
    )
    return (config, message.companions) if is_valid and isinstance(config, dict) else None


async def ask_outline(
    transport: Transport,
    peers: Sequence[bytes],
    schema_from: Callable[[dict[str, Any]], Schema],
    compute: Worker,
) -> tuple[Outline, Schema] | None:
    """Return the outline from the first of these members whose config is the run's, or None.

    `schema_from` makes the run's schema from a config, or raises an AftermathError if its hash
    differs from that on chain.
    """
    for start in range(0, len(peers), ASKED_AT_ONCE):
        chosen = peers[start : start + ASKED_AT_ONCE]
        replies = await asyncio.gather(*(_ask(transport, peer) for peer in chosen))
        # A schema may take seconds, so compute one for each config, the most frequent first.
        by_config: dict[str, dict[bytes, Answer]] = {}
        for peer, answer in zip(chosen, replies, strict=True):
            if answer is not None:
                by_config.setdefault(json.dumps(answer[0], sort_keys=True), {})[peer] = answer
        for answers in sorted(by_config.values(), key=len, reverse=True):
            holders = list(answers)
            config, files = answers[holders[0]]
            try:
                schema = await compute(partial(schema_from, config))
            except AftermathError:
                continue
            except Exception as error:  # an invalid answer must not end this member
                _complaints.failure("reading the outline of", holders[0], error)
                continue
            agreed = all(other_files == files for _, other_files in answers.values())
            contents = await _files(transport, files, holders) if agreed else {}
            return Outline(config, contents), schema
    return None


async def _ask(transport: Transport, peer: bytes) -> Answer | None:
    try:
        return checked(await transport.request(peer, TOPIC, b"", _MAX_REPLY, _ANSWER))
    except TransportError:
        return None
    except Exception as error:
        _complaints.failure("reading the outline of", peer, error)
        return None


async def _files(
    transport: Transport, files: dict[str, CompanionFile], holders: Sequence[bytes]
) -> dict[str, bytes]:
    """Return the companion files that peers serve.

    A model can be trained without them. One timeout of `_FETCH` seconds covers all files, because a
    dishonest peer may list many files that no peer has.
    """
    contents = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FETCH):
            for name, file in files.items():
                with contextlib.suppress(TransportError):
                    contents[name] = await transport.fetch(file.blake3, file.size, holders, _FETCH)
    return contents
