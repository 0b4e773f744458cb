"""`model inspect`: what a checkpoint is, tier by tier."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.present import Result, facts

CHECKPOINT = "Checkpoint directory."


@command("model inspect", example="aftermath-solana model inspect --model checkpoints/tiny")
def model_inspect(model: Annotated[Path, typer.Option(help=CHECKPOINT)]) -> Result:
    """Say what a checkpoint is, tier by tier.

    Architecture, shape, and for every tier its parameters and the bytes of its state. Only its config.json and the
    names of its files are read; `model verify` reads all of it.
    """
    import math

    from aftermath.model.checkpoint import load_config
    from aftermath.model.config import stored_tier
    from aftermath.model.documents import hf_config
    from aftermath.model.manifest import MANIFEST_FILE
    from aftermath.model.schema import ELEMENT_BYTES
    from aftermath.model.weights import weight_files

    place = model.expanduser()
    config, stored = load_config(place), stored_tier(hf_config(place / "config.json"))[0]
    width = config.intermediate_size
    tiers = {
        tier: sum(map(math.prod, config.parameter_shapes(tier).values())) for tier in range(config.possible_tiers())
    }
    files = weight_files(place)
    data = {
        "architecture": config.MODEL_TYPE,
        "vocab": config.vocab_size,
        "intermediate_size": width,
        "max_position_embeddings": config.max_position_embeddings,
        "tied": config.tie_word_embeddings,
        "stored_tier": stored,
        "tiers": tiers,
        "state_bytes": {tier: count * ELEMENT_BYTES for tier, count in tiers.items()},
        "weight_files": len(files),
        "weight_bytes": sum(path.stat().st_size for path in files),
        "tokenizer": (place / "tokenizer.json").is_file(),
        "manifest": (place / MANIFEST_FILE).is_file(),
    }
    shown = {
        "architecture": config.MODEL_TYPE,
        "stores": "the full model" if stored == 0 else f"the slice of tier {stored}",
        "vocabulary": f"{config.vocab_size:,}" + (", input and output tied" if config.tie_word_embeddings else ""),
        "longest text": f"{config.max_position_embeddings:,} tokens",
        "weights": f"{data['weight_bytes']:,} bytes in {len(files)} file" + ("s" if len(files) != 1 else ""),
        "tokenizer": data["tokenizer"],
        "manifest of tiers": data["manifest"],
    }
    shown |= {
        f"tier {tier}": f"{count:,} parameters, {count * ELEMENT_BYTES / 1e6:,.1f} MB, {config.kept(tier)}"
        for tier, count in tiers.items()
    }
    return Result(data, facts(shown))
