"""Optimizers of tiny replicas after some rounds, so that they have a private state."""

from __future__ import annotations

import torch
from torch import Tensor

from aftermath.model.initial_weights import init_weights
from aftermath.optim.engine import Engine
from aftermath.optim.schema import Schema, build_schema
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.sim.setup import CONFIG

OPTIMIZERS: dict[str, Optimizer] = {
    "distro": Distro(
        topk=4,
        topk_embeddings=4,
        chunk=8,
        quantize_1bit=True,
        decay=0.999,
        weight_decay=0.0,
        clip=None,
    ),
    "sparseloco": SparseLoCo(inner_steps=2, topk=4, topk_embeddings=4, chunk=8),
    "muon": SparseLoCo(inner_steps=2, inner_optimizer="muon", topk=4, topk_embeddings=4, chunk=8),
}


def trained(settings: Optimizer, tier: int, rounds: int = 1) -> tuple[Schema, Engine]:
    """Return a replica's optimizer after some rounds."""
    schema = build_schema(CONFIG.to_hf(), 3, settings)
    model = CONFIG.build(tier, init_weights(CONFIG, 0, tier))
    engine = Engine(schema, tier, dict(model.named_parameters()))

    def backward(part: Tensor) -> float:
        loss = model.loss(part)
        loss.backward()
        return float(loss.detach())

    for number in range(rounds):
        share = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(number))
        engine.train(share, backward, 1e-3, 1e-3)
    return schema, engine
