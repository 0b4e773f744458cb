"""Members of different tiers train with SparseLoCo through the real program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aftermath.base.errors import Unsuitable
from aftermath.rules.optimizers import AdamWAlone
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.train.admission import check_model
from member.short_runs import SHORT

STEPS = 3
"""Inner steps of a round: a member's share has as many sequences."""
ROUNDS = SHORT["rounds_per_epoch"]


def _table(**changes: Any) -> dict[str, Any]:
    small = {"compression_chunk": 7, "compression_topk": 4, "compression_topk_embeddings": 6}
    return {"SparseLoCo": {"inner_steps": STEPS, **small, **changes}}


def _taken(sim_member: SimMember) -> set[int]:
    """Return how many steps a member's inner optimizer has counted, from its state of every
    parameter.
    """
    assert sim_member.member is not None
    replica = sim_member.member._replica
    assert replica is not None
    state = replica.optimizer.state()
    return {
        int(tensor)
        for name, tensor in state.items()
        if name.startswith(("private.step/", "private.count/"))
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overlap", "changes"),
    [
        (1, {}),
        (
            0,
            {
                "inner_optimizer": "muon",
                "divisor": "root",
                "value_bits": 1,
                "outer_lr": 0.7,
                "weight_decay": 0.01,
            },
        ),
        (1, {"divisor": "all", "clip_grad_norm": 0.0, "compression_decay": 0.0}),
        (0, {"divisor": "all", "orthogonal_lr": 10.0}),
    ],
)
def test_three_tiers_change_levels_and_end_equal(
    tmp_path: Path, overlap: int, changes: dict[str, Any]
) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    sim = play(tmp_path, scenario, optimizer=_table(**changes), overlap=overlap, **SHORT)
    assert isinstance(sim.model.optimizer, SparseLoCo)
    assert sim.schema.optimizer == sim.model.optimizer
    assert sim.check() == 24
    ends = [sim_member.saw("cooldown")[-1]["hashes"] for sim_member in sim.sim_members]
    assert [sorted(hashes) for hashes in ends] == [["0", "1", "2"], ["1", "2"], ["2"]]
    for level in ("1", "2"):
        assert len({hashes[level] for hashes in ends if level in hashes}) == 1
    for sim_member in sim.sim_members:
        assert len(sim_member.saw("trained")) == 2 * ROUNDS
        applied = [str(event["hashes"]) for event in sim_member.saw("applied")]
        assert len(set(applied)) == len(applied), "every round changes the model"


@pytest.mark.parametrize("sparseloco", [False, True])
def test_optimizer_without_results_is_refused_at_join(tmp_path: Path, sparseloco: bool) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        check_model(sim.model, "r")
        alone = replace(sim.model, optimizer=AdamWAlone())
        with pytest.raises(
            Unsuitable,
            match="r uses AdamW, and members exchange results with DisTrO or SparseLoCo",
        ):
            check_model(alone, "r")
        other = replace(sim.model, architecture="HfMamba")
        with pytest.raises(Unsuitable, match="does not have \\(it has HfLlama, HfDeepseek"):
            check_model(other, "r")

    play(tmp_path, scenario, optimizer=_table() if sparseloco else None)


@pytest.mark.slow
def test_inner_moments_survive_epochs_but_not_pause(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.WARMUP)
        assert [_taken(sim_member) for sim_member in sim_members] == [{ROUNDS * STEPS}] * 3
        await sim.until_round(1, epoch=1)
        assert all(min(_taken(sim_member)) > ROUNDS * STEPS for sim_member in sim_members)
        sim.pause(True)
        await sim.until(lambda run: run.state is RunState.PAUSED)
        sim.pause(False)
        await sim.until(lambda run: run.epoch == 2 and run.state is RunState.ROUND_TRAIN)
        assert [max(_taken(sim_member), default=0) <= STEPS for sim_member in sim_members] == [
            True
        ] * 3
        await sim.until_finished()

    assert (
        play(tmp_path, scenario, optimizer=_table(), rounds_per_epoch=ROUNDS, total_steps=9).check()
        > 24
    )


@pytest.mark.slow
def test_killed_member_returns_without_moments_and_stays_equal(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 1)]
        await sim.until_round(1)
        await sim.kill(sim_members[1])
        sim.start(sim_members[1])
        await sim.until_round(1, epoch=1)
        assert max(_taken(sim_members[1])) <= 2 * STEPS
        assert all(
            min(_taken(sim_member)) > 2 * STEPS
            for sim_member in sim_members
            if sim_member is not sim_members[1]
        )
        await sim.until_finished()

    sim = play(
        tmp_path,
        scenario,
        optimizer=_table(inner_optimizer="muon", orthogonal_lr=10.0),
        init_min_clients=4,
        rounds_per_epoch=ROUNDS,
        total_steps=9,
    )
    assert sim.check(dropped=[sim.sim_members[1]]) > 0
    assert sim.sim_members[1].saw("applied", epoch=1)
