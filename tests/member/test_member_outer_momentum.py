"""Test that members share the outer momentum with joiners, in checkpoints and after a rewind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from aftermath.model.json_documents import MOMENTUM_FILE
from aftermath.model.levels import LARGEST_MOMENTUM, MOMENTUM
from aftermath.rules.state import RunState
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun, play
from member.short_runs import ALONE, SHORT

SLOW = pytest.mark.slow
OPTIMIZER = {
    "SparseLoCo": {
        "inner_steps": 2,
        "compression_chunk": 7,
        "compression_topk": 4,
        "outer_lr": 0.7,
        "outer_momentum": 0.6,
    }
}


def _momentum(sim_member: SimMember) -> dict[str, Tensor]:
    """Return copies of the momentum in a member's memory."""
    assert sim_member.member is not None
    replica = sim_member.member._replica
    assert replica is not None
    return {name: tensor.clone() for name, tensor in replica.optimizer.momentum.items()}


def _warned(sim_member: SimMember) -> list[str]:
    return [event["message"] for event in sim_member.saw("warning")]


def _equal_prefix(small: dict[str, Tensor], large: dict[str, Tensor]) -> bool:
    return small.keys() <= large.keys() and all(
        torch.equal(tensor, large[name][tuple(map(slice, tensor.shape))])
        for name, tensor in small.items()
    )


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [0, 1])
def test_joiner_and_rejoined_member_have_equal_momentum(tmp_path: Path, overlap: int) -> None:
    """A member of tier 0 joins in the second epoch. One of tier 1 is killed and comes back."""
    momenta: list[dict[str, Tensor]] = []

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(0), sim.add(0), sim.add(1), sim.add(1)]
        await sim.until_round(1)
        await sim.kill(sim_members[3])
        late = sim.add(0)
        sim.start(sim_members[3])
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.ROUND_TRAIN)
        assert all(one.saw("model")[-1]["source"] == "peers" for one in (late, sim_members[3]))
        await sim.until(lambda run: run.epoch == 1 and run.state is RunState.COOLDOWN)
        momenta.extend(_momentum(one) for one in (sim_members[0], late, sim_members[3]))
        await sim.until_finished()

    rules: dict[str, Any] = SHORT | {"init_min_clients": 4}
    sim = play(tmp_path, scenario, optimizer=OPTIMIZER, overlap=overlap, **rules)
    assert sim.check(dropped=[sim.sim_members[3]]) > 24
    whole, late_one, small = momenta
    assert any(bool(tensor.any()) for tensor in whole.values())
    names = {MOMENTUM + name for name in sim.schema.state.config.parameter_shapes()}
    assert late_one.keys() == whole.keys() == names
    assert _equal_prefix(late_one, whole)
    assert _equal_prefix(small, whole)


def test_restarted_run_continues_from_saved_momentum(tmp_path: Path) -> None:
    """The only member is killed after its first epoch. Its checkpoint has the momentum."""
    files: list[dict[str, Tensor]] = []

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until(lambda run: run.epoch == 1)
        await sim.kill(sim_member)
        directory = Path(sim.model.checkpoint.repo)
        files.append(load_file(directory / MOMENTUM_FILE))
        sim.start(sim_member)
        await sim.until(lambda run: run.state is RunState.FINISHED)

    sim = play(tmp_path, scenario, optimizer=OPTIMIZER, **ALONE | {"total_steps": 9})
    sim.check(dropped=sim.sim_members)
    assert any(bool(tensor.any()) for tensor in files[0].values())
    assert {tensor.dtype for tensor in files[0].values()} == {torch.int64}
    assert sim.sim_members[0].saw("model", source="the checkpoint", checkpoint_step=3)


def test_momentum_file_of_checkpoint_without_hash_is_ignored(tmp_path: Path) -> None:
    """The first checkpoint has no hash on chain, so a member cannot check the file."""
    momenta: list[dict[str, Tensor]] = []

    async def scenario(sim: SimulatedRun) -> None:
        (sim.place / "model" / MOMENTUM_FILE).write_bytes(b"of another run")
        sim_member = sim.add(0)
        await sim.until(lambda run: run.state is RunState.ROUND_TRAIN)
        momenta.append(_momentum(sim_member))
        await sim.until(lambda run: run.state is RunState.FINISHED)

    play(tmp_path, scenario, optimizer=OPTIMIZER, **ALONE)
    assert momenta[0]
    assert not any(bool(tensor.any()) for tensor in momenta[0].values())


@pytest.mark.parametrize(
    "harm",
    ["missing", "too large", *(pytest.param(one, marks=SLOW) for one in ("changed", "damaged"))],
)
def test_checkpoint_with_other_momentum_is_not_used(tmp_path: Path, harm: str) -> None:
    """A level's hash covers its momentum, so a member waits rather than start from zero."""
    texts = {"too large": "a value that is too large", "damaged": "is damaged"}
    message = texts.get(harm, "is not the one that members attested")

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until(lambda run: run.epoch == 1)
        await sim.kill(sim_member)
        path = Path(sim.model.checkpoint.repo) / MOMENTUM_FILE
        content = path.read_bytes()
        tensors = load_file(path)
        if harm == "missing":
            path.unlink()
        elif harm == "damaged":
            path.write_bytes(content[:-8])
        else:
            first = next(iter(tensors.values())).view(-1)
            first[0] = LARGEST_MOMENTUM + 1 if harm == "too large" else int(first[0]) + 1
            save_file(tensors, path)
        sim.start(sim_member)
        await sim.until(lambda _: any(message in one for one in _warned(sim_member)))
        path.write_bytes(content)
        await sim.until(lambda run: run.state is RunState.FINISHED)

    sim = play(tmp_path, scenario, optimizer=OPTIMIZER, **ALONE | {"total_steps": 9})
    assert sim.sim_members[0].saw("model", source="the checkpoint", checkpoint_step=3)


def test_rewound_run_restores_saved_momentum(tmp_path: Path) -> None:
    """Rewound to step 3, a run trains steps 4 to 6 again with the momentum of step 3."""
    hashes: list[tuple[bytes, ...]] = []

    async def scenario(sim: SimulatedRun) -> None:
        sim_member = sim.add(0)
        await sim.until(lambda run: run.epoch == 2 and run.state is RunState.ROUND_TRAIN)
        sim.pause(True)
        await sim.until(lambda run: run.state is RunState.PAUSED)
        place = next(n for n, one in enumerate(sim.model.recorded) if one.step == 4)
        hashes.append(sim.model.recorded[place].hashes)
        sim.rewind(place)
        sim.pause(False)
        await sim.until(lambda run: run.state is RunState.WARMUP)
        await sim.until(lambda run: run.epoch > 2 and run.state is RunState.ROUND_TRAIN)
        assert sim.run.step == 4
        assert sim_member.member is not None
        assert sim_member.member._replica is not None
        hashes.append(tuple(sim_member.member._replica.hashes().values()))
        await sim.until(lambda run: run.state is RunState.FINISHED)

    play(tmp_path, scenario, optimizer=OPTIMIZER, **ALONE | {"total_steps": 9})
    assert hashes[0] == hashes[1]


@pytest.mark.slow
def test_three_tiers_with_momentum_end_equal(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    table = {"SparseLoCo": OPTIMIZER["SparseLoCo"] | {"orthogonal_lr": 10.0, "divisor": "all"}}
    assert play(tmp_path, scenario, optimizer=table, **SHORT).check() == 24
