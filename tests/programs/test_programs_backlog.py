"""Test that untrained sequences are trained again and never lost.

The old rule had an exploit: only eight intervals were kept, and a round took one of them. If a
third of many members attested and delivered nothing, a tenth to a third of all data was lost.
"""

import random

import numpy as np
import pytest

from aftermath.rules import assignment, bitmap
from aftermath.rules.run import BACKLOG, REDO, Interval
from aftermath.rules.state import EstablishedOnly, RunState
from programs.harness import World
from programs.level_holders import established, one_round
from programs.scenario import Scenario
from rules import backlog

ROOM = backlog.ROOM


def _fill(run: Scenario, places: int) -> None:
    """Put this number of intervals, of seven sequences each, into the backlog."""
    witnesses = run.world.record("Witnesses", "test")
    state = run.world.record("Run", "test")
    backlog = witnesses["backlog"][0]
    backlog["intervals"]["start"][:places] = 10_000 + 100 * np.arange(places)
    backlog["intervals"]["len"][:places] = 7
    backlog["count"] = places
    state["backlog"] = 7 * places
    state["data_index"] = 10_000 + 100 * places
    current = state["rounds"][0][int(state["head"][0])]
    # the current round has the last sequences
    current["data_index"] = int(state["data_index"][0]) - int(current["batch"])
    witnesses["backlog"][0] = backlog
    run.world.store("Witnesses", "test", witnesses)
    run.world.store("Run", "test", state)


def test_silent_third_of_members_loses_no_sequence(world: World) -> None:
    """A third of the members attests and delivers nothing.

    Each sequence is trained or stays in the backlog.
    """
    run = Scenario(world).start(init_min_clients=12, min_clients=8, rounds_per_epoch=30)
    silent = 0b1111
    run.train(range(12))
    trained: set[int] = set()
    while run.run.state.training:
        judged = run.run.round(run.run.config.judged(run.run.current.height))
        height = run.run.current.height
        run.witness_round(participation=judged.roster & ~silent if judged else 0)
        closed = run.run.round(height)
        if judged is None or closed is None:
            continue
        shares = assignment.assign(judged, run.members)
        for seat, share in shares.items():
            if bitmap.contains(closed.attested, seat):
                sequences = {
                    index for span in assignment.sequences(judged, share) for index in span
                }
                assert not sequences & trained
                trained |= sequences
    state = run.run
    assert (state.state, state.lost_sequences) == (RunState.COOLDOWN, 0)
    waiting = {index for one in run.backlog for index in range(one.start, one.stop)}
    assert trained | waiting == set(range(state.data_index))
    assert not trained & waiting
    assert len(trained) > 0.5 * state.data_index


def test_full_backlog_is_trained_before_fresh_data(run: Scenario) -> None:
    run.train([0, 1, 2])
    run.witness_round()
    _fill(run, BACKLOG - ROOM + REDO + 1)
    before = run.run
    run.witness_round()
    after = run.run
    assert after.current.redo == tuple(Interval(10_000 + 100 * index, 7) for index in range(REDO))
    assert after.current.batch == 7 * REDO
    assert after.data_index == before.data_index  # one interval remains: no fresh data
    for _ in range(2):
        run.witness_round()
        if not run.run.state.training:
            break
    assert run.run.lost_sequences == 0


@pytest.mark.parametrize("newcomers", [2, 7])
def test_large_backlog_is_trained_by_established_alone(world: World, newcomers: int) -> None:
    """The exploit: newcomers left shares untrained until the backlog was full.

    Rounds with more gaps then did not count.
    """
    run, honest = established(world, (0, 0, 1, 1, 2), rounds=12)
    silent = range(5, 5 + newcomers)
    run.train_of(honest | dict.fromkeys(silent, 0))
    mine = bitmap.from_seats(honest)
    for _ in range(2):
        one_round(run, {})
    _fill(run, BACKLOG // 2)
    alone = []
    steps = 0
    for _ in range(8):
        current = run.run.current
        step = run.run.step
        shares = assignment.assign(current, run.members)
        alone.append(current.established)
        if current.established is EstablishedOnly.TRAIN:
            usual = 48 * 5 // (5 + newcomers)  # their batch if newcomers trained the rest
            assert current.batch == max(current.redone, usual)
            owed = bitmap.from_seats(seat for seat, share in shares.items() if share.len)
            assert owed
            assert not owed & ~mine
            assert sum(share.len for share in shares.values()) == current.batch
        one_round(run, dict.fromkeys(honest, silent), silent)
        steps += run.run.step - step
    assert (alone[0], alone[-1], steps, run.run.lost_sequences) == (
        EstablishedOnly.WITNESS,
        EstablishedOnly.WITNESS,
        8,
        0,
    )
    assert EstablishedOnly.TRAIN in alone
    assert len(run.backlog) <= BACKLOG // 2


def test_full_backlog_keeps_established_batches_at_full_size(world: World) -> None:
    """Newcomers filled the backlog and were dropped.

    Long after that, steps had only a few sequences.
    """
    run, honest = established(world, (0, 0, 1, 1, 2), rounds=12)
    run.train_of(honest)
    for _ in range(2):
        one_round(run, {})
    _fill(run, BACKLOG - 2 * (REDO + 1))
    for left in range(6):
        one_round(run, {})
        current = run.run.current
        assert (current.established, current.batch, current.redone) == (
            EstablishedOnly.WITNESS,
            48,
            7 * REDO,
        )
        assert len(run.backlog) == BACKLOG - 2 * (REDO + 1) - REDO * (left + 1)


def test_round_whose_gaps_exceed_backlog_is_undone(
    run: Scenario,
) -> None:
    run.train([0, 1, 2])
    first = run.run.current
    run.witness_round()
    _fill(run, BACKLOG - ROOM)
    before = run.run
    run.witness_round(participation=0b011)
    after = run.run
    assert (after.step, after.rounds[1].attested, after.lost_sequences) == (before.step, 0, 0)
    again = [*run.backlog, *after.current.redo]
    assert {index for one in again for index in range(one.start, one.stop)} >= set(range(48))
    assert after.backlog + after.current.redone == before.backlog + first.batch


def test_random_intervals_stay_sorted_and_joined(world: World) -> None:
    """Compare the program's backlog with the model's after each round, with members that fail at
    random.
    """
    rng = random.Random(5)
    run = Scenario(world).start(init_min_clients=20, min_clients=2, rounds_per_epoch=25, overlap=0)
    run.train(range(20))
    predicted = backlog.Backlog()
    while run.run.state.training:
        round_ = run.run.current
        participation = sum(1 << seat for seat in range(20) if rng.random() < 0.6)
        shares = assignment.assign(round_, run.members)
        settled = backlog.settle(predicted, round_, shares, participation)
        step = run.run.step
        run.witness_round(participation=participation)
        assert run.run.step == step + settled.worked
        predicted = settled.backlog
        if run.run.state.training:
            redo, predicted = predicted.take(48)
            assert run.run.current.redo == redo
        assert run.backlog == predicted.intervals
    assert run.run.lost_sequences == 0
