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
from aftermath.base.canonical_json import canonical, decimal, portable
from aftermath.base.errors import SchemaError, short_repr
from aftermath.model.schema import StateInputs, StateSchema, state_of_inputs, state_schema
from aftermath.optim.parts import parts_of
from aftermath.optim.result_format import ResultFormat
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.optimizers import optimizers

SCHEMA_VERSION = 10  # raise it also if the bytes of a result change, or the bits of an apply
MAX_JSON_BYTES = 16 << 20


@dataclass(frozen=True)
class Schema:
    """A run's model state and optimizer. Equal schemas have equal canonical JSON."""

    state: StateSchema
    optimizer: Optimizer
    results: ResultFormat = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise SchemaError if the state cannot be cut into blocks as the optimizer says."""
        object.__setattr__(self, "results", parts_of(self.optimizer).results(self.state))

    def to_json(self) -> bytes:
        """Return the canonical document whose SHA-256 is on chain."""
        settings = portable(self.optimizer.document())
        optimizer = {**settings, "results": self.results.document()}
        return canonical(
            {"version": SCHEMA_VERSION, "state": self.state.document(), "optimizer": optimizer}
        )

    @cached_property
    def shared(self) -> StateSchema:
        """Return the tensors that replicas share: the model's, and the outer momentum if it is on.

        Level hashes, snapshots and checkpoints contain them.
        """
        return self.state.with_momentum() if self.optimizer.outer_momentum else self.state

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
        schema = Schema(state_of_inputs(document.state), _optimizer(document.optimizer))
        if schema.to_json() != data:
            raise SchemaError("the schema is not the canonical JSON of its model and settings")
        return schema


class _Document(msgspec.Struct, frozen=True):
    """The inputs of a schema document. The rest follows from them and is compared as a whole."""

    state: StateInputs
    optimizer: dict[str, Any]


def _optimizer(document: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer of a schema document. Raises SchemaError for values of other types."""
    name = document.get("kind")
    kind = optimizers().get(name) if isinstance(name, str) else None
    if kind is None or not kind.EXCHANGED:
        raise SchemaError(
            f"not a schema: this client does not know the optimizer {short_repr(name)}"
        )
    values = {}
    for setting in kind.settings():
        if setting.name in kind.LATER and setting.name not in document:
            continue
        value = document.get(setting.name)
        if value is not None and setting.kind is float:
            value = decimal(value, setting.name)
        expected_type = str if setting.choices else setting.kind
        if not (type(value) is expected_type or (value is None and setting.optional)):
            raise SchemaError(
                f"not a schema: {setting.name} has the invalid value {short_repr(value)}"
            )
        values[setting.name] = value
    return kind(**values)


def build_schema(hf_config: Mapping[str, Any], tiers: int, optimizer: Optimizer) -> Schema:
    """Return the schema of a run from a model's `config.json` (of any tier) and its optimizer.

    Raises WidthNotDivisible, ModelConfigError or SchemaError.
    """
    return Schema(state_schema(hf_config, tiers), optimizer)


__all__ = ["Schema", "SchemaError", "build_schema"]
