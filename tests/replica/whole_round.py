"""Whole rounds of three replicas on one device, and their results, to compare two devices."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfig
from aftermath.model.initial_weights import init_weights
from aftermath.model.segments import write_segment
from aftermath.optim.codec import decode_level
from aftermath.optim.level_votes import Votes
from aftermath.optim.schema import Schema, build_schema
from aftermath.replica.model_sharing import snapshot
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo

CPU = torch.device("cpu")
_SIZES = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
_EXPERTS = _SIZES | {
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
MODELS: dict[str, dict[str, Any]] = {
    "llama": _SIZES | {"model_type": "llama", "num_hidden_layers": 2, "rope_scaling": _YARN},
    "qwen3": _SIZES
    | {"model_type": "qwen3", "num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 8},
    "nanogpt": _SIZES
    | {
        "model_type": "nanogpt",
        "num_hidden_layers": 3,
        "relu_squared": True,
        "qk_norm": True,
        "logit_softcap": 15.0,
    }
    | {"value_embeddings": 1, "x0_residual": True, "unet_skips": True},
    "deepseek-v2": _EXPERTS | {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy"},
    "deepseek-v3": _EXPERTS | {"model_type": "deepseek_v3"},
    "auto-experts": _SIZES
    | {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": 4,
    }
    | {"num_experts_per_tok": 2, "moe_intermediate_size": 12},
    "auto": {
        "model_type": "gpt2",
        "vocab_size": 48,
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 64,
    },
}
"""A `config.json` of each architecture; names with `auto` need transformers. One has
stacked experts.
"""
_DISTRO = {
    "topk": 4,
    "topk_embeddings": 6,
    "chunk": 7,
    "decay": 0.999,
    "weight_decay": 0.01,
    "clip": 1.0,
}
OPTIMIZERS: dict[str, Optimizer] = {
    "distro": Distro(**_DISTRO, quantize_1bit=True),  # type: ignore[arg-type]
    "distro-float": Distro(**_DISTRO, quantize_1bit=False),  # type: ignore[arg-type]
    "sparseloco": SparseLoCo(inner_steps=2, topk=5, topk_embeddings=5, chunk=7),
    "sparseloco-whole": SparseLoCo(inner_steps=2, topk=49, topk_embeddings=49, chunk=7, bits=1),
    "sparseloco-muon": SparseLoCo(
        inner_steps=2, topk=5, topk_embeddings=5, chunk=7, inner_optimizer="muon"
    ),
    "sparseloco-momentum": SparseLoCo(
        inner_steps=2, topk=5, topk_embeddings=5, chunk=7, outer_momentum=0.6, orthogonal_lr=15.0
    ),
    "sparseloco-polar": SparseLoCo(
        inner_steps=2, topk=5, topk_embeddings=5, chunk=7, orthogonal_lr=15.0
    ),
    "sparseloco-whole-polar": SparseLoCo(
        inner_steps=2, topk=49, topk_embeddings=49, chunk=7, orthogonal_lr=15.0
    ),
}


@dataclass(frozen=True)
class Left:
    """The results of rounds: `payloads` by round and replica, `hashes` by replica."""

    payloads: list[list[dict[int, bytes]]]
    hashes: list[dict[int, bytes]]
    loaded: list[dict[int, bytes]]
    """Return the replicas made from the snapshots."""


def play(
    model: str,
    optimizer: str,
    device: torch.device,
    other_results: Sequence[Sequence[Mapping[int, bytes]]] | None = None,
) -> Left:
    """Play two rounds with replicas of tiers 0, 1 and 2 (all of tier 0 for a model with one tier),
    and load their final state.

    Each replica trains, encodes, and applies all results: those of this device, or those in
    `other_results`.
    """
    config = config_of(MODELS[model])
    tiers = (0, 1, 2) if not model.startswith("auto") else (0, 0, 0)
    schema = build_schema(config.to_hf(), len(set(tiers)), OPTIMIZERS[optimizer])
    replicas = [
        _replica(schema, config, tier, init_weights(config, 3, tier), device) for tier in tiers
    ]
    draws = torch.Generator().manual_seed(9)
    payloads = []
    for later in (False, True):
        shares = torch.randint(0, 48, (3, 4, 16), generator=draws)
        if later:
            # with labels [3, 4, 2, 16]
            shares = torch.stack((shares, shares.masked_fill(shares % 5 == 0, -100)), 2)
        results = [
            replica.train(
                share, 1e-2, 1e-2, threading.Event(), measured=later, travelling=later
            ).payloads
            for replica, share in zip(replicas, shares, strict=True)
        ]
        payloads.append(results)
        for replica in replicas:
            replica.apply(
                votes_of(schema, replica, other_results[later] if other_results else results), 1e-2
            )
        state = replicas[0].optimizer.state()
        replicas[0].optimizer.reset()
        replicas[0].optimizer.restore(state)
    loaded = [
        _replica(schema, config, replica.tier, _handed_on(replica), device) for replica in replicas
    ]
    return Left(
        payloads,
        [replica.hashes() for replica in replicas],
        [replica.hashes() for replica in loaded],
    )


def votes_of(
    schema: Schema, replica: Replica, results: Sequence[Mapping[int, bytes]]
) -> dict[int, list[Votes]]:
    """Return the votes that a replica applies of all results."""
    return {
        level: [
            decode_level(own[level], schema.results, level, replica.device)
            for own in results
            if level in own
        ]
        for level in replica.levels
    }


def _replica(
    schema: Schema,
    config: ModelConfig,
    tier: int,
    weights: Mapping[str, Tensor],
    device: torch.device,
) -> Replica:
    return Replica(
        schema,
        config,
        tier,
        weights,
        device=device,
        pass_size=PassSize(3, "auto"),
        stopwatch=lambda: 0.0,
    )


def _handed_on(replica: Replica) -> dict[str, Tensor]:
    """Return the tensors of a joiner that fetched a replica's snapshot, on the joiner's device."""
    shared = replica.schema.shared
    taken = snapshot(replica.shared, shared, replica.tier, 0)
    tensors = {name: torch.zeros_like(tensor) for name, tensor in replica.shared.items()}
    for level, digests in taken.manifest.levels.items():
        for segment, digest in zip(shared.of_level(level), digests, strict=True):
            write_segment(tensors, segment, taken.blobs[digest])
    return tensors
