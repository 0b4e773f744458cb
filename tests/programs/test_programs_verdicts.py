"""Test verdicts: who may give one, about whom, and what a quorum of mismatches does."""

from aftermath.rules import committee
from aftermath.rules.state import Committee, MemberState, RunState
from programs.harness import World
from programs.scenario import Scenario


def test_verdicts_eject_trainer(world: World) -> None:
    run = Scenario(world).start(verification_percent=50, rounds_per_epoch=3)
    run.owner("set_future_epoch_rates", 100, 9).ok()
    members = list(range(6))
    record_points = 20
    run.train(members)
    record = world.record("Members", "test")
    record["seats"][0]["points"][:6] = record_points
    world.store("Members", "test", record)
    roles = committee.roles(run.run.current, 50)
    verifiers = [seat for seat, role in roles.items() if role is Committee.VERIFIER]
    trainers = [seat for seat, role in roles.items() if role is Committee.TRAINER]
    target = trainers[0]
    assert len(verifiers) == 3
    run.by(verifiers[0], "verify", verifiers[0], 1, target, True).refused("StaleHeight")
    # its result is not due yet
    run.by(verifiers[0], "verify", verifiers[0], 0, target, True).refused("StaleHeight")
    run.witness_round()
    run.by(target, "verify", target, 0, trainers[1], True).refused("NotAVerifier")
    run.by(verifiers[0], "verify", verifiers[0], 0, verifiers[1], True).refused("NotATrainer")
    run.by(verifiers[0], "verify", verifiers[0], 0, 200, True).refused("NotATrainer")
    run.by(verifiers[0], "verify", verifiers[1], 0, target, True).refused("SeatMismatch")
    run.by(verifiers[0], "verify", verifiers[0], 0, target, True).ok()
    run.by(verifiers[0], "verify", verifiers[0], 0, target, True).refused("DuplicateVerdict")
    run.by(verifiers[1], "verify", verifiers[1], 0, trainers[2], False).ok()
    run.by(verifiers[1], "verify", verifiers[1], 0, target, True).ok()
    assert run.members.seats[target].state is MemberState.HEALTHY
    run.witness_round()
    # two rounds back may still be judged
    run.by(verifiers[2], "verify", verifiers[2], 0, target, True).ok()
    assert run.members.seats[target].state is MemberState.EJECTED
    healthy = [index for index in run.elected() if index != target]
    run.witness_round(healthy)
    while run.run.state is not RunState.COOLDOWN:
        run.world.advance(21)
        run.tick(healthy[0]).ok()
        if run.run.state is RunState.ROUND_TRAIN:
            run.witness_round()
    run.world.advance(31)
    run.tick(healthy[0]).ok()
    seats = run.members.seats
    assert (seats[target].points, seats[target].slashed) == (record_points - 9, 9)
    assert {seats[index].points for index in members if index != target} == {
        record_points + 100 // 5
    }


def roles_of(run: Scenario) -> tuple[list[int], list[int]]:
    """Return the verifiers and the trainers of the current round."""
    roles = committee.roles(run.run.current, run.run.config.verification_percent)
    by_role = {kind: [seat for seat, role in roles.items() if role is kind] for kind in Committee}
    return by_role[Committee.VERIFIER], by_role[Committee.TRAINER]


def test_fewer_than_three_verifiers_convict_nobody(world: World) -> None:
    """One of three members verifies.

    Its verdict alone once took another member's seat and points.
    """
    for clients, percent, verifiers in ((3, 34, 1), (5, 40, 2), (6, 50, 3)):
        run = Scenario(World()).start(verification_percent=percent)
        run.train(range(clients))
        judges, trainers = roles_of(run)
        assert len(judges) == verifiers
        run.witness_round()
        for seat in judges:
            run.by(seat, "verify", seat, 0, trainers[0], True).ok()
        ejected = run.members.seats[trainers[0]].state is MemberState.EJECTED
        assert ejected is (verifiers >= 3)


def test_one_verifier_does_not_use_room_of_others(world: World) -> None:
    """It once gave 32 verdicts about 32 members, so nobody else could convict the liar."""
    run = Scenario(world).start(verification_percent=10, min_clients=40, init_min_clients=40)
    run.train(range(40))
    judges, trainers = roles_of(run)
    assert len(judges) == 4
    run.witness_round()
    for target in trainers[1:9]:
        run.by(judges[0], "verify", judges[0], 0, target, True).ok()
    run.by(judges[0], "verify", judges[0], 0, trainers[10], True).refused("VerdictsFull")
    for seat in judges[1:]:
        run.by(seat, "verify", seat, 0, trainers[0], True).ok()
    assert run.members.seats[trainers[0]].state is MemberState.EJECTED


def test_member_that_left_is_ejected_by_later_verdicts(world: World) -> None:
    run = Scenario(world).start(verification_percent=50, rounds_per_epoch=3)
    run.owner("set_future_epoch_rates", 100, 9).ok()
    run.train(range(6))
    record = world.record("Members", "test")
    record["seats"][0]["points"][:6] = 20
    world.store("Members", "test", record)
    judges, trainers = roles_of(run)
    run.witness_round()
    target = trainers[0]
    run.by(target, "leave_run").ok()
    height = run.members.seats[target].exited_height
    for seat in judges:
        run.by(seat, "verify", seat, 0, target, True).ok()
    found = run.members.seats[target]
    assert (found.state, found.exited_height) == (MemberState.EJECTED, height)
    while run.run.state is not RunState.COOLDOWN:
        run.witness_round([index for index in run.elected() if index != target])
    world.advance(31)
    run.tick(judges[0]).ok()
    assert (run.members.seats[target].points, run.members.seats[target].slashed) == (11, 9)


def test_verdicts_are_bounded_and_old_rounds_closed(world: World) -> None:
    run = Scenario(world).start(verification_percent=50)
    run.train(range(6))
    roles = committee.roles(run.run.current, 50)
    verifier = next(seat for seat, role in roles.items() if role is Committee.VERIFIER)
    target = next(seat for seat, role in roles.items() if role is Committee.TRAINER)
    record = world.record("Witnesses", "test")
    record["rounds"][0][0]["verdicts"]["target"] = 255
    record["rounds"][0][0]["verdicts"]["verifier"] = 255
    record["rounds"]["verdict_count"] = 32
    world.store("Witnesses", "test", record)
    run.witness_round()
    run.by(verifier, "verify", verifier, 0, target, True).refused("VerdictsFull")
    for _ in range(2):
        run.witness_round()
    run.by(verifier, "verify", verifier, 0, target, True).refused("StaleHeight")


def test_verifiers_are_limited_to_stored_verdicts(world: World) -> None:
    """The config asks half of 100 members to verify. 32 do, and their quorum of 22 convicts."""
    run = Scenario(world).start(verification_percent=50, min_clients=100, init_min_clients=100)
    run.train(range(100))
    roles = committee.roles(run.run.current, 50)
    verifiers = [seat for seat, role in roles.items() if role is Committee.VERIFIER]
    target = next(seat for seat, role in roles.items() if role is Committee.TRAINER)
    assert len(verifiers) == 32
    run.witness_round()
    for seat in verifiers[:22]:
        assert run.members.seats[target].state is MemberState.HEALTHY
        run.by(seat, "verify", seat, 0, target, True).ok()
    assert run.members.seats[target].state is MemberState.EJECTED


def test_verdict_outside_training_is_refused(run: Scenario) -> None:
    run.warm_up([0, 1, 2])
    run.by(0, "verify", 0, 0, 1, True).refused("WrongState")
