"""A member's life under a virtual clock: joining, rounds, loss of members, pause, return; replicas always equal."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from train.simulated import Simulation

from aftermath.run.state import RunState
from aftermath.sim.clock import run_virtual


def test_three_tiers_train_to_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        sim = Simulation(tmp_path)
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until(lambda run: run.state is RunState.FINISHED)
        assert sim.run.lost_sequences == 0
        assert not sim.run.backlog
        assert sim.check_replicas() == 42
        first, last = sim.players[0].saw("trained")[0], sim.players[0].saw("trained")[-1]
        assert last["loss"] < first["loss"]
        assert sim.players[0].saw("checkpoint")
        for player in sim.players:
            assert len(player.saw("applied")) == 12, player.name
        await sim.close()

    run_virtual(story())


def _play(story: Coroutine[Any, Any, None]) -> None:
    run_virtual(story)


def test_late_joiner_takes_the_model_from_its_peers(tmp_path: Path) -> None:
    async def story() -> None:
        sim = Simulation(tmp_path)
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until(lambda run: run.state is RunState.ROUND_TRAIN and run.current.height == 2)
        late = sim.add(0)
        await sim.until(lambda run: run.state is RunState.FINISHED)
        assert [event["source"] for event in late.saw("model")] == ["peers"]
        assert len(late.saw("applied")) == 6
        assert sim.check_replicas() == 63
        await sim.close()

    _play(story())


def test_killed_member_is_dropped_and_its_share_done_again(tmp_path: Path) -> None:
    async def story() -> None:
        sim = Simulation(tmp_path)
        players = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until(lambda run: run.state is RunState.ROUND_TRAIN and run.current.height == 2)
        await sim.kill(players[1])
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        assert any(player.saw("dropped") for player in players)
        sim.start(players[1])
        await sim.until(lambda run: run.state is RunState.FINISHED)
        assert "peers" in [event["source"] for event in players[1].saw("model")]
        assert sim.run.lost_sequences == 0
        assert sim.check_replicas() == 28
        await sim.close()

    _play(story())
