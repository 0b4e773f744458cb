"""What a simulated run begins with: its model and tokens on disk, and its rules."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from aftermath.config.document import RunConfig
from aftermath.model.config import ModelConfig
from aftermath.model.initial import init_weights
from aftermath.model.store import write_checkpoint
from aftermath.sim.tiny import RULES


def set_up(
    place: Path,
    config: ModelConfig,
    rules: Mapping[str, int],
    *,
    quantize: bool,
    optimizer: Mapping[str, Any] | None,
    stored: bool,
) -> RunConfig:
    """Write model and tokens into `place`, without the weights unless they are `stored`. The tiny run's rules, with
    these ones in their place.
    """
    write_checkpoint(place / "model", init_weights(config, 0), config, tier=0, companions={}, made_by="simulation")
    (place / "data").mkdir()
    tokens = torch.arange(4096).mul(7).remainder(64).to(torch.int16).numpy()
    (place / "data" / "tokens.bin").write_bytes(tokens.tobytes())
    text = RULES.replace("MODEL", str(place / "model")).replace("DATA", str(place / "data"))
    tables = tomllib.loads(text if quantize else text.replace("quantize_1bit = true", "quantize_1bit = false"))
    if optimizer is not None:
        tables["model"]["LLM"]["optimizer"] = dict(optimizer)
    if not stored:
        (place / "model" / "model.safetensors").unlink()
        tables["model"]["LLM"]["checkpoint"] = {"Dummy": {"repo_id": str(place / "model")}}
    for name, value in rules.items():
        (tables["model"]["LLM"] if name == "cold_start_warmup_steps" else tables["config"])[name] = value
    return RunConfig.model_validate(tables)
