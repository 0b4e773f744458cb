"""The statements that members sign about their results, with real p2p keys."""

from functools import cache
from typing import Any

import msgspec
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.chain.instructions import CoordinatorInstructions
from aftermath.chain.programs import coordinator_program
from aftermath.rules.announcements import (
    NOTHING,
    Commitment,
    LevelPayload,
    PassSettings,
    PrivateRoots,
    Ready,
    SequenceInterval,
    Signed,
    encode_announcement,
    signed_part,
)
from aftermath.rules.run import RoundId
from programs.scenario import Scenario, member

LIAR = 1
IX = CoordinatorInstructions(coordinator_program(None), Pubkey.default())


def secret(index: int) -> bytes:
    return bytes([index + 1]) * 32


@cache
def p2p(index: int) -> bytes:
    return bytes(Keypair.from_seed(secret(index)).pubkey())


def commitment(
    run_id: str, place: RoundId, seat: int, index: int = LIAR, result: int = 1
) -> Commitment:
    """Return a member's commitment to a result at a place. `result` distinguishes its results."""
    return Commitment(
        sender=p2p(index), signer=bytes(member(index).pubkey()), run_id=run_id, **place._asdict(), step=1, seat=seat,
        tier=0, intervals=(SequenceInterval(0, 1),), schema_hash=b"s" * 32,
        levels={0: LevelPayload(bytes([result]) * 32, 9)},
        private=PrivateRoots(NOTHING, b"a" * 32, None),
        passes=PassSettings(1, "fp32", "fp32", False, "cpu"),
        seal=b"k" * 32, loss=1.0, tokens_per_sec=1.0,
    )  # fmt: skip


def round_commitment(
    run: Scenario, result: int = 1, index: int = LIAR, **changed: Any
) -> Commitment:
    """Return the member's commitment for the run's current round."""
    result_commitment = commitment(run.run_id, run.run.round_id, run.seat_of(index), index, result)
    return msgspec.structs.replace(result_commitment, **changed)


def sign(message: Commitment | Ready, index: int = LIAR) -> Signed:
    return signed_part(encode_announcement(message, secret(index)))


def pair(run: Scenario) -> list[Signed]:
    return [sign(round_commitment(run, 1)), sign(round_commitment(run, 2))]
