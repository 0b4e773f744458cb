"""What survives: everybody's death at once, and a chain that is out of reach for a while."""

from __future__ import annotations

import time

import pytest

from aftermath.model.steps import saved_steps
from aftermath.rules.state import RunState
from e2e.company import Company
from e2e.diary import applied_sequences
from e2e.material import Material

STEPS = 12
DOWN_SECONDS = 20.0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["embedded"], indirect=True)  # no engine knows of members
def test_all_gone_and_back_from_the_durable_checkpoint(company: Company, material: Material) -> None:
    rules = {"rounds_per_epoch": STEPS // 2, "total_steps": STEPS, "waiting_for_members_extra_time": 5}
    company.configure(material.config(company.place, **rules))
    players = company.start_three()
    between = company.until_run(
        lambda run: run.epoch >= 1 and run.state is RunState.WAITING_FOR_MEMBERS, "an epoch has ended"
    )
    company.disband()
    dead, model = company.run, company.model
    assert dead.state is RunState.WAITING_FOR_MEMBERS, "they died between two epochs"
    assert model.checkpoint_step == dead.attested_step == dead.step == between.step
    assert model.checkpoint_hashes == dead.level_hashes
    assert saved_steps(company.place / "checkpoints", company.run_id)

    marks = [player.diary.mark() for player in players]
    for player in players:
        company.start(player)
    back = company.until_run(lambda run: run.state.training, "they train again")
    assert (back.start_step, back.level_hashes) == (dead.step, model.checkpoint_hashes)
    company.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    assert [player.process.wait() for player in players] == [0, 0, 0]
    # The dead still stood in line for this epoch: it may begin before the last of them is back, who sits it out.
    first = [event for player, mark in zip(players, marks, strict=True) for event in player.diary.saw("model", mark)]
    sources = [event["source"] for event in first if event["step"] == dead.trained_steps]
    assert sources in (["the checkpoint"] * 2, ["the checkpoint"] * 3)
    steps = list(range(1, STEPS + 1))
    whole = [player for player in players if [event["step"] for event in player.diary.saw("applied")] == steps]
    assert len(whole) >= 2
    assert applied_sequences(whole[0].diary) == list(range(company.run.data_index))
    assert company.run.lost_sequences == 0
    assert company.compare_replicas() > 3 * STEPS // 2


ENGINES = [pytest.param("embedded", marks=pytest.mark.nightly), pytest.param("validator", marks=pytest.mark.slow)]


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_members_survive_a_chain_that_is_gone_for_a_while(company: Company, material: Material) -> None:
    company.configure(material.config(company.place, rounds_per_epoch=15, total_steps=30))
    players = company.start_three()
    before = company.until_run(lambda run: run.state.training and run.current.height >= 3, "rounds go on")
    company.network.go_down()
    down_until = time.monotonic() + DOWN_SECONDS
    try:
        while time.monotonic() < down_until:
            assert [player.process.code for player in players] == [None, None, None]
            time.sleep(0.5)
    finally:
        company.network.come_back()
    after = company.run
    assert after.seq >= before.seq, "what was acknowledged is still there"
    assert after.step >= before.step
    company.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    assert [player.process.wait() for player in players] == [0, 0, 0]
    run = company.run
    assert run.lost_sequences == 0
    # The outage may make one member late in a round: it is dropped, and applies nothing until the next epoch.
    assert sum(company.all_trained(player, run.data_index - run.backlog) for player in players) >= 2
    assert company.compare_replicas() > 3 * 15
