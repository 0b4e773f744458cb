"""A small round of three members of tiers 0, 1 and 2, with the results that member 0 received."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from solders.keypair import Keypair

from aftermath.events.stream import Events, plain
from aftermath.member.announced_results import Results
from aftermath.member.feed import RunFeed
from aftermath.member.ports import Ports, Role, Workers
from aftermath.member.round_plan import RoundPlan, plan_round
from aftermath.member.stall_detector import StallDetector
from aftermath.optim.codec import encode_level
from aftermath.optim.schema import Schema, build_schema
from aftermath.rules.announcements import (
    NOTHING,
    Commitment,
    LevelPayload,
    PassSettings,
    PrivateRoots,
    SequenceInterval,
    encode_announcement,
)
from aftermath.rules.distro import Distro
from aftermath.rules.members import Members
from aftermath.rules.run import Round, Run
from aftermath.rules.seal import Reveal, key_of, masked, seal_of
from aftermath.rules.state import RunState
from aftermath.sim.setup import CONFIG
from aftermath.sim.sim_member import EventDict
from aftermath.sim.sim_transport import SimNetwork, SimTransport
from aftermath.sim.virtual_time import InlineWorker, VirtualClock
from rules import builders

DISTRO = Distro(
    topk=4, topk_embeddings=4, chunk=8, quantize_1bit=True, decay=0.999, weight_decay=0.0, clip=None
)
SCHEMA: Schema = build_schema(CONFIG.to_hf(), 3, DISTRO)
SECRETS = [bytes([number]) * 32 for number in range(1, 4)]
BATCH = 9


def p2p_of(seat: int) -> bytes:
    return bytes(Keypair.from_seed(SECRETS[seat]).pubkey())


def three_members() -> Members:
    return builders.members(
        {seat: builders.seat(seat, tier=seat, p2p=p2p_of(seat), weight=3) for seat in range(3)}
    )


def header_of(height: int = 4, **overrides: int) -> Round:
    return builders.header(
        0b111, height=height, step=height + 1, batch=BATCH, seed=7, data_index=100, **overrides
    )


def plan_of(height: int = 4) -> RoundPlan:
    return plan_round("test", 2, header_of(height), three_members())


def empty_payload(level: int) -> bytes:
    """Return a valid payload without votes."""
    entries = SCHEMA.results.entries(level)
    return encode_level(
        SCHEMA.results, level, np.full(entries, 0xFFFF, np.uint16), np.zeros(entries, np.float32)
    )


def commitment_of(
    transport: SimTransport | None, seat: int, height: int = 4, **changed: Any
) -> Commitment:
    """Return the commitment of member `seat`. Its payloads are published on `transport`."""
    levels = {}
    place = plan_of(height).place(seat)
    key = key_of(SECRETS[seat], place)
    for level in range(seat, 3):
        data = masked(empty_payload(level), key, level)
        levels[level] = LevelPayload(transport.publish(data) if transport else b"d" * 32, len(data))
    good = Commitment(
        sender=p2p_of(seat),
        signer=seat.to_bytes(32, "big"),
        run_id="test",
        epoch=2,
        height=height,
        seed=7,
        step=height + 1,
        seat=seat,
        tier=seat,
        intervals=tuple(SequenceInterval(r.start, r.stop) for r in plan_of(height).ranges(seat)),
        schema_hash=SCHEMA.hash(),
        levels=levels,
        private=PrivateRoots(NOTHING, b"a" * 32, None),
        passes=PassSettings(4, "fp32", "fp32", False, "cpu"),
        seal=seal_of(key, seat.to_bytes(32, "big"), place),
        loss=1.0,
        tokens_per_sec=1.0,
    )
    return msgspec.structs.replace(good, **changed)


def key_to(commitment: Commitment, **changed: Any) -> Reveal:
    """Return the key to a member's result."""
    good = Reveal(
        sender=commitment.sender,
        signer=commitment.signer,
        **commitment.place._asdict(),
        key=key_of(SECRETS[commitment.seat], commitment.place),
    )
    return msgspec.structs.replace(good, **changed)


class ResultInbox:
    """The results of member 0, and the transports of all three members."""

    def __init__(self, epoch: int = 2) -> None:
        network = SimNetwork()
        self.transports = [network.open(p2p_of(seat)) for seat in range(3)]
        for transport in self.transports:
            transport.set_members(p2p_of(seat) for seat in range(3))
        self.events: list[EventDict] = []
        self.feed = RunFeed(builders.view(run_at(4), three_members()))
        clock = VirtualClock()
        self.ports = Ports(
            coordinator=None,  # type: ignore[arg-type]
            feed=self.feed,
            transport=self.transports[0],
            clock=clock,
            stall_detector=StallDetector(clock),
            events=Events(lambda: 0.0, [lambda event: self.events.append(plain(event))]),
        )
        self.role = Role("test", SCHEMA, 0, SECRETS[0])
        self.workers = Workers(*(InlineWorker() for _ in range(7)))
        self.results = Results(self.ports, self.role, self.workers.decode)
        self.results.begin(epoch)

    def hear(self, seat: int, height: int = 4, **changed: Any) -> Commitment:
        commitment = self.hear_sealed(seat, height, **changed)
        self.tell(key_to(commitment_of(None, seat, height)))
        return commitment

    def hear_sealed(self, seat: int, height: int = 4, **changed: Any) -> Commitment:
        """Announce a result like `announce`, but without its key."""
        commitment = commitment_of(self.transports[seat], seat, height, **changed)
        self.results.hear(commitment, encode_announcement(commitment, SECRETS[seat]))
        return commitment

    def tell(self, key: Reveal) -> None:
        self.results.hear_key(key, encode_announcement(key, SECRETS[key.seat]))


def run_at(height: int, **overrides: Any) -> Run:
    rounds = [builders.header(0)] * 4
    rounds[height % 4] = header_of(height)
    values: dict[str, Any] = {
        "head": height % 4,
        "epoch": 2,
        "config": builders.config(max_round_train_time=15),
    }
    return builders.run(RunState.ROUND_TRAIN, rounds=tuple(rounds), **(values | overrides))
