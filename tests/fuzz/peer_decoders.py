"""Decoders of messages between members, and of files that members write for others."""

from __future__ import annotations

import io

import msgspec
import numpy as np
import torch

from aftermath.audit.claim import known_state
from aftermath.base import bounded
from aftermath.base.errors import BadAnnouncement
from aftermath.member.announced_results import Results
from aftermath.model.initial_weights import init_weights
from aftermath.model.outline import Outline
from aftermath.model.segments import SegmentError, segment_bytes, write_segment
from aftermath.optim.codec import BadPayload, decode_level, encode_level
from aftermath.optim.engine import state_like
from aftermath.optim.interfaces import BadState
from aftermath.optim.schema import Schema
from aftermath.p2p import discovery, swarm, wire
from aftermath.p2p.piece_choice import PieceFetch
from aftermath.p2p.pieces import Pieces
from aftermath.p2p.transport import RequestRefused
from aftermath.replica import model_sharing, outline_sharing, state_sharing
from aftermath.rules import announcements
from aftermath.rules.seal import RoundClosed, masked
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.sim.setup import CONFIG
from fuzz.decoder import Decode, Decoder, now, through_file
from member.result_inbox import (
    SCHEMA,
    SECRETS,
    ResultInbox,
    commitment_of,
    empty_payload,
    key_to,
    p2p_of,
)
from optim.private_states import OPTIMIZERS, trained

READY = announcements.Ready(sender=p2p_of(0), signer=b"w" * 32, run_id="test", epoch=2, seat=0)
CLOSED = RoundClosed(
    sender=p2p_of(0), signer=b"w" * 32, run_id="test", epoch=2, height=4, seed=7, seat=0
)
WEIGHTS = init_weights(CONFIG, 3)
INNER = Schema(SCHEMA.state, SparseLoCo(topk=4, topk_embeddings=4, chunk=8)).results
WHOLE = Schema(SCHEMA.state, SparseLoCo(topk=60, topk_embeddings=64, chunk=8)).results


def signed_announcements() -> tuple[list[bytes], Decode]:
    messages: list[announcements.Announcement] = [
        commitment_of(None, 0),
        READY,
        CLOSED,
        key_to(commitment_of(None, 0)),
    ]
    return [
        announcements.encode_announcement(one, SECRETS[0]) for one in messages
    ], announcements.decode_announcement


def signed_bodies() -> tuple[list[bytes], Decode]:
    return [
        announcements._parts(data)[1] for data in signed_announcements()[0]
    ], announcements._parse_body


def frames(*messages: msgspec.Struct) -> tuple[list[bytes], Decode]:
    kind = wire.Request if len(messages) > 1 else type(messages[0])
    seeds = [wire.frame_of(message)[4:] for message in messages]
    return seeds, lambda data: wire.decode(data, kind)  # type: ignore[arg-type]


def questions() -> tuple[list[bytes], Decode]:
    inbox = ResultInbox()
    results: Results = inbox.results
    return [msgspec.msgpack.encode((4, [0, 1, 2]))], lambda data: now(
        results._answer(p2p_of(1), data)
    )


def answers() -> tuple[list[bytes], Decode]:
    return [msgspec.msgpack.encode(signed_announcements()[0])], lambda data: bounded.msgpack_as(
        data, list[bytes]
    )


def model_manifests() -> tuple[list[bytes], Decode]:
    taken = model_sharing.snapshot(WEIGHTS, SCHEMA.state, 0, 7)
    return [msgspec.msgpack.encode(taken.manifest)], lambda data: model_sharing.checked(
        data, SCHEMA.state
    )


def outlines() -> tuple[list[bytes], Decode]:
    reply = outline_sharing.OutlineReply(
        Outline(CONFIG.to_hf()).config_json(),
        {"tokenizer.json": outline_sharing.CompanionFile(2, bytes(32))},
    )
    return [msgspec.msgpack.encode(reply)], outline_sharing.checked


def payloads() -> tuple[list[bytes], Decode]:
    blocks = sum(cut.count for cut in SCHEMA.results.of_level(2))
    some = encode_level(
        SCHEMA.results, 2, np.tile(np.arange(4, dtype=np.uint16), blocks), np.ones(4 * blocks, "f4")
    )
    return [empty_payload(2), some], lambda data: decode_level(data, SCHEMA.results, 2)


def sealed_payloads() -> tuple[list[bytes], Decode]:
    key = b"k" * 32
    return [masked(one, key, 2) for one in payloads()[0]], lambda data: decode_level(
        masked(data, key, 2), SCHEMA.results, 2
    )


def lattice_payloads() -> tuple[list[bytes], Decode]:
    blocks = sum(cut.count for cut in INNER.of_level(2))
    some = encode_level(
        INNER, 2, np.tile(np.arange(4, dtype=np.uint16), blocks), np.full(4 * blocks, 2.0**-9, "f4")
    )
    return [bytes(INNER.payload_bytes(2)), some], lambda data: decode_level(data, INNER, 2)


def digit_payloads() -> tuple[list[bytes], Decode]:
    cuts = [cut for cut in WHOLE.of_level(2) for _ in range(cut.count)]
    indices = np.concatenate([np.arange(cut.topk, dtype=np.uint16) for cut in cuts])
    some = encode_level(WHOLE, 2, indices, np.full(len(indices), 3 * 2.0**-9, "f4"))
    return [bytes(WHOLE.payload_bytes(2)), some], lambda data: decode_level(data, WHOLE, 2)


def model_parts() -> tuple[list[bytes], Decode]:
    segment = SCHEMA.state.of_level(2)[-1]
    params = {name: torch.clone(tensor) for name, tensor in WEIGHTS.items()}
    return [segment_bytes(WEIGHTS, segment)], lambda data: write_segment(params, segment, data)


def private_questions() -> tuple[list[bytes], Decode]:
    inbox = ResultInbox()
    state = private_state()
    share = state_sharing.StateShare(inbox.transports[0])
    share.offer(state, states=1)
    question = state_sharing.question(state.tree.root, 1)
    return [question], lambda data: now(share.answer(p2p_of(1), data))


def private_answers() -> tuple[list[bytes], Decode]:
    state = private_state()
    place = state.outline.place(1)
    proof = state.tree.proof(1)
    answer = b"".join([*proof, state.read(place)])
    return [answer], lambda data: state_sharing.proven(data, state.tree.root, state.outline, 1)


def private_state() -> state_sharing.ServedState:
    _, engine = trained(OPTIMIZERS["sparseloco"], 2)
    return state_sharing.copy_state(engine, engine.tree(), states=1)


def private_states() -> tuple[list[bytes], Decode]:
    schema, engine = trained(OPTIMIZERS["sparseloco"], 2)
    copied = state_sharing.copy_state(engine, engine.tree(), states=1)
    like = state_like(schema, 2)
    places = [copied.outline.place(index) for index in range(copied.outline.count)]
    seed = b"".join(copied.read(place) for place in places)

    def decode(data: bytes) -> object:
        padded = io.BytesIO(data.ljust(len(seed), b"\0"))
        blocks = {
            index: state_sharing.StateBlock(padded.read(place.size), ())
            for index, place in enumerate(places)
        }
        engine.restore(known_state(like, blocks).tensors)
        return None

    return [seed], decode


def held_questions() -> tuple[list[bytes], Decode]:
    held_question = swarm.HeldQuestion([(bytes(32), b"l" * 32), (b"d" * 32, b"")])
    return [msgspec.msgpack.encode(held_question)], lambda data: bounded.msgpack_as(
        data, swarm.HeldQuestion
    )


def held_answers() -> tuple[list[bytes], Decode]:
    pieces = Pieces.whole(bytes(9 << 20))
    fetch = PieceFetch(
        digest=bytes(32),
        author=p2p_of(1),
        me=p2p_of(0),
        pieces=Pieces(9 << 20, pieces.hashes, bytearray(9 << 20)),
        first=0,
        started=0.0,
        expected_s=1.0,
        progress_at=0.0,
        strong=frozenset({p2p_of(0)}),
        sources={p2p_of(1)},
    )

    def decode(data: bytes) -> object:
        reply: swarm.HeldReply = bounded.msgpack_as(data, swarm.HeldReply)
        for status in reply.status:
            fetch.note(p2p_of(1), status)
        return fetch.choose(p2p_of(1), 1.0, 1.0)

    return [msgspec.msgpack.encode(swarm.HeldReply(7, [pieces.status(), b""]))], decode


def whereabouts() -> tuple[list[bytes], Decode]:
    places = [
        discovery.Whereabouts(("127.0.0.1:4000", "[::1]:4000")),
        discovery.Whereabouts(("10.0.0.1:1",), "https://r.x./"),
    ]

    node = b"\x01" * 32
    read = through_file(
        f"{node.hex()}.json",
        lambda path: discovery.LocalDirectory(path.parent, bytes(32)).read(node),
    )
    return [msgspec.json.encode(place) for place in places], read


PEERS = [
    Decoder("announcement", signed_announcements, (BadAnnouncement,)),
    Decoder("signed body", signed_bodies, (BadAnnouncement,)),
    Decoder("hello", lambda: frames(wire.Hello(bytes(16))), (wire.ProtocolViolation,)),
    Decoder("reply", lambda: frames(wire.Reply(wire.ReplyStatus.OK, 5)), (wire.ProtocolViolation,)),
    Decoder(
        "request",
        lambda: frames(
            wire.BlobRequest(bytes(32), 7, 1 << 40),
            wire.CallRequest("topic", 3, 9, 1000),
            wire.PieceRequest(bytes(32), b"l" * 32, 3),
        ),
        (wire.ProtocolViolation,),
    ),
    Decoder("question", questions, (RequestRefused,)),
    Decoder("answer", answers, (bounded.Malformed,)),
    Decoder("offered model", model_manifests),
    Decoder("told outline", outlines),
    Decoder("result", payloads, (BadPayload,)),
    Decoder("sealed result", sealed_payloads, (BadPayload,)),
    Decoder("result on the lattice", lattice_payloads, (BadPayload,)),
    Decoder("result in digits", digit_payloads, (BadPayload,)),
    Decoder("model part", model_parts, (SegmentError,)),
    Decoder("question for a private state", private_questions, (RequestRefused,)),
    Decoder("block of a private state", private_answers, (state_sharing.FalseBlock,)),
    Decoder("private state", private_states, (BadState,)),
    Decoder("question for held pieces", held_questions, (bounded.Malformed,)),
    Decoder("held pieces", held_answers, (bounded.Malformed,)),
    Decoder("whereabouts", whereabouts),
]
