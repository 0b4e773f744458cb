"""Tiers with their own layers and heads train one model. One member is killed and returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import DUMMY_SEED, init_weights
from aftermath.replica.origin import Origin
from aftermath.replica.pass_size import PassSize
from aftermath.rules.model import Checkpoint
from aftermath.rules.state import CheckpointKind, RunState
from aftermath.sim.setup import CONFIG
from aftermath.sim.simulation import SimulatedRun, play
from member.short_runs import SHORT

KINDS = {
    "layers": [{"layers": [0, 2]}, {"layers": [2]}],
    "heads": [{"num_key_value_heads": 2}, {"num_key_value_heads": 1}],
    "a width for every layer": [
        {"intermediate_size": [32, 16, 8]},
        {"intermediate_size": [8, 8, 4]},
    ],
    "all at once": [{"layers": [0, 2], "num_key_value_heads": 2}, {"intermediate_size": [9, 5]}],
}


HEADS = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 4}
NANOGPT = HEADS | {
    "model_type": "nanogpt",
    "hidden_act": None,
    "value_embeddings": 1,
    "unet_skips": True,
    "x0_residual": True,
}

DEEPSEEK = HEADS | {
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 8,
    "q_lora_rank": 6,
    "kv_lora_rank": 4,
    "qk_nope_head_dim": 4,
    "head_dim": 2,  # equals qk_rope_head_dim and overrides HEADS
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind == "all at once" else pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
    ],
)
def test_replicas_stay_equal(kind: str, tmp_path: Path) -> None:
    _play(HEADS | {"matformer_tiers": KINDS[kind]}, tmp_path)


@pytest.mark.slow
def test_nanogpt_tiers_with_tied_layers_stay_equal(tmp_path: Path) -> None:
    heads = {"layers": [1, 2], "num_key_value_heads": [3, 2], "intermediate_size": [20, 9]}
    _play(NANOGPT | {"matformer_tiers": [heads, {"layers": [1]}]}, tmp_path)


@pytest.mark.slow
def test_deepseek_tiers_with_mixed_experts_stay_equal(tmp_path: Path) -> None:
    first = {"intermediate_size": 20, "moe_intermediate_size": [8, 5]}
    _play(
        DEEPSEEK | {"matformer_tiers": [first, {"layers": [0, 2], "moe_intermediate_size": 3}]},
        tmp_path,
    )


def _play(keys: dict[str, Any], tmp_path: Path) -> None:
    config = config_of(CONFIG.to_hf() | keys)

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2, 2)]
        await sim.until_round(1)
        await sim.kill(sim_members[2])
        await sim.until(lambda run: run.state is RunState.COOLDOWN)
        sim.start(sim_members[2])
        await sim.until_finished()

    sim = play(tmp_path, scenario, config=config, **SHORT)
    assert sim.check(dropped=[sim.sim_members[2]]) > 24


def test_run_without_weights_starts_equal_from_seed(tmp_path: Path) -> None:
    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    sim = play(tmp_path, scenario, stored=False, **SHORT)
    assert sim.check() == 24
    checkpoint = Checkpoint(CheckpointKind.DUMMY, str(tmp_path / "model"), "")
    for tier in range(3):
        origin = Origin(
            sim.schema, tier, "auto", torch.device("cpu"), PassSize(4, "off"), lambda: 0.0
        )
        first = origin.durable(checkpoint)
        expected = init_weights(sim.config, DUMMY_SEED, tier)
        assert first.keys() == expected.keys()
        assert all(torch.equal(first[name], expected[name]) for name in expected)
