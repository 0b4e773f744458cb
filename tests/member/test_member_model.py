"""Members that load the model from lying peers or from an altered file."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.dishonest_members import offer_garbage
from member.short_runs import SHORT


@pytest.mark.parametrize("fill", [0.25, pytest.param(float("nan"), marks=pytest.mark.slow)])
def test_joiner_rejects_garbage_of_dishonest_majority(tmp_path: Path, fill: float) -> None:
    """Two of three peers offer the same garbage for the run's step. Its hash is not the one on
    chain.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(0) for _ in range(3)]
        for liar in sim_members[:2]:
            offer_garbage(sim, liar, fill)
        await sim.until_round(1)
        sim.add(0)
        await sim.until(lambda run: run.epoch == 2)

    sim = play(tmp_path, scenario, **SHORT)
    joiner = sim.sim_members[3]
    assert [e["source"] for e in joiner.saw("model")] == ["peers"]
    assert sim.check() > 0
    assert joiner.transport is not None
    model = sum(segment.size for level in range(3) for segment in sim.schema.state.of_level(level))
    results = sum(e["bytes"] for sim_member in sim.sim_members for e in sim_member.saw("trained"))
    assert model <= joiner.transport.stats().received["blob"] < model + results


def _steps_aside(sim_member: SimMember) -> list[str]:
    return [
        e["message"]
        for e in sim_member.saw("warning")
        if "no source has delivered the model" in e["message"]
    ]


@pytest.mark.slow
def test_altered_checkpoint_is_refused_until_restored(tmp_path: Path) -> None:
    """All members have died, so the run returns to the attested checkpoint. One of its bits is
    flipped.
    """

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(1, epoch=1)
        for sim_member in sim_members:
            await sim.kill(sim_member)
        file = Path(sim.model.checkpoint.repo) / "model.safetensors"
        good = file.read_bytes()
        file.write_bytes(good[:-2] + bytes([good[-2] ^ 1]) + good[-1:])
        died = sim.now
        for sim_member in sim_members:
            sim.start(sim_member)
        await sim.until(
            lambda _: sum(len(_steps_aside(sim_member)) for sim_member in sim_members) >= 4
        )
        assert sim.run.epoch == 2  # members without a model neither begin nor end an epoch
        for sim_member in sim_members:
            assert sim_member.alive
            assert [e["source"] for e in sim_member.saw("model") if e["t"] > died] == []
            assert any(
                "is not the one that members attested" in e["message"]
                for e in sim_member.saw("warning")
            )
        file.write_bytes(good)
        await sim.until_finished()
        for sim_member in sim_members:
            assert (
                next(e["source"] for e in sim_member.saw("model") if e["t"] > died)
                == "the checkpoint"
            )

    sim = play(tmp_path, scenario, rounds_per_epoch=3, total_steps=12)
    assert sim.compare(sim.sim_members) > 0
