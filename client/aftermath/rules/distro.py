"""DisTrO: its settings, and the keys and options that set them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from aftermath.rules.optimizer import (
    REQUIRED,
    Chunk,
    Clip,
    Compressed,
    Decay,
    SettingKey,
    TopK,
    TopKEmbeddings,
    WeightDecay,
)


@dataclass(frozen=True)
class Distro(Compressed):
    """DisTrO: after every step, share the top-k DCT coefficients per chunk, with error feedback."""

    TABLE = "Distro"
    SHOWN = "DisTrO"
    SUMMARY = "One step per round, few bytes: for short rounds."
    ENGINE = "aftermath.optim.distro:DistroParts"
    IN_FILE: ClassVar[Mapping[str, Any]] = {
        "clip": None,
        "weight_decay": None,
        "decay": REQUIRED,
        "topk": REQUIRED,
        "chunk": REQUIRED,
        "quantize_1bit": False,
    }
    RECIPE = "consilience-match-llama2-20m-fineweb-pretrain-dev/config.toml"

    clip: Clip = 1.0
    weight_decay: WeightDecay = 0.0
    decay: Decay = 0.999
    topk: TopK = 8
    topk_embeddings: TopKEmbeddings = 8
    chunk: Chunk = 64
    quantize_1bit: Annotated[
        bool,
        SettingKey("quantize_1bit", "Whether to send only the sign of each value, in one bit."),
    ] = True

    @property
    def usual_rate(self) -> float:
        """Return the learning rate of DisTrO's first experiments."""
        return 1.5e-3
