"""The model's outline from peers: a newcomer accepts only the run's outline."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from aftermath.base.errors import Unsuitable
from aftermath.model.json_documents import COMPANIONS, MAX_CONFIG_BYTES
from aftermath.model.outline import Outline
from aftermath.model.save_checkpoint import MAX_COMPANION_BYTES
from aftermath.optim.schema import Schema, build_schema
from aftermath.p2p.transport import TransportError
from aftermath.replica.outline_sharing import (
    TOPIC,
    CompanionFile,
    OutlineReply,
    OutlineShare,
    ask_outline,
    checked,
)
from aftermath.sim.setup import CONFIG
from aftermath.sim.virtual_time import run_virtual
from member.result_inbox import DISTRO, SCHEMA, ResultInbox, p2p_of

PEERS = (p2p_of(1), p2p_of(2))
RIGHT = CONFIG.to_hf()
OTHER = {**CONFIG.to_hf(), "num_hidden_layers": 3}
TOKENIZER = {"tokenizer.json": b"{}", "tokenizer_config.json": b"[]"}


def of_the_run(config: Mapping[str, Any]) -> Schema:
    schema = build_schema(config, 3, DISTRO)
    if schema.hash() != SCHEMA.hash():
        raise Unsuitable("another model")
    return schema


def receive_outline(
    outlines: Mapping[int, Outline], *, served: bytes | None = None
) -> Outline | None:
    """Return what member 0 receives from members with these outlines. With `served`, member 2
    answers with it.
    """

    async def scenario() -> Outline | None:
        inbox = ResultInbox()
        for seat, outline in outlines.items():
            OutlineShare(inbox.transports[seat], outline)
        if served is not None:

            async def answer(peer: bytes, body: bytes) -> bytes:
                del peer, body
                return served

            inbox.transports[2].handle(TOPIC, answer)
        received = await ask_outline(inbox.transports[0], PEERS, of_the_run, inbox.workers.compute)
        assert received is None or received[1] == SCHEMA
        return received[0] if received else None

    return run_virtual(scenario())


def test_outline_config_and_tokenizer_come_from_members() -> None:
    assert receive_outline({1: Outline(RIGHT, TOKENIZER), 2: Outline(RIGHT, TOKENIZER)}) == Outline(
        RIGHT, TOKENIZER
    )


@pytest.mark.parametrize("liar", [1, 2])
def test_outline_with_another_schema_hash_is_rejected(liar: int) -> None:
    assert receive_outline(
        {liar: Outline(OTHER, {}), 3 - liar: Outline(RIGHT, TOKENIZER)}
    ) == Outline(RIGHT, TOKENIZER)
    assert receive_outline({liar: Outline(OTHER, TOKENIZER)}) is None


def test_schema_of_equal_configs_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing one may take seconds."""
    layers: list[int] = []

    def counted(config: Mapping[str, Any]) -> Schema:
        layers.append(config["num_hidden_layers"])
        return SCHEMA

    monkeypatch.setattr(sys.modules[__name__], "of_the_run", counted)
    receive_outline({1: Outline(RIGHT, {}), 2: Outline(RIGHT, {})})
    assert layers == [RIGHT["num_hidden_layers"]]


def test_unexpected_reply_error_drops_only_that_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(config: Mapping[str, Any]) -> Schema:
        if config["num_hidden_layers"] == OTHER["num_hidden_layers"]:
            raise RecursionError("nobody has thought of it")
        return SCHEMA

    monkeypatch.setattr(sys.modules[__name__], "of_the_run", fragile)
    assert receive_outline({1: Outline(OTHER, TOKENIZER), 2: Outline(RIGHT, TOKENIZER)}) == Outline(
        RIGHT, TOKENIZER
    )


def test_disputed_tokenizer_is_left_out() -> None:
    """No hash on chain says which tokenizer is right. The model is accepted."""
    assert receive_outline(
        {1: Outline(RIGHT, TOKENIZER), 2: Outline(RIGHT, {"tokenizer.json": b"{} "})}
    ) == Outline(RIGHT)


def test_unavailable_files_are_left_out() -> None:
    gone = {name: CompanionFile(len(data), bytes(32)) for name, data in TOKENIZER.items()}
    reply = msgspec.msgpack.encode(OutlineReply(Outline(RIGHT).config_json(), gone))
    assert receive_outline({}, served=reply) == Outline(RIGHT)


def test_companion_files_together_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dishonest peer lists all names, but no peer sends any of the files."""
    files = {name: CompanionFile(10, bytes(32)) for name in COMPANIONS}
    served = msgspec.msgpack.encode(OutlineReply(Outline(RIGHT).config_json(), files))

    async def endless(*_: object) -> bytes:
        await asyncio.sleep(60)
        raise TransportError("nobody sends it")

    async def scenario() -> float:
        inbox = ResultInbox()
        transport = inbox.transports[0]
        monkeypatch.setattr(transport, "fetch", endless)

        async def answer(peer: bytes, body: bytes) -> bytes:
            del peer, body
            return served

        inbox.transports[2].handle(TOPIC, answer)
        started = asyncio.get_running_loop().time()
        outline = await ask_outline(transport, PEERS, of_the_run, inbox.workers.compute)
        assert outline is not None
        assert outline[0] == Outline(RIGHT)
        return asyncio.get_running_loop().time() - started

    assert run_virtual(scenario()) < 90


CONFIG_JSON = Outline(RIGHT).config_json()
STRANGE = {
    "nothing": b"",
    "no config": msgspec.msgpack.encode(OutlineReply(b"[]", {})),
    "no JSON": msgspec.msgpack.encode(OutlineReply(b"{", {})),
    "nested": msgspec.msgpack.encode(OutlineReply(b"[" * 100_000, {})),
    "a strange name": msgspec.msgpack.encode(
        OutlineReply(CONFIG_JSON, {"../key.json": CompanionFile(3, bytes(32))})
    ),
    "too much": msgspec.msgpack.encode(
        OutlineReply(
            CONFIG_JSON, {"tokenizer.json": CompanionFile(MAX_COMPANION_BYTES + 1, bytes(32))}
        )
    ),
    "too much in all": msgspec.msgpack.encode(
        OutlineReply(
            CONFIG_JSON,
            dict.fromkeys(COMPANIONS[:3], CompanionFile(MAX_COMPANION_BYTES, bytes(32))),
        )
    ),
    "no size": msgspec.msgpack.encode(
        OutlineReply(CONFIG_JSON, {"tokenizer.json": CompanionFile(0, bytes(32))})
    ),
    "no hash": msgspec.msgpack.encode(
        OutlineReply(CONFIG_JSON, {"tokenizer.json": CompanionFile(3, b"short")})
    ),
    "a long config": msgspec.msgpack.encode(OutlineReply(b" " * (MAX_CONFIG_BYTES + 5000), {})),
}


@pytest.mark.parametrize("reply", STRANGE.values(), ids=STRANGE)
def test_malformed_outline_counts_as_no_reply(reply: bytes) -> None:
    assert checked(reply) is None or len(reply) > MAX_CONFIG_BYTES
    assert receive_outline({1: Outline(RIGHT, TOKENIZER)}, served=reply) == Outline(
        RIGHT, TOKENIZER
    )
    assert receive_outline({}, served=reply) is None
