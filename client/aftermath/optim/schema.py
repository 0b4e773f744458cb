"""The schema, on which all members of a run agree. Its SHA-256 is on chain.

It is canonical JSON of the model's state, the optimizer with every setting, and the format of
results. A schema from a peer is rebuilt from its inputs and must have equal bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from aftermath.base.bounded import Malformed, json_as
from aftermath.model.schema import (
    SchemaError,
    StateInputs,
    StateSchema,
    canonical,
    state_of_inputs,
    state_schema,
)
from aftermath.optim.distro import Distro, DistroInputs
from aftermath.optim.format import ResultFormat
from aftermath.optim.sparseloco import SparseLoCo, SparseLoCoInputs
from aftermath.rules.state import OptimizerKind

SCHEMA_VERSION = 10  # raise it also if the bytes of a result change, or the bits of an apply
MAX_JSON_BYTES = 16 << 20

Settings = Distro | SparseLoCo
"""Settings of an optimizer whose members exchange results. mypy reports kinds that lack one of:
- `inner_steps`: steps on parts of a member's share; 0 if the share gives one gradient
- `inner_optimizer`: the optimizer of these steps, or None
- `moments`: numbers that it keeps per parameter
- `late`: a warning about overlapped rounds; empty if they do no harm
"""
SETTINGS: Mapping[OptimizerKind, type[Settings]] = {
    OptimizerKind.DISTRO: Distro,
    OptimizerKind.SPARSELOCO: SparseLoCo,
}
"""Settings by kind, for kinds with which members exchange results (`rules.optimizers`)."""


@dataclass(frozen=True)
class Schema:
    """A run's model state and optimizer. Equal schemas have equal canonical JSON."""

    state: StateSchema
    optimizer: Settings
    results: ResultFormat = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise SchemaError if the state cannot be cut into blocks as the optimizer says."""
        object.__setattr__(self, "results", self.optimizer.results(self.state))

    def to_json(self) -> bytes:
        """Return the canonical document whose SHA-256 is on chain."""
        optimizer = {**self.optimizer.document(), "results": self.results.document()}
        return canonical(
            {"version": SCHEMA_VERSION, "state": self.state.document(), "optimizer": optimizer}
        )

    @cached_property
    def _hash(self) -> bytes:
        return hashlib.sha256(self.to_json()).digest()

    def hash(self) -> bytes:
        """Return the SHA-256 of the canonical JSON, 32 bytes."""
        return self._hash

    @staticmethod
    def from_json(data: bytes, *, max_bytes: int = MAX_JSON_BYTES) -> Schema:
        """Return the schema in bytes that may come from a peer.

        Raises SchemaError unless they are exactly the canonical JSON that their own inputs give.
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
    """The inputs of a schema document. The rest follows from them and is compared as a whole."""

    state: StateInputs
    optimizer: DistroInputs | SparseLoCoInputs


def build_schema(hf_config: Mapping[str, Any], tiers: int, optimizer: Settings) -> Schema:
    """Return the schema of a run from a model's `config.json` (of any tier) and its optimizer.

    Raises WidthNotDivisible, ModelConfigError or SchemaError.
    """
    return Schema(state_schema(hf_config, tiers), optimizer)


__all__ = ["Schema", "SchemaError", "Settings", "build_schema"]
