"""Members warn while the chain knows of no checkpoint, and name the checkpoint of a finished
run.
"""

from __future__ import annotations

from pathlib import Path

from aftermath.sim.simulation import Simulation, play
from member.short_runs import ALONE, SHORT

LOST = (
    "the chain knows of no checkpoint with the last {}, and a member's --checkpoint-dir may hold one; otherwise that "
    "training is lost when the last member ends"
)


def test_run_without_checkpoint_warns_each_epoch_and_at_end(tmp_path: Path) -> None:
    async def story(sim: Simulation) -> None:
        sim.keeps = False
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    sim = play(tmp_path, story, **SHORT)
    for player in sim.players:
        told = [event["message"].splitlines() for event in player.saw("warning")]
        assert [lines[0] for lines in told] == [LOST.format("3 steps"), LOST.format("6 steps")]
        assert "--checkpoint-dir DIR" in told[0][1]
        assert [event.get("checkpoint") for event in player.saw("finished")] == [None]


def test_newcomer_in_the_last_epoch_is_told_and_leaves(tmp_path: Path) -> None:
    async def story(sim: Simulation) -> None:
        sim.add(0)
        await sim.until_round(1)
        late = sim.add(1)
        await sim.until(lambda _: not late.alive)
        assert sim.run.state.training
        await sim.until_finished()

    first, late = play(tmp_path, story, **ALONE | {"rounds_per_epoch": 6}).players
    assert [event.get("leaves", False) for event in late.saw("waiting")] == [False, True]
    assert [event["epoch"] for event in late.saw("joined")] == [0]
    assert {event["state"] for event in first.saw("state", last=True)} == {"WARMUP"}
    assert len(first.saw("joined")) == 1, "nobody signs up for an epoch after the last"


def test_finished_members_name_the_checkpoint_of_the_chain(tmp_path: Path) -> None:
    async def story(sim: Simulation) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    sim = play(tmp_path, story, **SHORT)
    (kept,) = [event["path"] for event in sim.players[0].saw("checkpoint") if event["step"] == 6]
    for player in sim.players:
        assert not player.saw("warning")
        assert [event["checkpoint"] for event in player.saw("finished")] == [kept]
