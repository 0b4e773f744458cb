"""Test cases about audited results at the end of an epoch, and what ejected members may do."""

from __future__ import annotations

import pytest

from aftermath.rules import audits, bitmap, committee
from aftermath.rules.deadlines import next_deadline
from aftermath.rules.state import MemberState, RunState
from programs.audit_cases import (
    EVERYONE,
    audit_of,
    audited,
    cases,
    convict,
    end_epoch,
    share_of,
    vote,
)
from programs.harness import World
from programs.scenario import Scenario

HASHES = {level: bytes([level + 1]) * 32 for level in range(3)}


@pytest.mark.parametrize("overlap", [0, 1])
def test_last_round_with_data_is_drawn_before_cooldown(world: World, overlap: int) -> None:
    """Round 3 is the last one with data. The seed fixed after its results draws audits of it."""
    run = audited(world, rounds=4, overlap=overlap, rounds_per_epoch=4)
    while run.run.draining:
        assert run.run.current.batch == 0
        run.witness_round()
    assert (run.run.state, run.run.current.height) == (RunState.COOLDOWN, 4 + overlap)
    assert audits.auditable_heights(run.run) == (3, 2)
    audit = audit_of(run, 3)
    convict(run, audit)
    seat = run.members.seats[audit.target]
    assert (seat.state, seat.exited_height) == (MemberState.EJECTED, 5 + overlap)


def test_epoch_without_audits_has_no_second_drain_round(world: World) -> None:
    """Everyone witnesses a run's first epoch, so it has no audits."""
    run = Scenario(world).start(verification_percent=100, rounds_per_epoch=2)
    run.train(range(3))
    for _ in range(3):
        assert run.run.state is not RunState.COOLDOWN
        run.witness_round()
    assert (run.run.state, run.run.current.height) == (RunState.COOLDOWN, 2)
    for index in range(3):
        if run.run.levels_attested != 0b111:
            run.attest(index, HASHES).ok()
    name_checkpoint(run)
    assert run.run.state is RunState.WAITING_FOR_MEMBERS


def in_cooldown(world: World) -> Scenario:
    """Return a run in the cooldown of an audited epoch. Round 3 was its last one with data."""
    run = audited(world, rounds=5, rounds_per_epoch=4)
    run.witness_round()
    assert run.run.state is RunState.COOLDOWN
    return run


def attest_levels(run: Scenario) -> None:
    for index in EVERYONE:
        if run.run.levels_attested != 0b111:
            run.attest(index, HASHES).ok()


def name_checkpoint(run: Scenario) -> None:
    healthy = bitmap.seats(run.members.healthy)
    checkpoint = {"kind": 1, "repo": "r", "revision": "", "hashes": list(HASHES.values())}
    run.by(next(healthy), "checkpoint", checkpoint).ok()


def test_cooldown_with_audits_takes_its_whole_time(world: World) -> None:
    """Otherwise a save would end the time to audit the last rounds."""
    run = in_cooldown(world)
    attest_levels(run)
    name_checkpoint(run)
    assert run.run.state.name == "COOLDOWN"
    run.tick().refused("NothingToTick")
    assert next_deadline(run.run, run.members, run.model) == run.run.state_started_at + 30
    audit = audit_of(run, 3)
    convict(run, audit)
    assert run.run.state.name == "COOLDOWN"
    run.world.advance(31)
    run.tick().ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    assert run.members.forfeited == 1 << audit.target
    assert not bitmap.contains(run.members.established, audit.target)


def test_undecided_case_ends_with_cooldown(world: World) -> None:
    run = in_cooldown(world)
    audit = audit_of(run, 3)
    for seat in (audit.auditor, *audit.others)[:3]:
        vote(run, seat, audit).ok()
    attest_levels(run)
    run.world.advance(31)
    run.tick().ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    assert run.members.forfeited == 0


def test_void_result_of_attested_model_is_trained_again(world: World) -> None:
    """A checkpoint lists the void sequences as untrained, so a rewind to it repeats them."""
    run = in_cooldown(world)
    audit = audit_of(run, 3)
    share = share_of(run, audit)
    for seat in (audit.auditor, *audit.others)[: audit.decisive - 1]:
        vote(run, seat, audit).ok()
    attest_levels(run)
    assert run.run.attested_data_index == run.run.data_index
    vote(run, audit.others[audit.decisive - 2], audit).ok()
    assert run.members.seats[audit.target].state is MemberState.EJECTED
    assert run.run.attested_data_index == share[0].start
    name_checkpoint(run)
    assert run.model.checkpoint_data_index == share[0].start
    run.owner("set_paused", True).ok()
    run.world.advance(31)
    run.tick().ok()
    run.owner("rewind", 0, run.model.checkpoint_step).ok()
    assert (run.run.data_index, run.run.backlog) == (share[0].start, 0)


def test_cases_end_with_epoch(world: World) -> None:
    run = audited(world, rounds=4, rounds_per_epoch=4)
    audit = audit_of(run, 2)
    vote(run, audit.auditor, audit).ok()
    end_epoch(run)
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    vote(run, audit.others[0], audit).refused("WrongState")
    run.world.advance(100_000)
    run.warm_up(EVERYONE)
    vote(run, audit.others[0], audit).refused("WrongState")
    run.world.advance(31)
    run.tick().ok()
    assert cases(run) == ()
    vote(run, audit.others[0], audit).refused("StaleHeight")


def make_finishers(run: Scenario) -> None:
    """Let the members count as those that finished the last epoch."""
    record = run.world.record("Run", "test")
    record["finishers"][0] = bitmap.to_bytes(bitmap.from_seats(EVERYONE))
    run.world.store("Run", "test", record)


def refuse_checkpoint_of(run: Scenario, seat: int) -> None:
    index = run.index_of(run.members.seats[seat].signer)
    named = {"kind": 1, "repo": "r", "revision": "", "hashes": list(HASHES.values())}
    run.by(index, "checkpoint", named).refused("NotAllowedToCheckpoint")


def test_ejected_member_attests_and_saves_nothing(world: World) -> None:
    """The round after its ejection records its last result, but that earns it no vote."""
    run = audited(world, rounds=3, rounds_per_epoch=5)
    make_finishers(run)
    audit = audit_of(run, 1)
    convict(run, audit)
    while run.run.state.training:
        run.witness_round()
    assert run.run.state is RunState.COOLDOWN
    assert not bitmap.contains(run.members.proven, audit.target)
    for level in range(3):
        assert audit.target not in committee.cooldown_electees(run.run, run.members, level)
    for seat in audit.jury:
        if run.run.levels_attested != 0b111:
            run.attest(run.index_of(run.members.seats[seat].signer), HASHES).ok()
    refuse_checkpoint_of(run, audit.target)


def test_member_ejected_in_cooldown_names_no_checkpoint(world: World) -> None:
    run = in_cooldown(world)
    make_finishers(run)
    attest_levels(run)
    audit = audit_of(run, 3)
    convict(run, audit)
    assert bitmap.contains(run.members.proven, audit.target)
    refuse_checkpoint_of(run, audit.target)
