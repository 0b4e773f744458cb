"""The schema: what a run's members agree on before they exchange anything, and whose SHA-256 is on chain.

Decided
- It has two parts: the model's state, and the optimizer with every setting of it and the format of its results.
- It is canonical JSON. A schema that arrives as bytes is never trusted field by field: it is rebuilt from its inputs
  and must be equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from aftermath.base.bounded import Malformed, json_as
from aftermath.model.canonical import canonical
from aftermath.model.levels import SchemaError
from aftermath.model.schema import StateInputs, StateSchema, state_of_inputs, state_schema
from aftermath.optim.distro import Distro, DistroInputs
from aftermath.optim.format import ResultFormat
from aftermath.optim.sparseloco import SparseLoCo, SparseLoCoInputs
from aftermath.rules.state import OptimizerKind

SCHEMA_VERSION = 10  # also when the bytes of a result change, or the bits that an apply makes of it
MAX_JSON_BYTES = 16 << 20

Settings = Distro | SparseLoCo
"""What all of them answer, so that nobody has to ask which kind they are; the types tell of one that does not:
- `inner_steps`: steps of a member's own on parts of its share; 0 where the share is one gradient
- `inner_optimizer`: what takes these steps; None without any
- `moments`: numbers that this remembers of a parameter
- `late`: what is to be said of an overlap; nothing where it does no harm
"""
SETTINGS: Mapping[OptimizerKind, type[Settings]] = {
    OptimizerKind.DISTRO: Distro,
    OptimizerKind.SPARSELOCO: SparseLoCo,
}
"""By the kinds with which members exchange results (`rules.optimizers`)."""


@dataclass(frozen=True)
class Schema:
    """A run's model state and optimizer. Equal schemas have equal canonical JSON."""

    state: StateSchema
    optimizer: Settings
    results: ResultFormat = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises SchemaError if the state cannot be cut into blocks as the optimizer says."""
        object.__setattr__(self, "results", self.optimizer.results(self.state))

    def to_json(self) -> bytes:
        """The canonical document whose SHA-256 is on chain."""
        optimizer = {**self.optimizer.document(), "results": self.results.document()}
        return canonical({"version": SCHEMA_VERSION, "state": self.state.document(), "optimizer": optimizer})

    @cached_property
    def _hash(self) -> bytes:
        return hashlib.sha256(self.to_json()).digest()

    def hash(self) -> bytes:
        """SHA-256 of the canonical JSON, 32 bytes."""
        return self._hash

    @staticmethod
    def from_json(data: bytes, *, max_bytes: int = MAX_JSON_BYTES) -> Schema:
        """The schema in these bytes, which may come from a peer.

        Raises SchemaError unless they are exactly the canonical JSON of the schema that their own inputs give.
        """
        if len(data) > max_bytes:
            raise SchemaError(f"a schema of {len(data)} bytes exceeds the limit of {max_bytes}")
        try:
            document: _Document = json_as(data, _Document)
        except Malformed as error:
            raise SchemaError(f"not a schema: {error}") from None
        schema = Schema(state_of_inputs(document.state), document.optimizer.settings())
        if schema.to_json() != data:
            raise SchemaError("the schema is not the canonical one of its own model and settings")
        return schema


class _Document(msgspec.Struct, frozen=True):
    """The inputs of a schema document; the rest of it follows from them and is compared whole."""

    state: StateInputs
    optimizer: DistroInputs | SparseLoCoInputs


def build_schema(hf_config: Mapping[str, Any], tiers: int, optimizer: Settings) -> Schema:
    """The schema of a run from a model's `config.json` (of any tier) and its optimizer.

    Raises WidthNotDivisible, ModelConfigError or SchemaError.
    """
    return Schema(state_schema(hf_config, tiers), optimizer)


__all__ = ["Schema", "SchemaError", "Settings", "build_schema"]
