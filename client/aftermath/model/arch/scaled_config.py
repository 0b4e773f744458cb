"""Transformers whose positions may be scaled for texts longer than were seen.

Decided: what says nothing of positions is left out of a run's schema, so that those made before there were any stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from aftermath.model.arch.rope_config import ROPE_FIELDS, rope_fields, rope_parameters, rope_table
from aftermath.model.arch.transformer_config import TransformerConfig

POSITIONS = frozenset(ROPE_FIELDS.values()) | {"rope_type"}
"""The fields that say how positions are scaled; a file says it in a table."""


class ScaledConfig(TransformerConfig):
    """The numbers of a table of positions, as fields."""

    LATER: ClassVar[frozenset[str]] = TransformerConfig.LATER | POSITIONS
    rope_type: Literal["default", "linear", "dynamic", "llama3", "yarn"] = "default"
    rope_factor: float = Field(1.0, ge=1, le=1e6)
    rope_original_length: int = Field(0, ge=0, le=1 << 24)
    rope_low_freq_factor: float = Field(0.0, ge=0, le=1e6)
    rope_high_freq_factor: float = Field(0.0, ge=0, le=1e6)
    rope_beta_fast: float = Field(32.0, gt=0, le=1e6)
    rope_beta_slow: float = Field(1.0, gt=0, le=1e6)
    rope_attention_factor: float = Field(0.0, ge=0, le=1e3)
    """Of YaRN; 0: as the paper has it."""
    rope_mscale: float = Field(0.0, ge=0, le=1e3)
    rope_mscale_all_dim: float = Field(0.0, ge=0, le=1e3)
    rope_truncate: bool = True

    @model_validator(mode="after")
    def _positions_fit(self) -> Self:
        if self.rope_type in ("dynamic", "llama3", "yarn") and not self.rope_original_length:
            raise ValueError("rope_parameters: original_max_position_embeddings must be at least 1")
        if self.rope_type == "llama3" and not 0 < self.rope_low_freq_factor < self.rope_high_freq_factor:
            raise ValueError("rope_parameters: low_freq_factor must be above 0 and below high_freq_factor")
        if self.rope_type == "dynamic" and self.head_dim < 4:
            raise ValueError(f"head_dim {self.head_dim} is too small for dynamic positions")
        if self.rope_type == "yarn" and self.rope_theta <= 1:
            raise ValueError("rope_theta must be above 1 for yarn positions")
        return self

    @property
    def cacheable(self) -> int:
        """Dynamic positions are others for every length beyond the one that the model knows."""
        window = super().cacheable
        return min(window, self.rope_original_length) if self.rope_type == "dynamic" else window

    def positions(self) -> dict[str, Any]:
        """The table as a file has it, unless it is the plain one."""
        return {} if self.rope_type == "default" else {"rope_parameters": rope_parameters(self.model_dump())}


def fields_of_positions(hf_config: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """What a file says of positions, as fields of a model whose longest text is `longest` tokens.

    Raises ModelConfigError.
    """
    table = rope_table(hf_config, longest)
    if table["rope_type"] == "dynamic":  # transformers goes by the longest text, whatever the table says
        table = table | {"original_max_position_embeddings": longest}
    return rope_fields(table)
