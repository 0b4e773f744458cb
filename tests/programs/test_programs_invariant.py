"""Test that a run that breaks an invariant is not changed any further, but can be closed."""

from collections.abc import Callable
from typing import Any

import pytest

from programs.audit_cases import audit_of, start_established, vote
from programs.evidence import IX, p2p, pair
from programs.harness import PROGRAM, Outcome, World, idl
from programs.level_holders import begin, established, one_round
from programs.scenario import Scenario, member

Break = Callable[[Any], None]


def _round(name: str, value: Any) -> Break:
    def broken(run: Any) -> None:
        run["rounds"][int(run["head"])][name] = value

    return broken


def _field(name: str, value: Any) -> Break:
    def broken(record: Any) -> None:
        record[name] = value

    return broken


OF_RUN: dict[str, Break] = {
    "a sequence is lost": _field("lost_sequences", 1),
    "a level that the run has not is attested": _field("levels_attested", 0b1000),
    "a vote that nobody gave": _round("attestations", 1),
    "a vote of nobody in the roster": _round("attested", b"\x08" + bytes(31)),
    "more are elected than there are": _round("elected", 4),
    "data is handed out twice": _field("data_index", 47),
    "the epoch began after the step": _field("start_step", 2),
    "more steps than rounds": _field("step", 3),
    "steps beyond the end": lambda run: (
        run["config"].__setitem__("total_steps", 0) or run.__setitem__("step", 2)
    ),
    "attested before it was trained": _field("attested_step", 9),
    "sequences wait that are nowhere": _field("backlog", 1),
}


@pytest.mark.parametrize("what", OF_RUN)
def test_broken_run_is_not_changed(run: Scenario, what: str) -> None:
    run.train([0, 1, 2])
    state = run.world.record("Run", "test")
    OF_RUN[what](state[0])
    run.world.store("Run", "test", state)
    data = [run.world.data(run.accounts[name]) for name in ("run", "members", "witnesses")]
    run.join(7).refused("InvariantBroken")
    assert [run.world.data(run.accounts[name]) for name in ("run", "members", "witnesses")] == data
    run.owner("set_paused", True).refused("InvariantBroken")


def test_backlog_of_unassigned_data_is_refused(run: Scenario) -> None:
    run.train([0, 1, 2])
    state = run.world.record("Run", "test")
    witnesses = run.world.record("Witnesses", "test")
    state["backlog"] = 7
    witnesses["backlog"]["count"] = 1
    witnesses["backlog"]["intervals"][0, 0]["start"] = 45
    witnesses["backlog"]["intervals"][0, 0]["len"] = 7
    run.world.store("Run", "test", state)
    run.world.store("Witnesses", "test", witnesses)
    run.join(7).refused("InvariantBroken")


OF_MEMBERS: dict[str, Break] = {
    "a judge that did not begin the epoch": _field("judges", b"\x08" + bytes(31)),
    "who was not there has delivered": _field("proven", b"\x08" + bytes(31)),
    "an ejected member has a word": lambda members: [
        members.__setitem__(n, b"\x10" + bytes(31)) for n in _WORD
    ],
}
_WORD = ("forfeited", "established")


@pytest.mark.parametrize("what", OF_MEMBERS)
def test_votes_of_members_without_vote_are_refused(run: Scenario, what: str) -> None:
    run.train([0, 1, 2])
    members = run.world.record("Members", "test")
    OF_MEMBERS[what](members[0])
    run.world.store("Members", "test", members)
    run.join(7).refused("InvariantBroken")


def test_repeated_epoch_number_is_refused(run: Scenario) -> None:
    run.train([0, 1, 2]).finish_rounds()
    run.world.advance(31)
    run.tick().ok()
    state = run.world.record("Run", "test")
    assert state["epoch"] == 1
    state["epoch"] = 0
    run.world.store("Run", "test", state)
    run.join(7).refused("InvariantBroken")


def _shown(value: int) -> Break:
    """Return a break that sets the score of every seat to this value."""

    def broken(record: Any) -> None:
        for bit in range(7):
            record["shown"][bit] = b"\xff" * 32 if value >> bit & 1 else bytes(32)

    return broken


OF_WORDS: dict[str, tuple[str, Break]] = {
    "a level that the run has not is judged": ("Run", _field("levels_established", 0b1111)),
    "of a level that a judge holds there is none": ("Run", _field("levels_established", 0b011)),
    "there are judges and nobody judges": ("Run", _field("levels_established", 0)),
    "nobody judges levels that are judged": (
        "Members",
        lambda all_: [all_.__setitem__(n, bytes(32)) for n in _BOTH],
    ),
    "a judge that is there has no word": ("Members", _field("established", bytes(32))),
    "a newcomer has a word": ("Members", _field("established", b"\x0f" + bytes(31))),
    "more is shown than there was to show": ("Members", _shown(68)),
    "less is shown than nothing": ("Members", _shown(59)),
}
_BOTH = ("established", "judges")


@pytest.mark.parametrize("what", OF_WORDS)
def test_contradictory_level_records_are_refused(world: World, what: str) -> None:
    """Three established members and a newcomer are in an epoch, and three of its rounds made a
    step.
    """
    run, tiers = established(world, (0, 1, 2))
    begin(run, tiers | {3: 0})
    for _ in range(2):
        one_round(run, {})
    run.join(8).ok()
    kind, change = OF_WORDS[what]
    record = world.record(kind, "test")
    change(record[0])
    world.store(kind, "test", record)
    run.join(9).refused("InvariantBroken")


def test_level_score_outside_round_bounds_is_refused(world: World) -> None:
    run, tiers = established(world, (0, 1, 2))
    begin(run, tiers | {3: 0})
    for _ in range(2):
        one_round(run, {})
    assert run.members.judged == 3
    for value, fits in ((60, True), (67, True), (59, False), (68, False)):
        record = world.record("Members", "test")
        _shown(value)(record[0])
        world.store("Members", "test", record)
        outcome = run.join(10 + value)
        _ = outcome.ok() if fits else outcome.refused("InvariantBroken")


def test_member_without_shown_levels_in_cooldown_is_refused(run: Scenario) -> None:
    run.train([0, 1, 2])
    run.finish_rounds()
    run.join(7).ok()
    record = run.world.record("Members", "test")
    _shown(63)(record[0])
    run.world.store("Members", "test", record)
    run.join(8).refused("InvariantBroken")


def test_delivery_in_warmup_or_presence_in_wait_is_refused(run: Scenario) -> None:
    run.join(7).ok()
    record = run.world.record("Members", "test")
    record["healthy"] = b"\x01" + bytes(31)
    before = run.world.record("Members", "test")
    run.world.store("Members", "test", record)
    run.join(8).refused("InvariantBroken")
    run.world.store("Members", "test", before)
    run.warm_up([0, 1, 2])
    record = run.world.record("Members", "test")
    record["proven"] = b"\x01" + bytes(31)
    run.world.store("Members", "test", record)
    run.join(8).refused("InvariantBroken")


def test_broken_run_can_be_closed(world: World) -> None:
    run = Scenario(world).start()
    run.owner("set_paused", True).ok()
    state = world.record("Run", "test")
    state["lost_sequences"] = 1
    world.store("Run", "test", state)
    run.owner("set_paused", False).refused("InvariantBroken")
    run.owner("close_run").ok()


def test_instructions_without_witnesses_check_members(run: Scenario) -> None:
    run.train([0, 1, 2])
    run.join(5).ok()
    run.by(5, "leave_run").ok()
    state = run.world.record("Run", "test")
    members = run.world.record("Members", "test")
    state["began"] = bytes(32)  # although three members are in its epoch
    members["forfeited"] = b"\x02" + bytes(31)
    run.world.store("Run", "test", state)
    run.world.store("Members", "test", members)
    run.owner("kick", member(1).pubkey(), False).refused("InvariantBroken")
    run.settle(1).refused("InvariantBroken")
    run.by(5, "withdraw").refused("InvariantBroken")


def _waiting(run: Scenario) -> None:
    for index in range(3):
        run.join(index).ok()


def _cooldown(run: Scenario) -> None:
    run.train([0, 1, 2]).finish_rounds()


def _attested(run: Scenario) -> None:
    _cooldown(run)
    for index in range(2):
        run.attest(index, HASHES).ok()


def _left(run: Scenario) -> None:
    run.join(5).ok()
    run.by(5, "leave_run").ok()


def _ejected(run: Scenario) -> None:
    run.join(1).ok()
    members = run.world.record("Members", "test")
    members["forfeited"] = b"\x01" + bytes(31)
    run.world.store("Members", "test", members)


def _one_absent(run: Scenario) -> None:
    run.train(range(5))
    run.witness_round()
    run.witness_round(range(4), participation=0b01111)
    run.world.advance(6)
    run.tick().ok()


def _audited(run: Scenario) -> None:
    run.owner("set_paused", True).ok()
    run.configure(verification_percent=100).ok()
    run.owner("set_paused", False).ok()
    start_established(run, dict.fromkeys(range(6), 0))
    run.witness_round()
    run.witness_round()
    run.draw()


def _verify(run: Scenario) -> Outcome:
    audit = audit_of(run, 0)
    return vote(run, audit.auditor, audit)


def _known_to_peers(run: Scenario) -> None:
    for index in range(3):
        run.join(index, p2p=p2p(index)).ok()
    run.world.advance(6)
    run.tick().ok()
    run.draw()
    run.world.advance(31)
    run.tick().ok()


def _prove(run: Scenario) -> Outcome:
    proof = run.instruction("prove_equivocation", accounts={"user": member(0).pubkey()})
    return run.world.send(IX.check_signatures(pair(run)), proof, signers=[member(0)])


HASHES = {level: bytes([level + 1]) * 32 for level in range(3)}
PLACE = {"kind": 2, "repo": "x", "revision": "", "hashes": list(HASHES.values())}
Prepare = Callable[[Scenario], object]
Send = Callable[[Scenario], Outcome]
CHANGING: dict[str, tuple[Prepare, Send]] = {
    "update": (lambda run: run.owner("set_paused", True).ok(), lambda run: run.update()),
    "write_spec": (
        lambda run: run.owner("set_paused", True).ok(),
        lambda run: run.write_spec(),
    ),
    "rewind": (
        lambda run: run.owner("set_paused", True).ok(),
        lambda run: run.owner("rewind", 0, 0),
    ),
    "update_client_version": (
        lambda run: run.owner("set_paused", True).ok(),
        lambda run: run.owner("update_client_version", "v"),
    ),
    "set_paused": (lambda _: None, lambda run: run.owner("set_paused", True)),
    "set_future_epoch_rates": (
        lambda _: None,
        lambda run: run.owner("set_future_epoch_rates", 1, 0),
    ),
    "kick": (
        lambda run: run.join(0).ok(),
        lambda run: run.owner("kick", member(0).pubkey(), False),
    ),
    "join_run": (lambda run: run.enroll(0).ok(), lambda run: run.join(0)),
    "leave_run": (lambda run: run.join(0).ok(), lambda run: run.by(0, "leave_run")),
    "withdraw": (_left, lambda run: run.by(5, "withdraw")),
    "settle": (_ejected, lambda run: run.settle(1)),
    "tick": (lambda run: (_waiting(run), run.world.advance(6)), lambda run: run.tick()),
    "warmup_witness": (
        lambda run: run.warm_up([0, 1, 2]),
        lambda run: run.by(0, "warmup_witness", 0),
    ),
    "witness": (lambda run: run.train([0, 1, 2]), lambda run: run.witness(0)),
    "health_check": (_one_absent, lambda run: run.by(2, "health_check", run.names([4]))),
    "verify": (_audited, _verify),
    "prove_equivocation": (_known_to_peers, _prove),
    "attest": (_cooldown, lambda run: run.attest(0, HASHES)),
    "checkpoint": (_attested, lambda run: run.by(0, "checkpoint", PLACE)),
}
"""Every instruction that changes a run: its preparation, and the call that sends it."""
OTHERS = {"init_run", "grow", "close_run", "enroll", "inspect"}
"""Instructions that create a run, close it, or do not change it."""


def test_invariant_tests_cover_every_instruction() -> None:
    assert {one["name"] for one in idl(PROGRAM)["instructions"]} == CHANGING.keys() | OTHERS


@pytest.mark.parametrize("name", CHANGING)
def test_each_changing_instruction_ends_with_invariant_check(run: Scenario, name: str) -> None:
    """Refuse the instruction only while the run breaks the invariant."""
    prepare, send = CHANGING[name]
    prepare(run)
    for lost in (1, 0):
        state = run.world.record("Run", "test")
        state["lost_sequences"] = lost
        run.world.store("Run", "test", state)
        outcome = send(run)
        if lost:
            outcome.refused("InvariantBroken")
        else:
            outcome.ok()
