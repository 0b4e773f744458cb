"""Test that two different signed results of one share, submitted by anyone, eject the signer.

The old rule had an exploit: a member that signed another result for every peer delivered nothing,
but kept its place, its share and its points.
"""

import struct
from typing import Any

import msgspec
import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from aftermath.chain.addresses import ED25519, INSTRUCTIONS
from aftermath.rules.announcements import (
    NOTHING,
    Commitment,
    LevelPayload,
    PassSettings,
    PrivateRoots,
    Ready,
    SequenceInterval,
    Signed,
)
from aftermath.rules.state import MemberState, RunState
from programs.evidence import IX, LIAR, p2p, pair, round_commitment, sign
from programs.harness import Outcome, World
from programs.scenario import Scenario, member

LOCAL = 0xFFFF


@pytest.fixture
def training(run: Scenario) -> Scenario:
    """Return three members with real p2p keys in round 0. An ejection costs 9 points."""
    run.owner("set_future_epoch_rates", 100, 9).ok()
    return train(run)


def train(run: Scenario) -> Scenario:
    """Start an epoch with the three members and their real p2p keys."""
    for index in range(3):
        run.join(index, p2p=p2p(index)).ok()
    run.world.advance(40)
    run.tick().ok()
    run.world.advance(31)
    run.tick().ok()
    assert run.run.state is RunState.ROUND_TRAIN
    return run


def prove(
    run: Scenario, *before: Instruction, by: int = 0, accounts: dict[str, Pubkey] | None = None
) -> Outcome:
    keys = {"user": member(by).pubkey()} | (accounts or {})
    return run.world.send(
        *before, run.instruction("prove_equivocation", accounts=keys), signers=[member(by)]
    )


def show(run: Scenario, *signed: Signed, by: int = 0) -> Outcome:
    return prove(run, IX.check_signatures(signed), by=by)


def test_equivocating_member_is_ejected_and_forfeits(training: Scenario) -> None:
    run = training
    record = run.world.record("Members", "test")
    record["seats"][0]["points"][:3] = 20
    run.world.store("Members", "test", record)
    show(run, *pair(run), by=77).ok()  # a wallet that has nothing to do with the run
    assert run.members.seats[LIAR].state is MemberState.EJECTED
    assert run.run.current.elected == 2
    show(run, *pair(run)).refused("AlreadyEjected")
    run.witness(LIAR).refused("SeatMismatch")
    while run.run.state is not RunState.COOLDOWN:
        run.witness_round([0, 2])
    run.world.advance(31)
    run.tick().ok()
    seats = run.members.seats
    assert [(seat.points, seat.slashed, seat.weight) for seat in seats[:3]] == [
        (70, 0, 120),
        (11, 9, 1),
        (70, 0, 120),
    ]
    show(run, *pair(run)).refused("WrongState")


def test_leave_before_proof_does_not_save_bond(training: Scenario) -> None:
    run = training
    signed = pair(run)
    run.by(LIAR, "leave_run").ok()
    run.witness_round([0, 2])
    show(run, *signed).ok()
    seat = run.members.seats[LIAR]
    assert (seat.state, seat.exited_height) == (MemberState.EJECTED, 0)


def test_equivocation_proof_costs_one_bond_once(world: World) -> None:
    """The exploit: the owner set the epoch back, and the two statements were submitted again."""
    run = Scenario(world).start(join_bond=10**6)
    train(run)
    signed = pair(run)
    show(run, *signed).ok()
    while run.run.state is not RunState.COOLDOWN:
        run.witness_round([0, 2])
    run.world.advance(31)
    run.tick().ok()
    run.settle(LIAR).ok()
    run.enroll(LIAR).ok()
    run.owner("set_paused", True).ok()
    at = {"step": run.run.step, "data_index": run.run.data_index}
    run.update(progress=at | {"epoch": 0}).refused("EpochGoesBack")
    run.update(progress=at | {"epoch": run.run.epoch}).ok()
    run.owner("set_paused", False).ok()
    train(run)
    show(run, *signed).refused("StaleHeight")
    membership = run.membership(LIAR)
    assert membership is not None
    assert (membership.bond, membership.ejections) == (10**6, 1)


def test_consistent_statements_eject_nobody(training: Scenario) -> None:
    run = training
    first = round_commitment(run)

    def against(**changed: Any) -> Outcome:
        return show(run, sign(first), sign(round_commitment(run, 2, **changed)))

    show(run, sign(first), sign(first)).refused("NoEquivocation")
    # the loss is not part of the commitment
    show(run, sign(first), sign(round_commitment(run, loss=2.0))).refused("NoEquivocation")
    against(height=1).refused("NoEquivocation")
    # another attempt at the epoch, or another run of that name
    against(seed=first.seed ^ 1).refused("NoEquivocation")
    against(epoch=1).refused("NoEquivocation")
    against(seat=2).refused("NoEquivocation")
    against(run_id="other").refused("NoEquivocation")
    both = {"run_id": "other"}
    show(
        run, sign(round_commitment(run, 1, **both)), sign(round_commitment(run, 2, **both))
    ).refused("StaleHeight")
    show(
        run, sign(round_commitment(run, 1, epoch=1)), sign(round_commitment(run, 2, epoch=1))
    ).refused("StaleHeight")
    ready = Ready(sender=p2p(LIAR), signer=first.signer, run_id="test", epoch=0, seat=LIAR)
    show(run, sign(ready), sign(msgspec.structs.replace(ready, signer=b"x" * 32))).refused(
        "NoEquivocation"
    )
    assert run.members.mask(MemberState.HEALTHY) == 0b111


def test_equivocation_signed_by_another_is_refused(training: Scenario) -> None:
    run = training
    other = {"sender": p2p(2)}
    show(run, sign(round_commitment(run)), sign(round_commitment(run, 2, **other), 2)).refused(
        "NoEquivocation"
    )  # two keys signed
    mine = [sign(round_commitment(run, result, **other), 2) for result in (1, 2)]
    show(run, *mine).refused("SeatMismatch")  # the key of seat 2 signed for seat 1
    unused = [sign(round_commitment(run, result, seat=9)) for result in (1, 2)]
    show(run, *unused).refused("SeatMismatch")
    forged = sign(round_commitment(run, 2))._replace(
        signature=sign(round_commitment(run)).signature
    )
    assert show(run, sign(round_commitment(run)), forged).error is not None
    assert run.members.mask(MemberState.HEALTHY) == 0b111


def packed(entries: list[tuple[int, ...]], data: bytes, count: int | None = None) -> Instruction:
    """Return an Ed25519 instruction with any table of offsets."""
    table = b"".join(struct.pack("<7H", *entry) for entry in entries)
    return Instruction(
        ED25519, bytes([len(entries) if count is None else count, 0]) + table + data, []
    )


def test_signatures_of_other_instructions_prove_nothing(training: Scenario) -> None:
    """The Ed25519 program can take keys, messages and signatures from any instruction of the
    transaction.

    It then checks other bytes than those at the same offsets of its own data.
    """
    run = training
    honest = sign(round_commitment(run, 1, 0), 0)
    lie = sign(round_commitment(run, 2, 0), 0)
    # member 0 signed one result; an attacker puts another one where the program looks, and has the
    # check look elsewhere
    real = honest.signature + honest.key + honest.statement
    never = honest.signature + honest.key + lie.statement
    size = len(honest.statement)
    first = 2 + 2 * 14
    second = 2 + 2 * 14 + len(real)

    def entry(start: int, where: int) -> tuple[int, ...]:
        return start, where, start + 64, where, start + 96, size, where

    signatures = IX.check_signatures([honest, honest])  # the first instruction after the budget's
    data = real + never
    prove(run, signatures, packed([entry(first, LOCAL), entry(second, 1)], data)).refused(
        "NoEquivocation"
    )
    prove(run, signatures, packed([entry(first, 1), entry(second, 1)], data)).refused(
        "NoEquivocation"
    )
    assert (
        prove(run, signatures, packed([entry(first, LOCAL), entry(second, LOCAL)], data)).error
        == "custom 2"
    )  # the Ed25519 program's own error
    for place in (1, 3, 6):  # only the signature, only the key, only the message
        mixed = list(entry(second, LOCAL))
        mixed[place] = 1
        assert (
            prove(run, signatures, packed([entry(first, LOCAL), tuple(mixed)], data)).error
            is not None
        )
    assert run.members.mask(MemberState.HEALTHY) == 0b111


def test_only_previous_instruction_counts_as_proof(training: Scenario) -> None:
    run = training
    check = IX.check_signatures(pair(run))
    prove(run).refused("NoEquivocation")  # the budget's instruction is before it
    budget = Instruction(
        Pubkey.from_string("ComputeBudget111111111111111111111111111111"), b"\x01" + bytes(4), []
    )
    prove(run, check, IX.check_signatures(pair(run)[:1])).refused("NoEquivocation")
    three = pair(run)
    prove(run, IX.check_signatures([*three, three[0]])).refused("NoEquivocation")
    data = bytes(check.data)
    assert prove(run, check, budget).error is not None
    entries = [struct.unpack_from("<7H", data, 2 + 14 * index) for index in range(2)]
    for size in (len(three[0].statement) - 1, 0):
        cut = [(*entry[:5], size, LOCAL) for entry in entries]
        assert prove(run, packed(cut, data[30:])).error is not None
    # the same bytes for a program that checks nothing
    fake = Instruction(budget.program_id, data, [AccountMeta(run.accounts["run"], False, False)])
    assert prove(run, fake).error is not None
    forged = Pubkey.from_string("B" * 44)
    run.world.put(
        forged,
        run.world.data(INSTRUCTIONS),
        owner=Pubkey.from_string("Sysvar1111111111111111111111111111111111111"),
    )
    prove(run, check, accounts={"instructions": forged}).refused("WrongInstructions")
    assert run.members.mask(MemberState.HEALTHY) == 0b111
    prove(run, check).ok()


def test_commitment_statement_layout_is_stable(world: World) -> None:
    """The program reads the commitment at fixed offsets."""
    del world
    one = Commitment(
        sender=p2p(0), signer=b"w" * 32, run_id="test", epoch=2, height=7, seed=2**64 - 2, step=27, seat=5, tier=0,
        intervals=(SequenceInterval(40, 42),), schema_hash=b"s" * 32, levels={0: LevelPayload(b"1" * 32, 9)},
        private=PrivateRoots(NOTHING, b"a" * 32, None),
        passes=PassSettings(1, "fp32", "fp32", False, "cpu"),
        seal=b"k" * 32, loss=1.0, tokens_per_sec=1.0,
    )  # fmt: skip
    statement = sign(one, 0).statement
    head = (
        b"aftermath announcement 3\x01"
        + b"test".ljust(32, b"\0")
        + struct.pack("<IIQB", 2, 7, 2**64 - 2, 5)
    )
    assert statement[: len(head)] == head
    assert statement[len(head) : len(head) + 32] == one.digest
    assert len(statement) == len(head) + 64 == 138
