"""What survives the death of all members at once."""

from __future__ import annotations

import pytest

from aftermath.model.saved_checkpoints import saved_steps
from aftermath.rules.state import RunState
from e2e.company import Company
from e2e.diary import applied_sequences
from e2e.material import Material

STEPS = 12


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["embedded"], indirect=True)  # no engine knows of members
def test_all_gone_and_back_from_the_durable_checkpoint(
    company: Company, material: Material
) -> None:
    rules = {
        "rounds_per_epoch": STEPS // 2,
        "total_steps": STEPS,
        "waiting_for_members_extra_time": 5,
    }
    company.configure(material.config(company.place, **rules))
    players = company.start_three()
    between = company.until_run(
        lambda run: run.epoch >= 1 and run.state is RunState.WAITING_FOR_MEMBERS,
        "an epoch has ended",
    )
    company.disband()
    dead = company.run
    model = company.model
    assert dead.state is RunState.WAITING_FOR_MEMBERS, "they died between two epochs"
    assert model.checkpoint_step == dead.attested_step == dead.step == between.step
    assert model.checkpoint_hashes == dead.level_hashes
    assert saved_steps(company.place / "checkpoints", company.run_id)

    # The dead are signed up for the next epoch. It must not begin before all are back, however long
    # they take to start.
    company.command("set-paused", "pause", "--run-id", company.run_id)
    marks = [player.diary.mark() for player in players]
    for player in players:
        company.start(player)
    for player, mark in zip(players, marks, strict=True):
        company.until(
            lambda player=player, mark=mark: player.diary.saw("state", mark, state="PAUSED"),
            f"{player.name} is back",
        )
    company.command("set-paused", "resume", "--run-id", company.run_id)
    back = company.until_run(lambda run: run.state.training, "they train again")
    assert (back.start_step, back.level_hashes) == (dead.step, model.checkpoint_hashes)
    company.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    assert [player.process.wait() for player in players] == [0, 0, 0]
    # The last one may sign up when the epoch has begun, and sit it out.
    first = [
        event
        for player, mark in zip(players, marks, strict=True)
        for event in player.diary.saw("model", mark)
    ]
    sources = [event["source"] for event in first if event["step"] == dead.trained_steps]
    assert sources in (["the checkpoint"] * 2, ["the checkpoint"] * 3)
    steps = list(range(1, STEPS + 1))
    whole = [
        player
        for player in players
        if [event["step"] for event in player.diary.saw("applied")] == steps
    ]
    assert len(whole) >= 2
    assert applied_sequences(whole[0].diary) == list(range(company.run.data_index))
    assert company.run.lost_sequences == 0
    assert company.compare_replicas() > 3 * STEPS // 2
