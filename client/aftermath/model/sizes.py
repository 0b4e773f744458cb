"""Between which limits the sizes in a model's `config.json` lie, by their names there; of tier 0.

Decided: apart from the classes of a config, since a help page says them (no pydantic).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Limits(NamedTuple):
    """The least and the most."""

    ge: int
    le: int


LIMITS: Mapping[str, Limits] = MappingProxyType(
    {
        "vocab_size": Limits(2, 1 << 22),
        "intermediate_size": Limits(1, 1 << 20),
        "max_position_embeddings": Limits(1, 1 << 24),
        "hidden_size": Limits(2, 1 << 16),
        "num_hidden_layers": Limits(1, 512),
        "num_attention_heads": Limits(1, 1 << 10),
        "num_key_value_heads": Limits(1, 1 << 10),
        "head_dim": Limits(2, 1 << 12),
    }
)
