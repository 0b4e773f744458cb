"""A run that breaks what always holds is not changed any further, whatever broke it; it can still be closed."""

from collections.abc import Callable
from typing import Any

import pytest

from programs.harness import World
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
    "steps beyond the end": lambda run: run["config"].__setitem__("total_steps", 0) or run.__setitem__("step", 2),
    "attested before it was trained": _field("attested_step", 9),
    "sequences wait that are nowhere": _field("backlog", 1),
}


@pytest.mark.parametrize("what", OF_RUN)
def test_a_broken_run_is_not_changed(run: Scenario, what: str) -> None:
    run.train([0, 1, 2])
    state = run.world.record("Run", "test")
    OF_RUN[what](state[0])
    run.world.store("Run", "test", state)
    held = [run.world.data(run.accounts[name]) for name in ("run", "members", "witnesses")]
    run.join(7).refused("InvariantBroken")
    assert [run.world.data(run.accounts[name]) for name in ("run", "members", "witnesses")] == held
    run.owner("set_paused", True).refused("InvariantBroken")


def test_a_backlog_of_what_was_not_handed_out_is_refused(run: Scenario) -> None:
    run.train([0, 1, 2])
    state, witnesses = run.world.record("Run", "test"), run.world.record("Witnesses", "test")
    state["backlog"] = 7
    witnesses["backlog"]["count"] = 1
    witnesses["backlog"]["intervals"][0, 0]["start"], witnesses["backlog"]["intervals"][0, 0]["len"] = 45, 7
    run.world.store("Run", "test", state)
    run.world.store("Witnesses", "test", witnesses)
    run.join(7).refused("InvariantBroken")


OF_MEMBERS: dict[str, Break] = {
    "a judge that did not begin the epoch": _field("judges", b"\x08" + bytes(31)),
    "who was not there has delivered": _field("proven", b"\x08" + bytes(31)),
    "an ejected member has a word": lambda members: [members.__setitem__(n, b"\x10" + bytes(31)) for n in _WORD],
}
_WORD = ("forfeited", "established")


@pytest.mark.parametrize("what", OF_MEMBERS)
def test_words_of_those_who_have_none_are_refused(run: Scenario, what: str) -> None:
    run.train([0, 1, 2])
    members = run.world.record("Members", "test")
    OF_MEMBERS[what](members[0])
    run.world.store("Members", "test", members)
    run.join(7).refused("InvariantBroken")


def test_no_epoch_has_the_number_of_another_one(run: Scenario) -> None:
    run.train([0, 1, 2]).finish_rounds()
    run.world.advance(31)
    run.tick().ok()
    state = run.world.record("Run", "test")
    assert state["epoch"] == 1
    state["epoch"] = 0
    run.world.store("Run", "test", state)
    run.join(7).refused("InvariantBroken")


def test_a_broken_run_can_be_closed(world: World) -> None:
    run = Scenario(world).start()
    run.owner("set_paused", True).ok()
    state = world.record("Run", "test")
    state["lost_sequences"] = 1
    world.store("Run", "test", state)
    run.owner("set_paused", False).refused("InvariantBroken")
    run.owner("close_run").ok()


def test_instructions_that_see_no_witnesses_look_at_the_members(run: Scenario) -> None:
    run.train([0, 1, 2])
    run.join(5).ok()
    run.by(5, "leave_run").ok()
    state, members = run.world.record("Run", "test"), run.world.record("Members", "test")
    state["began"] = bytes(32)  # while three are in its epoch
    members["forfeited"] = b"\x02" + bytes(31)
    run.world.store("Run", "test", state)
    run.world.store("Members", "test", members)
    run.owner("kick", member(1).pubkey(), False).refused("InvariantBroken")
    run.settle(1).refused("InvariantBroken")
    run.by(5, "withdraw").refused("InvariantBroken")
