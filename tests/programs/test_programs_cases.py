"""Test cases about audited results: who may open one, who votes, and what follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aftermath.rules import audits, bitmap
from aftermath.rules.run import BACKLOG, RoundId
from aftermath.rules.state import MemberState
from programs.audit_cases import (
    EVERYONE,
    POINTS,
    Audit,
    audit_of,
    audited,
    cases,
    convict,
    end_epoch,
    share_of,
    start_established,
    vote,
)
from programs.harness import World
from programs.scenario import Scenario


# ---- decisions
def test_jury_convicts_target_and_voids_its_result(world: World) -> None:
    run = audited(world)
    audit = audit_of(run, 0)
    share = share_of(run, audit)
    assert (len(audit.jury), audit.decisive) == (6, 4)
    vote(run, audit.auditor, audit).ok()
    assert [(one.target, one.auditor, one.opened) for one in cases(run)] == [
        (audit.target, audit.auditor, 2)
    ]
    assert list(cases(run)[0].intervals) == share
    vote(run, audit.others[0], audit, mismatch=False).ok()
    for seat in audit.others[1:3]:
        vote(run, seat, audit).ok()
        assert run.members.seats[audit.target].state is MemberState.HEALTHY
    before = run.run.members_seq
    vote(run, audit.others[3], audit).ok()
    assert run.members.seats[audit.target].state is MemberState.EJECTED
    assert bitmap.contains(run.members.forfeited, audit.target)
    assert run.run.members_seq == before + 1
    assert cases(run) == ()
    assert list(run.backlog) == share
    for seat in (audit.auditor, audit.others[4]):
        vote(run, seat, audit).refused("NotAJuror")
    run.witness_round()
    vote(run, audit.auditor, audit).refused("NotAJuror")  # its sequences would be put back again
    assert list(run.run.current.redo) == share
    assert run.backlog == ()
    end_epoch(run)
    seats = run.members.seats
    assert (seats[audit.target].points, seats[audit.target].slashed) == (POINTS - 9, 9)
    assert {seats[one].points for one in audit.jury} == {POINTS + 100 // 6}


def test_jury_acquits_target_and_ejects_accuser(world: World) -> None:
    run = audited(world)
    audit = audit_of(run, 0)
    vote(run, audit.auditor, audit).ok()
    for seat in audit.others[:4]:
        assert run.members.seats[audit.auditor].state is MemberState.HEALTHY
        vote(run, seat, audit, mismatch=False).ok()
    assert run.members.seats[audit.auditor].state is MemberState.EJECTED
    assert run.members.seats[audit.target].state is MemberState.HEALTHY
    assert (cases(run), run.backlog) == ((), ())
    vote(run, audit.others[4], audit).refused("NotAJuror")
    vote(run, audit.auditor, audit).refused("SeatMismatch")


def test_member_that_left_is_convicted(world: World) -> None:
    run = audited(world)
    audit = audit_of(run, 0)
    run.by(audit.target, "leave_run").ok()
    height = run.members.seats[audit.target].exited_height
    convict(run, audit)
    seat = run.members.seats[audit.target]
    assert (seat.state, seat.exited_height) == (MemberState.EJECTED, height)
    assert bitmap.contains(run.members.forfeited, audit.target)


def test_accuser_that_left_is_ejected(world: World) -> None:
    run = audited(world)
    audit = audit_of(run, 0)
    vote(run, audit.auditor, audit).ok()
    run.by(audit.auditor, "leave_run").ok()
    for seat in audit.others[:4]:
        vote(run, seat, audit, mismatch=False).ok()
    assert run.members.seats[audit.auditor].state is MemberState.EJECTED


def test_jurors_that_left_still_count(world: World) -> None:
    """Two of six jurors leave. The four others must all vote mismatch."""
    run = audited(world)
    audit = audit_of(run, 0)
    vote(run, audit.auditor, audit).ok()
    for seat in audit.others[3:]:
        run.by(seat, "leave_run").ok()
        vote(run, seat, audit).refused("SeatMismatch")
    for seat in audit.others[:3]:
        assert run.members.seats[audit.target].state is MemberState.HEALTHY
        vote(run, seat, audit).ok()
    assert run.members.seats[audit.target].state is MemberState.EJECTED


def test_jurors_that_left_before_the_round_still_count(world: World) -> None:
    """Otherwise three of seven members could convict one of the other two that stay."""
    run = audited(world)
    leavers = (5, 6)
    for seat in leavers:
        run.by(seat, "leave_run").ok()
    for _ in range(4):
        run.witness_round()
    run.draw()
    height = run.run.current.height - 2
    header = run.run.round(height)
    assert header is not None
    assert not header.roster & bitmap.from_seats(leavers)
    drawn = audits.drawn_results(run.run, run.members, height)
    target = next(one for one in drawn if drawn[one] not in leavers)
    audit = audit_of(run, height, target)
    voters = [audit.auditor, *(seat for seat in audit.others if seat not in leavers)]
    assert len(audit.jury) == 6
    for seat in voters:
        assert run.members.seats[target].state is MemberState.HEALTHY
        vote(run, seat, audit).ok()
    assert run.members.seats[target].state is MemberState.EJECTED


def with_two_drawn_results(world: World) -> tuple[Scenario, Audit, Audit]:
    """Return a run, and the audits of one member's results in two rounds."""
    run = audited(world, rounds=3)
    drawn = [audits.drawn_results(run.run, run.members, height) for height in (0, 1)]
    # Each round has four drawn results of seven. An auditor may have only one open case.
    target = next(one for one in drawn[0] if drawn[0][one] != drawn[1].get(one, drawn[0][one]))
    return run, audit_of(run, 0, target), audit_of(run, 1, target)


def test_second_conviction_voids_second_result(world: World) -> None:
    run, first, second = with_two_drawn_results(world)
    shares = share_of(run, first) + share_of(run, second)
    vote(run, second.auditor, second).ok()
    convict(run, first)
    for seat in second.others[:3]:
        vote(run, seat, second).ok()
    assert cases(run) == ()
    assert sum(one.len for one in run.backlog) == sum(one.len for one in shares)


def test_result_of_ejected_member_is_disputed_and_voided(world: World) -> None:
    run, first, second = with_two_drawn_results(world)
    shares = share_of(run, first) + share_of(run, second)
    convict(run, first)
    before = run.run.members_seq
    convict(run, second)
    assert run.run.members_seq == before
    assert run.members.forfeited == 1 << first.target
    assert sum(one.len for one in run.backlog) == sum(one.len for one in shares)


def test_full_backlog_counts_void_result_as_trained(world: World) -> None:
    run = audited(world)
    audit = audit_of(run, 0)
    state = world.record("Run", "test")
    witnesses = world.record("Witnesses", "test")
    used = BACKLOG - 10
    intervals = witnesses["backlog"][0]["intervals"]
    intervals["start"][:used] = range(0, 2 * used, 2)
    intervals["len"][:used] = 1
    witnesses["backlog"]["count"] = used
    state["backlog"] = used
    state["data_index"] = max(int(state["data_index"][0]), 2 * used)
    state["rounds"][0]["data_index"][2] = state["data_index"][0] - 48
    world.store("Run", "test", state)
    world.store("Witnesses", "test", witnesses)
    convict(run, audit)
    assert run.members.seats[audit.target].state is MemberState.EJECTED
    assert (run.run.backlog, len(run.backlog)) == (used, used)


# ---- who and when
def test_only_drawn_auditor_opens_case_with_mismatch(world: World) -> None:
    run = audited(world)
    audit = audit_of(run, 0)
    vote(run, audit.auditor, audit, mismatch=False).refused("NotDisputed")
    for seat in (*audit.others, audit.target):
        vote(run, seat, audit).refused("NotAuditor")
    stranger = Audit(audit.at, 200, audit.auditor, audit.jury)
    vote(run, audit.auditor, stranger).refused("NotAudited")
    other_seat = audit.others[0]
    run.by(other_seat, "verify", audit.auditor, audit.at, audit.target, True).refused(
        "SeatMismatch"
    )
    vote(run, audit.auditor, audit).ok()
    assert len(cases(run)) == 1


def test_undrawn_result_is_not_disputed(world: World) -> None:
    run = audited(world, verification_percent=20)
    drawn = audits.drawn_results(run.run, run.members, 0)
    undrawn = sorted(set(EVERYONE) - set(drawn))
    assert undrawn
    at = RoundId(0, 0, run.run.rounds[0].seed)
    for target in undrawn:
        for seat in set(EVERYONE) - {target}:
            run.by(seat, "verify", seat, at, target, True).refused("NotAudited")


def test_unrecorded_result_is_not_disputed(world: World) -> None:
    run = audited(world, rounds=1)
    run.witness_round(participation=0b0001111)
    run.draw()
    assert set(audits.drawn_results(run.run, run.members, 0)) == {0, 1, 2, 3}
    at = RoundId(0, 0, run.run.rounds[0].seed)
    run.by(0, "verify", 0, at, 6, True).refused("NotAudited")


def test_jurors_vote_once_and_parties_do_not_judge(world: World) -> None:
    run = audited(world)
    audit = audit_of(run, 0)
    vote(run, audit.auditor, audit).ok()
    for mismatch in (True, False):
        vote(run, audit.auditor, audit, mismatch).refused("DuplicateVerdict")
        vote(run, audit.target, audit, mismatch).refused("NotAJuror")
    vote(run, audit.others[0], audit, mismatch=False).ok()
    vote(run, audit.others[0], audit).refused("DuplicateVerdict")
    assert (cases(run)[0].mismatches, cases(run)[0].matches) == (
        1 << audit.auditor,
        1 << audit.others[0],
    )


def test_members_of_higher_tier_do_not_judge(world: World) -> None:
    """A member of tier 1 does not hold level 0, which the target of tier 0 trained."""
    run = Scenario(world).start(verification_percent=100, init_min_clients=10, rounds_per_epoch=9)
    start_established(run, {index: index % 2 for index in range(10)})
    run.witness_round()
    run.witness_round(participation=0b11)
    run.draw()
    audit = audit_of(run, 0, 0)
    assert audit.jury == (2, 4, 6, 8)
    vote(run, audit.auditor, audit).ok()
    for seat in (1, 3, 5, 7, 9):
        vote(run, seat, audit).refused("NotAJuror")
    small = audit_of(run, 0, 1)
    assert small.jury == (0, *range(2, 10))


def test_result_with_three_jurors_is_not_drawn(world: World) -> None:
    """Two of a jury of three could convict the accuser."""
    run = Scenario(world).start(verification_percent=100, init_min_clients=4, rounds_per_epoch=9)
    start_established(run, dict.fromkeys(range(4), 0))
    for _ in range(2):
        run.witness_round()
    run.draw()
    at = RoundId(0, 0, run.run.rounds[0].seed)
    for seat in range(4):
        for target in range(4):
            run.by(seat, "verify", seat, at, target, True).refused("NotAudited")


def test_newcomers_are_audited_by_established_members(world: World) -> None:
    run = Scenario(world).start(verification_percent=1, init_min_clients=7, rounds_per_epoch=9)
    start_established(run, dict.fromkeys(EVERYONE, 0), range(5))
    for _ in range(2):
        run.witness_round(range(5))
    run.draw()
    drawn = audits.drawn_results(run.run, run.members, 0)
    assert {5, 6} <= set(drawn)
    audit = audit_of(run, 0, 6)
    assert audit.jury == tuple(range(5))
    vote(run, audit.auditor, audit).ok()
    vote(run, 5, audit).refused("NotAJuror")
    for seat in audit.others[:3]:
        vote(run, seat, audit).ok()
    assert run.members.seats[6].state is MemberState.EJECTED


def test_newcomers_take_at_most_four_audits(world: World) -> None:
    """All ten newcomers qualify, but only four of the eight audits of a round are theirs."""
    run = Scenario(world).start(verification_percent=100, init_min_clients=16, rounds_per_epoch=9)
    start_established(run, dict.fromkeys(range(16), 0), range(6))
    for _ in range(2):
        run.witness_round(range(6))
    run.draw()
    drawn = audits.drawn_results(run.run, run.members, 0)
    assert sum(target < 6 for target in drawn) == 4
    assert sum(target >= 6 for target in drawn) == 4
    audit = audit_of(run, 0, min(drawn))
    vote(run, audit.auditor, audit).ok()
    at = RoundId(0, 0, run.run.rounds[0].seed)
    for target in set(range(16)) - set(drawn):
        for seat in set(range(6)) - {target, audit.auditor}:
            run.by(seat, "verify", seat, at, target, True).refused("NotAudited")


def test_rounds_that_everyone_witnesses_have_no_audits(world: World) -> None:
    """Newcomers witness a run's first epoch. There, enough newcomers could convict any member."""
    run = Scenario(world).start(verification_percent=100, init_min_clients=7, rounds_per_epoch=9)
    run.train(EVERYONE)
    for _ in range(2):
        run.witness_round()
    run.draw()
    assert audits.auditable_heights(run.run) == ()
    at = RoundId(0, 0, run.run.rounds[0].seed)
    for seat in EVERYONE:
        for target in set(EVERYONE) - {seat}:
            run.by(seat, "verify", seat, at, target, True).refused("StaleHeight")


def test_all_other_jurors_of_four_acquit_target(world: World) -> None:
    run = Scenario(world).start(verification_percent=100, init_min_clients=5, rounds_per_epoch=9)
    start_established(run, dict.fromkeys(range(5), 0))
    for _ in range(2):
        run.witness_round()
    run.draw()
    audit = audit_of(run, 0)
    assert len(audit.jury) == 4
    vote(run, audit.auditor, audit).ok()
    for seat in audit.others:
        assert run.members.seats[audit.auditor].state is MemberState.HEALTHY
        vote(run, seat, audit, mismatch=False).ok()
    assert run.members.seats[audit.auditor].state is MemberState.EJECTED
    assert run.members.seats[audit.target].state is MemberState.HEALTHY


def test_auditor_has_one_open_case(world: World) -> None:
    """Eight results of two rounds have seven possible auditors, so one audits two of them."""
    run = audited(world, rounds=3)
    by_auditor: dict[int, list[Audit]] = {}
    for height in (0, 1):
        for target in audits.drawn_results(run.run, run.members, height):
            audit = audit_of(run, height, target)
            by_auditor.setdefault(audit.auditor, []).append(audit)
    first, second = next(cases for cases in by_auditor.values() if len(cases) > 1)[:2]
    vote(run, first.auditor, first).ok()
    vote(run, second.auditor, second).refused("CasesFull")
    assert len(cases(run)) == 1


def test_result_is_disputed_only_in_two_rounds_after(world: World) -> None:
    """The auditor has the rest of round 2 and the whole round 3 for a result of round 0."""
    run = audited(world, rounds=0)
    at = RoundId(0, 0, run.run.rounds[0].seed)
    run.by(0, "verify", 0, at, 1, True).refused("StaleHeight")
    run.witness_round()
    run.draw()
    run.by(0, "verify", 0, at, 1, True).refused("StaleHeight")  # it is not recorded yet
    run.witness_round()
    run.by(0, "verify", 0, at, 1, True).refused("StaleHeight")  # nobody knows the draw yet
    run.draw()
    first = audits.drawn_results(run.run, run.members, 0)
    run.witness_round()
    assert audits.drawn_results(run.run, run.members, 0) == first
    snapshot = world.snapshot()
    audit = audit_of(run, 0)
    vote(run, audit.auditor, audit).ok()
    world.load(snapshot)
    run.witness_round()
    vote(run, audit.auditor, audit).refused("StaleHeight")


@pytest.mark.parametrize("rounds", [4, 5])
def test_case_expires_after_four_whole_rounds(world: World, rounds: int) -> None:
    run = audited(world)
    audit = audit_of(run, 0)
    vote(run, audit.auditor, audit).ok()
    for _ in range(rounds):
        run.witness_round()
    for number, seat in enumerate(audit.others[:3]):
        outcome = vote(run, seat, audit)
        if rounds == 5:
            outcome.refused("StaleHeight")
        else:
            outcome.ok()
            expected = MemberState.EJECTED if number == 2 else MemberState.HEALTHY
            assert run.members.seats[audit.target].state is expected
    if rounds == 5:
        states = {seat.state for seat in run.members.seats if seat.used}
        assert states == {MemberState.HEALTHY}
        assert run.backlog == ()


def test_vote_about_another_round_is_refused(world: World) -> None:
    run = audited(world, rounds=3)
    audit = audit_of(run, 0)
    vote(run, audit.auditor, audit).ok()
    for round_id in (
        audit.at._replace(seed=audit.at.seed ^ 1),
        audit.at._replace(epoch=1),
        audit.at._replace(height=3),
        audit.at._replace(height=9),
    ):
        seat = audit.others[0]
        run.by(seat, "verify", seat, round_id, audit.target, True).refused("StaleHeight")


def open_until_full(run: Scenario, wanted: Callable[[int], bool]) -> int:
    """Open cases about results of `wanted` targets until the run has no room. Return how many."""
    accusers: set[int] = set()
    while True:
        run.witness_round(range(10))
        run.draw()
        height = audits.auditable_heights(run.run)[0]
        for target in filter(wanted, audits.drawn_results(run.run, run.members, height)):
            audit = audit_of(run, height, target)
            if audit.auditor in accusers:
                continue
            accusers.add(audit.auditor)
            if (outcome := vote(run, audit.auditor, audit)).error:
                outcome.refused("CasesFull")
                return len(cases(run))


def test_four_cases_fill_class_until_one_expires(world: World) -> None:
    run = Scenario(world).start(verification_percent=100, init_min_clients=10, rounds_per_epoch=20)
    start_established(run, dict.fromkeys(range(10), 0))
    run.witness_round()
    assert open_until_full(run, lambda _: True) == 4
    while sum(one.is_open(run.run) for one in cases(run)) == 4:
        run.witness_round()
    run.draw()
    height = audits.auditable_heights(run.run)[0]
    open_cases = [one for one in cases(run) if one.is_open(run.run)]
    accusers = {one.auditor for one in open_cases}
    drawn = audits.drawn_results(run.run, run.members, height)
    later = audit_of(run, height, next(one for one in drawn if drawn[one] not in accusers))
    vote(run, later.auditor, later).ok()
    assert len(cases(run)) == 4
    assert sum(one.is_open(run.run) for one in cases(run)) == len(open_cases) + 1


def test_cases_about_newcomers_do_not_prevent_others(world: World) -> None:
    """Four cases about newcomers are open. Their auditors still accuse established members."""
    run = Scenario(world).start(verification_percent=100, init_min_clients=16, rounds_per_epoch=20)
    start_established(run, dict.fromkeys(range(16), 0), range(10))
    run.witness_round(range(10))
    assert open_until_full(run, lambda target: target >= 10) == 4
    busy = {one.auditor for one in cases(run)}
    accused_by_busy = 0
    for _ in range(3):
        height = audits.auditable_heights(run.run)[0]
        for target, auditor in audits.drawn_results(run.run, run.members, height).items():
            is_open = [one.auditor for one in cases(run) if one.target < 10]
            if target < 10 and auditor not in is_open and len(is_open) < 4:
                vote(run, auditor, audit_of(run, height, target)).ok()
                accused_by_busy += auditor in busy
        run.witness_round(range(10))
        run.draw()
    assert accused_by_busy


def test_run_without_audits_has_no_cases(world: World) -> None:
    run = audited(world, verification_percent=0)
    at = RoundId(0, 0, run.run.rounds[0].seed)
    for seat in EVERYONE:
        run.by(seat, "verify", seat, at, (seat + 1) % 7, True).refused("StaleHeight")


def test_verdict_outside_training_is_refused(run: Scenario) -> None:
    run.warm_up([0, 1, 2])
    run.by(0, "verify", 0, 0, 1, True).refused("WrongState")
