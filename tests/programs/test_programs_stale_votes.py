"""Test that a vote counts for one round of one epoch of one run only, so that nobody gains by
delaying a transaction.
"""

from collections.abc import Callable

import pytest

from aftermath.rules.run import RoundId
from aftermath.rules.state import RunState
from programs.harness import Outcome, World
from programs.scenario import Scenario

METADATA = {"step": 1, "loss_milli": 1, "tokens_per_sec": 1, "bytes_per_sec": 1}
Vote = Callable[[Scenario, RoundId], Outcome]
VOTES: dict[str, Vote] = {
    "warmup_witness": lambda run, at: run.by(0, "warmup_witness", 0, at),
    "witness": lambda run, at: run.by(0, "witness", 0, at, bytes(32), bytes(320), METADATA),
    "attest": lambda run, at: run.by(0, "attest", 0, at, 0b111, [b"h" * 32] * 3),
    "verify": lambda run, at: run.by(0, "verify", 0, at, 1, True),
    "leave_run": lambda run, at: run.by(0, "leave_run", at),
}
STATES = {
    "warmup_witness": RunState.WARMUP,
    "witness": RunState.ROUND_TRAIN,
    "attest": RunState.COOLDOWN,
    "verify": RunState.COOLDOWN,
    "leave_run": RunState.ROUND_TRAIN,
}


def _reach(run: Scenario, state: RunState) -> RoundId:
    """Advance the run to that state, and return the place that a vote names then."""
    while run.run.state is not state or run.run.current.height:
        if run.run.state is RunState.COOLDOWN and state is RunState.COOLDOWN:
            break
        now = run.run.state
        if now is RunState.WAITING_FOR_MEMBERS:
            run.warm_up([0, 1, 2])
        elif now.training:
            run.witness_round()
        else:
            run.world.advance(31)
            run.tick().ok()
    return run.run.round_id


def _named(run: Scenario, name: str) -> RoundId:
    """Advance the run to the vote's state, and return the round that the vote names then."""
    current = _reach(run, STATES[name])
    before = run.run.round(current.height - 1)
    if name != "verify" or before is None:
        return current
    return RoundId(current.epoch, before.height, before.seed)


def _end_epoch(run: Scenario, now: RoundId) -> None:
    run.world.advance(31)
    while run.run.epoch == now.epoch:
        if run.run.state.training:
            run.witness_round()
        else:
            run.world.advance(31)
            run.tick().ok()


@pytest.mark.parametrize("name", VOTES)
def test_vote_of_earlier_epoch_is_refused(world: World, name: str) -> None:
    run = Scenario(world).start(overlap=0, rounds_per_epoch=2, verification_percent=100)
    _end_epoch(run, _reach(run, RunState.ROUND_TRAIN))  # the first epoch has no audits
    old = _named(run, name)
    _end_epoch(run, old)
    new = _named(run, name)
    assert (new.height, new.epoch) == (old.height, old.epoch + 1)
    vote = VOTES[name]
    vote(run, old).refused("StaleHeight")
    for forged in (
        old._replace(epoch=new.epoch),
        new._replace(seed=new.seed ^ 1),
        new._replace(height=7),
    ):
        vote(run, forged).refused("StaleHeight")
    assert vote(run, new).error in (None, "NotAudited")


def test_vote_of_abandoned_warmup_is_refused(world: World) -> None:
    run = Scenario(world).start(min_clients=3)
    run.warm_up([0, 1, 2])
    old = run.run.round_id
    run.by(2, "leave_run").ok()
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    run.warm_up([0, 1, 2])
    assert (run.run.epoch, run.run.current.height) == (old.epoch, old.height)
    run.by(0, "warmup_witness", 0, old).refused("StaleHeight")
    run.by(0, "leave_run", old).refused("StaleHeight")
    run.by(0, "warmup_witness", 0).ok()


def test_leave_signed_in_first_wait_is_refused_in_first_epoch(
    world: World,
) -> None:
    run = Scenario(world).start()
    run.join(0).ok()
    wait = run.run.round_id
    assert (wait.epoch, wait.height, wait.seed) == (0, 0, 0)
    run.by(0, "leave_run", wait).ok()
    run.train([0, 1, 2])
    while run.run.state.training:
        run.by(0, "leave_run", wait).refused("StaleHeight")
        run.witness_round()


def test_member_may_leave_by_any_stored_round(world: World) -> None:
    run = Scenario(world).start()
    run.train([0, 1, 2])
    at = run.run.round_id
    run.witness_round()
    run.witness_round()
    run.by(2, "leave_run", at).ok()  # it was under way while two rounds closed
