"""Load the model, optimizer and data of a recipe."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from aftermath.base.errors import UsageError
from aftermath.config.data_sources import DataLocationChoice
from aftermath.data.local import open_tokens
from aftermath.data.source import DataRequest, Source
from aftermath.lab.held_out import spread
from aftermath.lab.multi_replica import MultiReplicaTrainer
from aftermath.lab.recipe import Recipe
from aftermath.lab.single_replica import SingleReplica, optimizer_for
from aftermath.lab.trainer import Trainer
from aftermath.model.checkpoint import load, load_config
from aftermath.model.config import ModelConfig
from aftermath.optim.schema import build_schema
from aftermath.replica.options import PLAIN, Arithmetic
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica


@dataclass(frozen=True)
class Start:
    """The loaded parts of a training, before its first step."""

    config: ModelConfig
    trainer: Trainer
    data: Source
    held_out: Tensor | None
    bound: dict[str, Any]
    """The recipe and the fingerprints of its files, as JSON."""


def start(
    recipe: Recipe,
    device: torch.device,
    arithmetic: Arithmetic = PLAIN,
    *,
    stack_members: bool = False,
) -> Start:
    """Load the model and open the data. Raises an AftermathError if either is not usable.

    `stack_members` trains members of a tier at once (`stacked_members`).
    """
    config = load_config(Path(recipe.model))
    if recipe.seq_len > config.max_position_embeddings:
        raise UsageError(
            f"sequences of {recipe.seq_len} tokens are too long for the model: max_position_embeddings in "
            f"its config.json is {config.max_position_embeddings}",
            f"Pass --seq-len {config.max_position_embeddings} or less",
        )
    data = _data(recipe, config.vocab_size)
    held_out = None
    if recipe.held_out:
        files = open_tokens(
            recipe.held_out, recipe.token_bytes, recipe.seq_len, vocab_size=config.vocab_size
        )
        held_out = spread(files, recipe.eval_sequences)
    largest = min(recipe.tiers)
    weights = load(Path(recipe.model), largest)
    marks = {
        "weights": _mark(weights),
        "sequences": data.sequences,
        "held_out": held_out is not None and len(held_out),
    }
    bound = msgspec.json.decode(msgspec.json.encode(asdict(recipe) | {"files": marks}))
    trainer = _trainer(
        recipe, config, weights, device=device, arithmetic=arithmetic, stack_members=stack_members
    )
    return Start(config, trainer, data, held_out, bound)


def _data(recipe: Recipe, vocab_size: int) -> Source:
    """Return the tokens. Raises DataError."""
    if recipe.source:
        chosen = DataLocationChoice.model_validate_json(recipe.source)
        return chosen.source.open(DataRequest(recipe.seq_len, vocab_size))
    return open_tokens(
        recipe.data,
        recipe.token_bytes,
        recipe.seq_len,
        vocab_size=vocab_size,
        shuffle_seed=bytes.fromhex(recipe.shuffle_seed) or None,
    )


def _trainer(
    recipe: Recipe,
    config: ModelConfig,
    weights: dict[str, Tensor],
    *,
    device: torch.device,
    arithmetic: Arithmetic,
    stack_members: bool,
) -> Trainer:
    if recipe.agreed is None:
        (tier,) = recipe.tiers
        model = config.build(tier, {name: tensor.to(device) for name, tensor in weights.items()})
        return SingleReplica(model, optimizer_for(model, recipe), recipe, arithmetic)
    schema = build_schema(config.to_hf(), recipe.levels, recipe.agreed)
    # Members of a tier share its tensors: rounds are applied, and models compiled, once per tier.
    of_tier: dict[int, Replica] = {}
    replicas = []
    for tier in recipe.tiers:
        if tier in of_tier:
            replicas.append(of_tier[tier].another())
            continue
        of_tier[tier] = Replica(
            schema,
            config,
            tier,
            _cut(config, tier, weights),
            device=device,
            pass_size=PassSize(recipe.micro_batch, "auto"),
            stopwatch=time.perf_counter,
            arithmetic=arithmetic,
        )
        replicas.append(of_tier[tier])
    stacked = None
    if stack_members:
        from aftermath.lab.stacked_members import StackedMembers  # imports torch.func

        stacked = StackedMembers(replicas)
    return MultiReplicaTrainer(
        replicas,
        recipe.rate,
        recipe.overlap,
        stacked,
        reset_inner=recipe.inner_state == "reset",
    )


def _cut(config: ModelConfig, tier: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of a tier's tensors, cut from the tensors of a larger tier."""
    shapes = config.parameter_shapes(tier)
    return {name: weights[name][tuple(map(slice, shape))].clone() for name, shape in shapes.items()}


def _mark(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].numpy().tobytes())
    return digest.hexdigest()
