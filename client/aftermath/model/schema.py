"""The state schema: a run's tensors, levels and blocks, every setting of the aggregation, and the size of results.

Decided
- A result of level l is, over the level's segments in canonical order and their blocks in row-major order: every index
  as a little-endian u16 (ascending in a block, 0xFFFF in unused slots), then every value. Its size follows from here.
- The schema is canonical JSON (sorted keys, no spaces, decimals as their shortest repr), and its SHA-256 is on chain.
  A schema that arrives as bytes is never trusted field by field: it is rebuilt from its inputs and must be equal.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import msgspec

from aftermath.model.config import MAX_TIERS, LlamaConfig, check_divisible
from aftermath.model.levels import SchemaError, Segment, cut
from aftermath.run.bounded import Malformed, json_as

SCHEMA_VERSION = 1
MAX_JSON_BYTES = 16 << 20
INDEX_BYTES = 2
ELEMENT_BYTES = 4  # of the model's state, fp32

# Keys of the model's config that change no tensor and no gradient, and therefore are not part of the schema.
_NOT_IN_SCHEMA = {"initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings"}


@dataclass(frozen=True)
class Schema:
    """A run's model state and every setting of the aggregation. Equal schemas have equal canonical JSON."""

    config: LlamaConfig
    tiers: int
    topk: int
    topk_embeddings: int
    chunk: int
    quantize_1bit: bool
    decay: float
    weight_decay: float
    clip: float | None
    segments: tuple[Segment, ...]  # canonical order: level descending, then name

    @property
    def levels(self) -> int:
        """Levels are 0 .. levels-1; there are as many as tiers."""
        return self.tiers

    @property
    def widths(self) -> tuple[int, ...]:
        """FFN hidden units of tier 0, 1, ..."""
        return tuple(self.config.width(tier) for tier in range(self.tiers))

    def of_level(self, level: int) -> tuple[Segment, ...]:
        """The segments of one level in canonical order."""
        return self._by_level[self._checked(level)]

    def held_by(self, tier: int) -> tuple[Segment, ...]:
        """The segments of a tier-k replica (levels >= k) in canonical order."""
        self._checked(tier)
        return tuple(segment for segment in self.segments if segment.level >= tier)

    def parameters(self, tier: int = 0) -> int:
        """Number of parameters of a tier-k replica."""
        return sum(segment.numel for segment in self.held_by(tier))

    def entries(self, level: int) -> int:
        """Coefficient slots in one level of a result."""
        return sum(segment.entries for segment in self.of_level(level))

    def index_bytes(self, level: int) -> int:
        """Bytes of a level's indices: one little-endian u16 per slot."""
        return self.entries(level) * INDEX_BYTES

    def value_bytes(self, level: int) -> int:
        """Bytes of a level's values: one sign bit per slot, rounded up once, or one fp32 per slot without 1-bit."""
        slots = self.entries(level)
        return -(-slots // 8) if self.quantize_1bit else slots * 4

    def payload_bytes(self, level: int) -> int:
        """Exact bytes of one level of a result: all indices of the level, then all its values."""
        return self.index_bytes(level) + self.value_bytes(level)

    def result_bytes(self, tier: int = 0) -> int:
        """Exact bytes of the result that a tier-k member makes in a round: its levels together."""
        return sum(self.payload_bytes(level) for level in range(self._checked(tier), self.levels))

    def to_json(self) -> bytes:
        """The canonical document whose SHA-256 is on chain."""
        document = {
            "version": SCHEMA_VERSION,
            "model": _portable(self.config.model_dump(exclude=_NOT_IN_SCHEMA) | {"model_type": "llama"}),
            "dtype": "float32",
            "widths": list(self.widths),
            "optimizer": {
                "chunk": self.chunk,
                "clip": None if self.clip is None else repr(self.clip),
                "decay": repr(self.decay),
                "kind": "distro",
                "quantize_1bit": self.quantize_1bit,
                "topk": self.topk,
                "topk_embeddings": self.topk_embeddings,
                "weight_decay": repr(self.weight_decay),
            },
            "segments": [asdict(segment) for segment in self.segments],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    @cached_property
    def _by_level(self) -> tuple[tuple[Segment, ...], ...]:
        return tuple(tuple(s for s in self.segments if s.level == level) for level in range(self.levels))

    @cached_property
    def _hash(self) -> bytes:
        return hashlib.sha256(self.to_json()).digest()

    def hash(self) -> bytes:
        """SHA-256 of the canonical JSON, 32 bytes."""
        return self._hash

    def _checked(self, level: int) -> int:
        if not 0 <= level < self.levels:
            raise SchemaError(f"level {level} is out of range", f"this run has levels 0 to {self.levels - 1}")
        return level

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
        given = document.optimizer
        model = document.model | {key: _decimal(document.model.get(key), key) for key in ("rms_norm_eps", "rope_theta")}
        schema = build_schema(
            model,
            tiers=len(document.widths),
            topk=given.topk,
            topk_embeddings=given.topk_embeddings,
            chunk=given.chunk,
            quantize_1bit=given.quantize_1bit,
            decay=_decimal(given.decay, "decay"),
            weight_decay=_decimal(given.weight_decay, "weight_decay"),
            clip=None if given.clip is None else _decimal(given.clip, "clip"),
        )
        if schema.to_json() != data:
            raise SchemaError("the schema is not the canonical one of its own model and settings")
        return schema


class _Optimizer(msgspec.Struct, frozen=True):
    topk: int
    topk_embeddings: int
    chunk: int
    quantize_1bit: bool
    decay: str
    weight_decay: str
    clip: str | None


class _Document(msgspec.Struct, frozen=True):
    """The inputs of a schema document; the rest of it follows from them and is compared whole."""

    model: dict[str, bool | int | str | None]
    widths: list[int]
    optimizer: _Optimizer


_SET = "set it in [model.LLM.optimizer.Distro] of the run's config file"


def build_schema(
    hf_config: Mapping[str, Any],
    *,
    tiers: int,
    topk: int,
    topk_embeddings: int | None = None,
    chunk: int,
    quantize_1bit: bool,
    decay: float,
    weight_decay: float,
    clip: float | None,
) -> Schema:
    """The schema of a run from a model's `config.json` (of any tier: the full model is what counts) and its settings.

    `topk_embeddings` None means `topk`; `clip` None or 0 means no clipping. Raises WidthNotDivisible, ModelConfigError
    or SchemaError.
    """
    if not 1 <= tiers <= MAX_TIERS:
        raise SchemaError(f"a run has 1 to {MAX_TIERS} tiers, not {tiers}")
    embeddings = topk if topk_embeddings is None else topk_embeddings
    counts = {"topk": topk, "topk_embeddings": embeddings, "chunk": chunk}
    for label, number in counts.items():
        if not 1 <= number <= 65535:
            raise SchemaError(f"compression_{label} must be from 1 to 65535, not {number}", _SET)
    config = LlamaConfig.from_hf(hf_config)
    check_divisible(config.intermediate_size, tiers - 1)
    settings = {"compression_decay": decay, "weight_decay": weight_decay, "clip_grad_norm": clip or 0.0}
    for label, value in settings.items():
        if not (math.isfinite(value) and value >= 0):
            raise SchemaError(f"{label} must be a finite number, at least 0, not {value!r}", _SET)
    if decay > 1:
        raise SchemaError(f"compression_decay must be at most 1, not {decay!r}", _SET)
    return Schema(
        config=config,
        tiers=tiers,
        topk=topk,
        topk_embeddings=embeddings,
        chunk=chunk,
        quantize_1bit=bool(quantize_1bit),
        decay=float(decay),
        weight_decay=float(weight_decay),
        clip=float(clip) if clip else None,
        segments=cut(config, tiers, topk=topk, topk_embeddings=embeddings, chunk=chunk),
    )


def _portable(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same mapping with every float as its shortest repr, so that all JSON writers agree on the bytes."""
    return {key: repr(value) if isinstance(value, float) else value for key, value in values.items()}


def _decimal(text: object, label: str) -> float:
    try:
        return float(text) if isinstance(text, str) and len(text) <= 32 else math.nan
    except ValueError:
        raise SchemaError(f"the schema's {label} is not a decimal: {text!r}") from None


__all__ = ["Schema", "SchemaError", "Segment", "build_schema"]
