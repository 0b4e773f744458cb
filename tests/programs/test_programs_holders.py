"""Only members that have shown that they hold a level attest it. A declared tier proves nothing."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pytest

from aftermath.rules import bitmap, committee
from aftermath.rules.deadlines import next_deadline
from aftermath.rules.state import ExitReason, ModelSource, RunState
from programs.audit_cases import audit_of, convict, start_established
from programs.harness import Snapshot, World
from programs.scenario import UNATTESTED, Scenario

OLD = {level: bytes([16 * (level + 1)]) * 32 for level in range(3)}
TRUE = {level: bytes([level + 1]) * 32 for level in range(3)}
NEW = {level: bytes([64 + level]) * 32 for level in range(3)}
FALSE = dict.fromkeys(range(3), b"f" * 32)
LIARS = (7, 8)
TIERS = (0, 1, 1, 2, 2, 2, 1)  # of the honest members


def _rounds(
    run: Scenario, hidden: Iterable[int], from_holders: Iterable[int], liars: Iterable[int] = ()
) -> None:
    """Play all rounds.

    Some members withhold level 0 from its honest holders, and the liars vouch only for each other.
    """
    lost, liars = bitmap.from_seats(hidden), set(liars)
    while run.run.state.training:
        judged = run.run.round(run.run.current.height - 1)
        roster = judged.roster if judged else 0
        for index in run.elected():
            participation = (
                roster & bitmap.from_seats(liars | set(range(1, 7))) if index in liars else roster
            )
            run.witness(
                index, participation & ~lost if index in from_holders else participation
            ).ok()


def _end(
    run: Scenario, tiers: dict[int, int], hashes: dict[int, bytes], away: Iterable[int] = ()
) -> None:
    """Let all committee members attest the true hashes, and let the cooldown time out."""
    for index, tier in tiers.items():
        levels = committee.levels_to_attest(run.run, run.members, run.seat_of(index))
        if levels and index not in away:
            run.attest(index, {level: hashes[level] for level in range(tier, 3) if level in levels})
    run.world.advance(31)
    run.tick(1)
    assert run.run.state is RunState.WAITING_FOR_MEMBERS


def _grown(
    world: World, tiers: tuple[int, ...] = TIERS, rounds: int = 4
) -> tuple[Scenario, dict[int, int]]:
    """Return a run of one honest holder of level 0 and six other members after its first epoch."""
    world.load(_first_epoch(tiers, rounds))
    return Scenario(world), dict(enumerate(tiers))


@cache
def _first_epoch(tiers: tuple[int, ...], rounds: int) -> Snapshot:
    run = Scenario(World()).start(init_min_clients=3, rounds_per_epoch=rounds)
    honest = dict(enumerate(tiers))
    record = run.world.record("Model", "test")
    for level, digest in OLD.items():
        record["checkpoint_hashes"][0][level] = digest
    run.world.store("Model", "test", record)
    run.train_of(honest)
    _rounds(run, (), ())
    _end(run, honest, TRUE)
    assert (run.run.levels_attested, run.run.level_hashes) == (0b111, tuple(TRUE.values()))
    return run.world.snapshot()


def test_two_of_nine_declaring_a_tier_do_not_attest_its_level(world: World) -> None:
    """They withhold level 0 from its holder and vouch for each other.

    They are two of the three declared holders.
    """
    run, honest = _grown(world)
    run.train_of(honest | dict.fromkeys(LIARS, 0))
    _rounds(run, hidden=LIARS, from_holders=(0,), liars=LIARS)
    assert [run.members.delivered[run.seat_of(index)] for index in LIARS] == [
        4,
        4,
    ]  # a quorum of all has the rest of it
    for index in LIARS:
        run.attest(index, FALSE).refused("NotElected")
    _end(run, honest, NEW)
    assert (run.run.levels_attested, run.run.level_hashes) == (0b111, tuple(NEW.values()))


def test_member_showing_level_to_its_holders_is_a_holder(world: World) -> None:
    run, honest = _grown(world)
    run.train_of(honest | dict.fromkeys(LIARS, 0))
    for electees in ({0}, {0, *LIARS}):  # the liars are elected after an epoch
        _rounds(run, (), ())
        assert set(committee.cooldown_electees(run.run, run.members, 0)) == electees
        for index in electees - {0}:
            run.attest(index, NEW).ok()
        if len(electees) == 1:
            _end(run, honest, TRUE)
            run.train_of(honest | dict.fromkeys(LIARS, 0))
    assert run.run.level_hashes[0] == NEW[0]
    assert run.run.levels_attested & 1


def test_holder_in_half_of_levels_judged_rounds_is_elected(world: World) -> None:
    """One further holder delivers level 0 in two of four rounds, and another one in one of them."""
    run, honest = _grown(world, tiers=(0, 0, 1, 1, 2, 2, 1), rounds=5)
    run.train_of(honest)
    short = iter((0, 0, 0b11, 0b10, 0b10, 0))
    while run.run.state.training:
        judged = run.run.round(run.run.current.height - 1)
        lost = next(short)
        roster = judged.roster if judged else 0
        for index in run.elected():
            run.witness(index, roster & ~lost if index < 2 else roster).ok()
    assert set(committee.cooldown_electees(run.run, run.members, 0)) == {0, 1}
    run.attest(1, NEW).refused("NotElected")
    run.attest(0, NEW).ok()
    # a quorum also needs the other member that has shown the level
    assert run.run.level_hashes[0] == UNATTESTED


def test_absent_established_holder_leaves_level_unattested(world: World) -> None:
    """A newcomer delivered all that it owed, and only it could attest level 0."""
    run, honest = _grown(world)
    run.train_of(honest | {7: 0})
    for _ in range(3):
        run.witness_round()
    run.by(0, "leave_run").ok()
    run.finish_rounds()
    assert set(committee.cooldown_electees(run.run, run.members, 0)) == {0, 7}
    run.attest(7, {0: FALSE[0]}).ok()
    for index in range(1, 7):
        run.attest(index, {level: NEW[level] for level in range(TIERS[index], 3)}).ok()
    world.advance(31)
    run.tick(1).ok()
    state = run.run
    assert (state.level_hashes, state.levels_attested) == ((OLD[0], NEW[1], NEW[2]), 0b111)
    assert (state.levels_lost, state.model_source) == (0b001, ModelSource.PEERS)


def test_undelivered_level_keeps_its_hash(world: World) -> None:
    """The old holder is absent. Two members declare the level and deliver it to nobody."""
    run, honest = _grown(world)
    record = world.record("Model", "test")  # the last attested hashes are in a checkpoint
    for level, digest in TRUE.items():
        record["checkpoint_hashes"][0][level] = digest
    record["checkpoint_step"] = run.run.step
    world.store("Model", "test", record)
    del honest[0]
    run.train_of(honest | dict.fromkeys(LIARS, 0))
    _rounds(run, hidden=LIARS, from_holders=LIARS)
    _end(run, honest, NEW)
    state = run.run
    assert (state.levels_attested, state.level_hashes) == (0b111, (TRUE[0], NEW[1], NEW[2]))
    assert state.levels_lost == 0b001


def test_sole_holder_attests_its_level(world: World) -> None:
    run, honest = _grown(world)
    run.train_of(honest)
    _rounds(run, (), ())
    run.attest(0, NEW).ok()
    assert run.run.level_hashes[0] == NEW[0]


def test_half_of_levels_agreeing_holders_attests_it(world: World) -> None:
    """One of two holders of level 0 is silent or has left. The epoch's work is not lost."""
    run, honest = _grown(world, tiers=(0, 0, 1, 1, 2, 2, 1))
    for left in (False, True):
        run.train_of(honest)
        _rounds(run, (), ())
        if left:
            run.by(1, "leave_run").ok()
        _end(run, honest, NEW, away=(1,))
        assert run.run.level_hashes == tuple(NEW.values())
        assert run.run.levels_lost == 0


@pytest.mark.parametrize("gone", [(), (0,), (0, 1)], ids=["nobody", "one", "both"])
@pytest.mark.parametrize("holders", [1, 2])
def test_newcomers_do_not_attest_established_level(
    world: World, holders: int, gone: tuple[int, ...]
) -> None:
    """One or two members showed level 0 before, and two newcomers in this epoch.

    The newcomers are not elected.
    """
    run, honest = _grown(world, tiers=(0, 2 - 2 * (holders > 1), 1, 1, 2, 2, 1))
    run.train_of(honest | dict.fromkeys(LIARS, 0))
    run.finish_rounds()
    for index in gone:
        run.by(index, "leave_run").ok()
    for level in range(3):
        electees = committee.cooldown_electees(run.run, run.members, level)
        assert set(electees) == {index for index, tier in honest.items() if tier <= level}
    for index in LIARS:
        run.attest(index, FALSE).refused("NotElected")
    _end(run, {index: tier for index, tier in honest.items() if index not in gone}, NEW)
    there = set(range(holders)) - set(gone)
    assert run.run.level_hashes[0] == (NEW[0] if there else OLD[0])
    assert run.run.level_hashes[1:] == tuple(NEW.values())[1:]


@pytest.mark.parametrize("founders", [(0, 1, 2), (0, 0, 1), (0, 0, 0, 1, 2)], ids=str)
@pytest.mark.parametrize("attested", [0, 1])
def test_rounds_end_at_once_when_all_founders_leave(
    world: World, founders: tuple[int, ...], attested: int
) -> None:
    """The newcomers attest the levels that all trained together.

    They do not continue to train, because nobody could judge them. They become established, so the
    next epoch has no wait.
    """
    run, honest = _grown(world, tiers=founders, rounds=20)
    newcomers = range(len(founders), len(founders) + 12)
    run.train_of(honest | dict.fromkeys(newcomers, 0))
    for _ in range(3):
        run.witness_round()
    run.witness_round(run.elected()[:attested])
    left_at = world.now
    for index in honest:
        run.by(index, "leave_run").ok()
    while run.run.state.training:
        world.advance(1)
        run.tick(newcomers[0]).ok()
    reason = ExitReason.QUORUM_MISSING if attested else ExitReason.NO_ATTESTATION
    assert (run.run.state, run.run.exit_reason) == (RunState.COOLDOWN, reason)
    assert world.now <= left_at + 2
    for index in newcomers:
        if run.run.levels_attested != 0b111:
            run.attest(index, NEW).ok()
    world.advance(31)
    run.tick(newcomers[0]).ok()
    assert (run.run.levels_attested, run.run.level_hashes) == (0b111, tuple(NEW.values()))
    assert run.run.step > run.run.start_step
    for index in newcomers:
        run.join(index, tier=0).ok()
    assert next_deadline(run.run, run.members, run.model) == run.run.state_started_at + 5


def test_founders_leaving_early_keep_model(world: World) -> None:
    """No newcomer has shown a level, so nobody could attest the epoch.

    It is undone, and the founders may return.
    """
    run, honest = _grown(world, tiers=(0, 1, 2))
    before = run.run
    newcomers = range(3, 15)
    run.train_of(honest | dict.fromkeys(newcomers, 0))
    for _ in range(2):
        run.witness_round()
    for index in honest:
        run.by(index, "leave_run").ok()
    while run.run.state.training:
        world.advance(1)
        run.tick(newcomers[0]).ok()
    for index in newcomers:
        run.attest(index, FALSE).refused("NotElected")
    world.advance(31)
    run.tick(newcomers[0]).ok()
    state = run.run
    assert (state.step, state.level_hashes, state.finishers) == (
        before.step,
        before.level_hashes,
        before.finishers,
    )
    assert (state.levels_attested, state.model_source) == (0b111, ModelSource.PEERS)
    for index, tier in honest.items():
        run.join(index, tier=tier).ok()
    world.advance(6)
    run.tick(0)
    assert run.run.state is RunState.WARMUP


@pytest.mark.parametrize(
    "founders", [(0, 2, 2, 2), (0, 2, 2, 2, 2, 2, 2, 2), (0, 0, 0, 0)], ids=str
)
@pytest.mark.parametrize("newcomers", [1, 2, 12])
def test_one_staying_holder_suffices(
    world: World, founders: tuple[int, ...], newcomers: int
) -> None:
    """All other holders leave. Newcomers do not attest the levels of the one that stays."""
    run, honest = _grown(world, tiers=founders)
    liars = range(len(founders), len(founders) + newcomers)
    run.train_of(honest | dict.fromkeys(liars, 0))
    for _ in range(3):
        run.witness_round()
    for index in range(1, len(founders)):
        run.by(index, "leave_run").ok()
    while run.run.state.training:
        run.witness_round(run.elected())
    for index in liars:
        run.attest(index, FALSE).refused("NotElected")
    _end(run, {0: 0}, NEW)
    alone = [sum(tier <= level for tier in founders) == 1 for level in range(3)]
    assert run.run.level_hashes == tuple(
        NEW[level] if alone[level] else OLD[level] for level in range(3)
    )


@pytest.mark.parametrize(("rounds", "shows"), [(1, 0), (2, 0), (5, 0), (5, 2), (9, 4)])
def test_only_judges_of_tier_cannot_choose_judged_rounds(
    world: World, rounds: int, shows: int
) -> None:
    """The two members that declare level 0 are its only judges. They attest in one round at most,
    show level 1 in that one, and hide it in all others from its only holder.
    """
    run = Scenario(world).start(init_min_clients=3, rounds_per_epoch=rounds)
    honest = {0: 1} | dict.fromkeys(range(1, 7), 2)
    run.train_of(honest).finish_rounds()
    _end(run, honest, OLD)
    for _ in range(2):
        run.train_of(honest | dict.fromkeys(LIARS, 0))
        while run.run.state.training:
            height = run.run.current.height
            judged = run.run.round(run.run.current.height - 1)
            roster = judged.roster if judged else 0
            open_now = bool(shows) and height == shows
            for index in run.elected():
                if index in LIARS and not open_now:
                    continue
                hidden = index == 0 and not open_now
                run.witness(index, roster & ~bitmap.from_seats(LIARS) if hidden else roster).ok()
            for seconds in (21, 6):
                if run.run.current.height == height and run.run.state.training:
                    world.advance(seconds)
                    run.tick(1)
        for index in LIARS:
            run.attest(index, FALSE).refused("NotElected")
        _end(run, honest, TRUE)
        assert run.run.level_hashes[1:] == tuple(TRUE.values())[1:]
        assert run.members.established == bitmap.from_seats(honest)


@pytest.mark.parametrize("founders", ["all", "the others", "nobody"])
def test_nonattesting_judge_hides_no_level_from_its_holders(world: World, founders: str) -> None:
    """The only judge of level 0 attests no round, and withholds level 1 from all its holders."""
    rest = dict(enumerate((1, 1, 1, 2, 2, 2, 2, 2), start=1))
    run = Scenario(world, tiers=3).start(init_min_clients=3, rounds_per_epoch=12)
    if founders != "nobody":
        known = rest | ({0: 0} if founders == "all" else {})
        run.train_of(known).finish_rounds()
        _end(run, known, OLD)
    run.train_of(rest | {0: 0})
    hidden = bitmap.from_seats([run.seat_of(0)])
    while run.run.state.training:
        height = run.run.current.height
        judged = run.run.round(run.run.current.height - 1)
        roster = judged.roster if judged else 0
        for index in set(run.elected()) - {0}:
            run.witness(index, roster & ~hidden if rest[index] == 1 else roster).ok()
        if run.run.current.height == height:
            world.advance(6)
            run.tick(1)
    assert run.members.shown[run.seat_of(0)] <= -8  # from this score on a report counts
    run.attest(0, FALSE).refused("NotElected")
    _end(run, rest, TRUE)
    assert not run.members.established & hidden


def test_rounds_without_judge_count_for_nobody(world: World) -> None:
    """The holder of level 0 attests no round.

    So a newcomer does not show the level, and the holder's score stays.
    """
    run, honest = _grown(world)
    run.train_of(honest | {7: 0})
    while run.run.state.training:
        for index in set(run.elected()) - {0}:
            run.witness(index).ok()
        world.advance(6)
        run.tick(1)
    assert set(committee.cooldown_electees(run.run, run.members, 0)) == {0}


@pytest.mark.parametrize("how", ["another tier", "withdrawal"])
def test_shown_levels_are_forgotten_with_tier_and_seat(world: World, how: str) -> None:
    run, _ = _grown(world)
    assert bitmap.contains(run.members.established, 0)
    if how == "another tier":
        run.join(0, tier=1).ok()
    else:
        run.by(0, "withdraw").ok()
    assert not bitmap.contains(run.members.established, 0)


def test_ejected_members_are_not_established(world: World) -> None:
    run = Scenario(world).start(init_min_clients=10, rounds_per_epoch=4, verification_percent=100)
    start_established(run, dict.fromkeys(range(10), 0))
    run.finish_rounds()
    audit = audit_of(run, run.run.current.height - 2)
    target = audit.target
    convict(run, audit)
    world.advance(31)
    run.tick(audit.auditor).ok()
    assert run.members.established == (1 << 10) - 1 - (1 << target)
