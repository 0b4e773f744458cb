"""Test cases about audited results at the end of an epoch, and what ejected members may do."""

from __future__ import annotations

from aftermath.rules import audits, bitmap, committee
from aftermath.rules.deadlines import next_deadline
from aftermath.rules.run import RoundId
from aftermath.rules.state import MemberState, RunState
from programs.audit_cases import (
    EVERYONE,
    Audit,
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


def test_last_trained_round_has_no_audits(world: World) -> None:
    """Round 3 is the last one with data. Its drain round draws the results of round 2."""
    run = audited(world, rounds=4, rounds_per_epoch=4)
    assert run.run.draining
    assert audits.auditable_heights(run.run) == (2, 1)
    run.witness_round()
    assert run.run.state is RunState.COOLDOWN
    audit = audit_of(run, 2)
    convict(run, audit)
    seat = run.members.seats[audit.target]
    assert (seat.state, seat.exited_height) == (MemberState.EJECTED, 5)
    last = RoundId(0, 3, run.run.rounds[3].seed)
    run.by(audit.auditor, "verify", audit.auditor, last, audit.others[0], True).refused(
        "StaleHeight"
    )


def test_cooldown_without_overlap_judges_last_round_but_one(world: World) -> None:
    run = audited(world, rounds=1, overlap=0, rounds_per_epoch=2)
    assert audits.auditable_heights(run.run) == (0,)
    run.witness_round()
    assert run.run.state is RunState.COOLDOWN
    audit = audit_of(run, 0)
    convict(run, audit)
    assert run.members.seats[audit.target].state is MemberState.EJECTED


def in_cooldown_with_open_case(world: World, votes: int) -> tuple[Scenario, Audit]:
    """Return a run that has attested and saved its levels, and a case of six jurors.

    `votes` of them found a mismatch.
    """
    run = audited(world, rounds=4, rounds_per_epoch=4)
    run.witness_round()
    audit = audit_of(run, 2)
    for seat in (audit.auditor, *audit.others)[:votes]:
        vote(run, seat, audit).ok()
    for index in EVERYONE:
        if run.run.levels_attested != 0b111:
            run.attest(index, HASHES).ok()
    name_checkpoint(run)
    return run, audit


def name_checkpoint(run: Scenario) -> None:
    healthy = bitmap.seats(run.members.healthy)
    checkpoint = {"kind": 1, "repo": "r", "revision": "", "hashes": list(HASHES.values())}
    run.by(next(healthy), "checkpoint", checkpoint).ok()


def test_supported_case_keeps_cooldown_until_jury_decides(world: World) -> None:
    run, audit = in_cooldown_with_open_case(world, votes=3)
    assert run.run.state.name == "COOLDOWN"
    run.tick().refused("NothingToTick")
    start = run.run.state_started_at
    for known in (None, cases(run)):
        assert next_deadline(run.run, run.members, run.model, known) == start + 30
    assert next_deadline(run.run, run.members, run.model, ()) == start + 1
    vote(run, audit.others[2], audit).ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    assert bitmap.contains(run.members.forfeited, audit.target)
    assert not bitmap.contains(run.members.established, audit.target)


def test_third_of_the_jury_does_not_delay_next_epoch(world: World) -> None:
    run, _ = in_cooldown_with_open_case(world, votes=2)
    assert run.run.state is RunState.WAITING_FOR_MEMBERS


def test_undecided_case_ends_with_cooldown_time(world: World) -> None:
    run, _ = in_cooldown_with_open_case(world, votes=3)
    assert run.run.state.name == "COOLDOWN"
    run.world.advance(31)
    run.tick().ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    assert run.members.forfeited == 0


def test_void_result_of_attested_model_is_trained_again(world: World) -> None:
    """A checkpoint lists the void sequences as untrained, so a rewind to it repeats them."""
    run = audited(world, rounds=4, rounds_per_epoch=4)
    run.witness_round()
    audit = audit_of(run, 2)
    share = share_of(run, audit)
    for seat in (audit.auditor, *audit.others)[: audit.decisive - 1]:
        vote(run, seat, audit).ok()
    for index in EVERYONE:
        if run.run.levels_attested != 0b111:
            run.attest(index, HASHES).ok()
    assert run.run.attested_data_index == run.run.data_index
    vote(run, audit.others[audit.decisive - 2], audit).ok()
    assert run.members.seats[audit.target].state is MemberState.EJECTED
    assert run.run.attested_data_index == share[0].start
    name_checkpoint(run)
    assert run.model.checkpoint_data_index == share[0].start
    run.owner("set_paused", True).ok()
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
    run = audited(world, rounds=4, rounds_per_epoch=4)
    make_finishers(run)
    run.witness_round()
    for index in EVERYONE:
        if run.run.levels_attested != 0b111:
            run.attest(index, HASHES).ok()
    audit = audit_of(run, 2)
    convict(run, audit)
    assert bitmap.contains(run.members.proven, audit.target)
    refuse_checkpoint_of(run, audit.target)
