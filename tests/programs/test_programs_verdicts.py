"""Verdicts of verifiers: who may give one, about whom, and what a quorum of mismatches does."""

from aftermath.rules import committee
from aftermath.rules.state import Committee, MemberState, RunState
from programs.harness import World
from programs.scenario import Scenario


def test_verdicts_eject_a_trainer(world: World) -> None:
    run = Scenario(world).start(verification_percent=50, rounds_per_epoch=3)
    run.owner("set_future_epoch_rates", 100, 9).ok()
    members = list(range(6))
    record_points = 20
    run.train(members)
    record = world.record("Members", "test")
    record["slots"][0]["points"][:6] = record_points
    world.store("Members", "test", record)
    roles = committee.roles(run.run.current, 50)
    verifiers = [slot for slot, role in roles.items() if role is Committee.VERIFIER]
    trainers = [slot for slot, role in roles.items() if role is Committee.TRAINER]
    target = trainers[0]
    assert len(verifiers) == 3
    run.by(verifiers[0], "verify", verifiers[0], 1, target, True).refused("StaleHeight")
    run.by(verifiers[0], "verify", verifiers[0], 0, target, True).refused("StaleHeight")  # its result is not due yet
    run.everyone_witnesses()
    run.by(target, "verify", target, 0, trainers[1], True).refused("NotAVerifier")
    run.by(verifiers[0], "verify", verifiers[0], 0, verifiers[1], True).refused("NotATrainer")
    run.by(verifiers[0], "verify", verifiers[0], 0, 200, True).refused("NotATrainer")
    run.by(verifiers[0], "verify", verifiers[1], 0, target, True).refused("SlotMismatch")
    run.by(verifiers[0], "verify", verifiers[0], 0, target, True).ok()
    run.by(verifiers[0], "verify", verifiers[0], 0, target, True).refused("DuplicateVerdict")
    run.by(verifiers[1], "verify", verifiers[1], 0, target, False).ok()
    assert run.members.slots[target].state is MemberState.HEALTHY
    run.everyone_witnesses()
    run.by(verifiers[2], "verify", verifiers[2], 0, target, True).ok()  # two rounds back may still be judged
    assert run.members.slots[target].state is MemberState.EJECTED
    healthy = [index for index in run.elected() if index != target]
    run.everyone_witnesses(healthy)
    while run.run.state is not RunState.COOLDOWN:
        run.world.advance(21)
        run.tick(healthy[0]).ok()
        if run.run.state is RunState.ROUND_TRAIN:
            run.everyone_witnesses()
    run.world.advance(31)
    run.tick(healthy[0]).ok()
    slots = run.members.slots
    assert (slots[target].points, slots[target].slashed) == (record_points - 9, 9)
    assert {slots[index].points for index in members if index != target} == {record_points + 100 // 5}


def test_verdicts_are_bounded_and_old_rounds_closed(world: World) -> None:
    run = Scenario(world).start(verification_percent=50)
    run.train(range(6))
    roles = committee.roles(run.run.current, 50)
    verifier = next(slot for slot, role in roles.items() if role is Committee.VERIFIER)
    target = next(slot for slot, role in roles.items() if role is Committee.TRAINER)
    record = world.record("Witnesses", "test")
    record["rounds"][0][0]["verdicts"]["target"] = 255
    record["rounds"]["verdict_count"] = 32
    world.store("Witnesses", "test", record)
    run.everyone_witnesses()
    run.by(verifier, "verify", verifier, 0, target, True).refused("VerdictsFull")
    for _ in range(2):
        run.everyone_witnesses()
    run.by(verifier, "verify", verifier, 0, target, True).refused("StaleHeight")


def test_no_more_verify_than_verdicts_are_stored(world: World) -> None:
    """100 members of whom half should verify: 32 do, and their quorum of 22 finds room to convict."""
    run = Scenario(world).start(verification_percent=50, min_clients=100, init_min_clients=100)
    run.train(range(100))
    roles = committee.roles(run.run.current, 50)
    verifiers = [slot for slot, role in roles.items() if role is Committee.VERIFIER]
    target = next(slot for slot, role in roles.items() if role is Committee.TRAINER)
    assert len(verifiers) == 32
    run.everyone_witnesses()
    for slot in verifiers[:22]:
        assert run.members.slots[target].state is MemberState.HEALTHY
        run.by(slot, "verify", slot, 0, target, True).ok()
    assert run.members.slots[target].state is MemberState.EJECTED


def test_verdicts_belong_to_an_epoch(run: Scenario) -> None:
    run.warm_up([0, 1, 2])
    run.by(0, "verify", 0, 0, 1, True).refused("WrongState")
