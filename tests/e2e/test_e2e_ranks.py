"""A member of two ranks in a run with members of one: the same replicas everywhere, and a rank that
is killed.
"""

from __future__ import annotations

import json
from contextlib import suppress

import psutil
import pytest

from aftermath.rules.state import RunState
from e2e.company import Company, Player
from e2e.diary import applied_sequences
from e2e.material import Material

ROUNDS = 6
EPOCHS = 2
pytestmark = pytest.mark.slow
EMBEDDED = pytest.mark.parametrize("engine", ["embedded"], indirect=True)


def ranks_of(player: Player) -> list[psutil.Process]:
    """The processes of its other ranks."""
    found = []
    for child in psutil.Process(player.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # others come and go
            if "aftermath.parallel.worker" in child.cmdline():
                found.append(child)
    return found


@EMBEDDED
def test_two_ranks_equal_one_and_a_killed_rank_ends_its_member(
    company: Company, material: Material
) -> None:
    # so that everybody has a share
    batch = {"global_batch_size_start": 48, "global_batch_size_end": 48}
    company.configure(
        material.config(
            company.place, rounds_per_epoch=ROUNDS, total_steps=EPOCHS * ROUNDS, **batch
        )
    )
    company.starts_commands = True  # they start processes themselves
    one, two, three = players = [company.player(tier) for tier in (0, 0, 1)]
    for player, options in zip(
        players, (["--data-parallelism", "2"], ["--data-parallelism", "2"], []), strict=True
    ):
        company.start(player, "--micro-batch-size", "2", *options)
    company.command("set-paused", "resume", "--run-id", company.run_id)
    company.until(lambda: ranks_of(one) and ranks_of(two), "their other ranks are there")
    [rank] = ranks_of(one)
    company.until_run(
        lambda run: run.epoch >= 1 and run.state.training and run.current.height >= 2,
        "the second epoch runs",
    )
    # Levels 2 and 1 are on three members, level 0 on two; after every step, and once more per
    # cooldown.
    assert company.compare_replicas() >= 5 * (ROUNDS + 1)
    for player in players:
        assert len(applied_sequences(player.diary)) >= 48 * ROUNDS
        assert len(player.diary.saw("trained")) > 1

    others = [(player, player.diary.mark()) for player in (one, three)]
    two.process.expected = False
    ranks_of(two)[0].kill()
    assert two.process.wait(30) == 1
    assert "error: rank 1 of this member, on cpu, has ended by SIGKILL" in two.process.output
    assert "Traceback" not in two.process.output
    told = [json.loads(line) for line in two.process.output.splitlines() if line.startswith("{")]
    assert [event["kind"] for event in told if event["kind"] in ("left", "error")] == [
        "left",
        "error",
    ]
    assert not company.in_epoch(two)

    run = company.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    assert [player.process.wait() for player, _ in others] == [0, 0]
    rank.wait(10)  # it ends with its member
    assert company.compare_replicas() > 5 * (ROUNDS + 1)
    assert run.lost_sequences == 0
    for player, mark in others:
        assert len(player.diary.saw("applied", mark)) >= 3
        assert company.all_trained(player, run.data_index - run.backlog)


@EMBEDDED
def test_the_ranks_of_a_member_that_is_killed_end_with_it(
    company: Company, material: Material
) -> None:
    company.configure(
        material.config(company.place, init_min_clients=1, min_clients=1, total_steps=1000)
    )
    player = company.player(0)
    company.starts_commands = True
    company.start(player, "--tensor-parallelism", "2")
    company.command("set-paused", "resume", "--run-id", company.run_id)
    company.until_trains(player, 0)
    ranks = ranks_of(player)
    assert len(ranks) == 1
    player.process.expected = False
    psutil.Process(player.process.pid).kill()
    assert psutil.wait_procs(ranks, 20)[1] == []
