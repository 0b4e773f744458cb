"""The run's schema, from the config file and the checkpoint it names, before anything is on chain."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from aftermath.cli.present import CommandError
from aftermath.model.agreed import agreed_schema
from aftermath.model.resolve import load_hf_config
from aftermath.model.schema import Schema
from aftermath.run.accounts import Checkpoint, Optimizer
from aftermath.run.config import RunConfig
from aftermath.run.state import CheckpointKind, OptimizerKind


@dataclass(frozen=True)
class Shape:
    """What a model's own config and the run's settings say of its size and its parts."""

    schema: Schema

    @property
    def num_parameters(self) -> int:
        """Parameters of the full model."""
        return self.schema.parameters()

    @property
    def vocab_size(self) -> int:
        """Entries of the model's embedding."""
        return self.schema.config.vocab_size

    def to_chain(self) -> dict[str, object]:
        """The `schema` part of the program's `UpdateParams`."""
        return {"hash": self.schema.hash(), "tier_widths": list(self.schema.widths)}


def shape_of(config: RunConfig) -> Shape:
    """The schema of the run this file describes.

    Raises CommandError when the file asks for an optimizer without results to share, and the model room's errors
    when the checkpoint cannot be read or its model cannot be cut into the tiers.
    """
    if config.llm.optimizer.Distro is None:
        raise CommandError(
            "the optimizer AdamW is not supported: members exchange results with DisTrO only",
            "replace [model.LLM.optimizer.AdamW] in the config by [model.LLM.optimizer.Distro]",
        )
    place = config.llm.checkpoint.to_chain()
    checkpoint = Checkpoint(CheckpointKind(place["kind"]), place["repo"], place["revision"])
    optimizer = _as_read(config.llm.optimizer.to_chain())
    return Shape(agreed_schema(load_hf_config(checkpoint), config.llm.matformer.tiers, optimizer))


def _as_read(values: dict[str, Any]) -> Optimizer:
    """The optimizer as members will read it from the chain, so that both sides build one schema."""
    reals = {
        name.removesuffix("_bits"): struct.unpack("<d", bits.to_bytes(8, "little"))[0]
        for name, bits in values.items()
        if name.endswith("_bits")
    }
    return Optimizer(
        kind=OptimizerKind(values["kind"]),
        quantize_1bit=bool(values["quantize_1bit"]),
        compression_topk=values["compression_topk"],
        compression_chunk=values["compression_chunk"],
        **reals,
    )
