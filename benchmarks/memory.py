"""Measure the peak bytes of tensors of a member in training, per tier of three models.

python benchmarks/memory.py [--json] [--only MODEL ...]
"""

# How it is measured:
# - A member of the recipe (its config's sequence length and optimizer, `--micro-batch-size 1`)
#   trains on two sequences and applies a round, with eight members if results are dense. Each
#   tensor that PyTorch creates and frees counts.
# - It runs on the CPU. A GPU has the same tensors, and some hundred MB that are not counted here:
#   its context, the libraries' workspaces, fragments.
# - `state` is 16 bytes for each parameter of the tier, 24 with SparseLoCo. The rest of the peak
#   is activations and results.
# - `recomputed` is the peak with `--activation-checkpointing on`.
# - `preset` is the model of 20 million parameters of `model init`, trained as the recipe `test`,
#   on sequences of 512.
# - Models are measured whole except that of `test`. It is measured with one and with two layers.
#   The whole peak lies on the straight line through both, since each layer takes the same.
# - `laptop` is the peak of its tier 2 with layers computed twice and passes in bf16. All others
#   are fp32.

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aftermath.config.document import RunConfig, parse_as
from aftermath.config.recipe_file import recipe_of
from aftermath.data.bytelevel import VOCAB_SIZE
from aftermath.model.architectures import config_of
from aftermath.model.presets import PRESETS
from aftermath.optim.codec import decode_level
from aftermath.owner.schema import shape_of
from aftermath.replica.memory import LiveBytes
from aftermath.replica.options import Arithmetic
from aftermath.replica.pass_size import Checkpointing, PassSize
from aftermath.replica.replica import Replica

ROOT = Path(__file__).parents[1]
CONFIGS = {"light": "light-config.toml", "test": "config.toml", "preset": "config.toml"}
PRESET = "llama-20m"
PRESET_TOKENS = 512
TIERS = 4
LAPTOP = "laptop"
LAPTOP_MODEL = "test"
LAPTOP_TIER = 2
WHOLE = ("light", "preset")
"""Models measured with all layers, because the memory of several members' results is not linear in
the number of layers.
"""
STATE_BYTES = {"light": 24, "test": 16, "preset": 16}
"""Bytes of state per parameter: fp32 weight, gradient, delta and look-ahead copy, and with Muon the
moment and its copy.
"""
MEMBERS = {"light": 8, "test": 1, "preset": 1}
"""The number of members whose results are applied together. With a dense format, one byte per
parameter and member is a large part of the peak.
"""


def shape_of_recipe(model: str) -> dict[str, int]:
    """Return the model's sizes in the recipe's file."""
    sizes: dict[str, int] = recipe_of(ROOT / "config" / "solana-test" / CONFIGS[model])["model"]
    return sizes


def document_of(model: str) -> dict[str, Any]:
    """Return the model's `config.json`."""
    if model == "preset":
        return dict(PRESETS[PRESET])
    sizes = shape_of_recipe(model)
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["intermediate"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv-heads"],
    }


def peak(
    model: str, tier: int, layers: int, checkpointing: Checkpointing = "off", *, bf16: bool = False
) -> tuple[int, int]:
    """Return a tier's parameters and its peak bytes, with this number of layers."""
    document = document_of(model) | {"num_hidden_layers": layers}
    text = (ROOT / "config" / "solana-test" / CONFIGS[model]).read_text()
    text = re.sub(r"\btiers = \d+", f"tiers = {TIERS}", text)
    if model == "preset":
        text = re.sub(r"\bmax_seq_len = \d+", f"max_seq_len = {PRESET_TOKENS}", text)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(document))
        text = re.sub(r'"runs/\w+/model"', json.dumps(place), text)
        schema = shape_of(parse_as(text, CONFIGS[model], RunConfig)).schema
        length = parse_as(text, CONFIGS[model], RunConfig).llm.max_seq_len
    config = config_of(document)
    tokens = torch.randint(
        config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0)
    )
    live = LiveBytes()
    with live:
        weights = {
            name: torch.randn(shape) * 0.02 for name, shape in config.parameter_shapes(tier).items()
        }
        replica = Replica(
            schema,
            config,
            tier,
            weights,
            device=torch.device("cpu"),
            pass_size=PassSize(1, checkpointing),
            stopwatch=time.monotonic,
            arithmetic=Arithmetic(bf16=bf16),
        )
        del weights
        trained = replica.train(tokens, 1e-3, 1e-3, threading.Event())
        votes = {
            level: [decode_level(data, schema.results, level) for _ in range(MEMBERS[model])]
            for level, data in trained.payloads.items()
        }
        replica.apply(votes, 1e-3)
    return schema.state.parameters(tier), live.peak


def of_tier(model: str, tier: int) -> dict[str, int]:
    """Return the figures of one tier."""
    layers = int(document_of(model)["num_hidden_layers"])
    if model in WHOLE:
        (parameters, most) = peak(model, tier, layers)
        (_, least) = peak(model, tier, layers, "on")
    else:
        (parameters, most) = peak(model, tier, 1)
        (more, higher) = peak(model, tier, 2)
        (_, least) = peak(model, tier, 2, "on")
        (_, twice) = peak(model, tier, 3, "on")
        parameters += (layers - 1) * (more - parameters)
        most += (layers - 1) * (higher - most)
        least += (layers - 2) * (twice - least)
    return {
        "parameters": parameters,
        "state": STATE_BYTES[model] * parameters,
        "peak": most,
        "recomputed": least,
    }


def of_laptop() -> int:
    """Return the peak memory in bytes of the laptop tier, with all options that reduce memory."""
    layers = int(document_of(LAPTOP_MODEL)["num_hidden_layers"])
    (_, two), (_, three) = (
        peak(LAPTOP_MODEL, LAPTOP_TIER, count, "on", bf16=True) for count in (2, 3)
    )
    return two + (layers - 2) * (three - two)


def measure(models: Sequence[str]) -> dict[str, Any]:
    """Return the values by tier, for each model and figure."""
    found: dict[str, Any] = {}
    for model in models:
        if model == LAPTOP:
            found[model] = {"peak": of_laptop()}
            continue
        tiers = [of_tier(model, tier) for tier in range(TIERS)]
        found[model] = {name: [figures[name] for figures in tiers] for name in tiers[0]}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=(*CONFIGS, LAPTOP),
        metavar="MODEL",
        help="only these models (default: all)",
    )
    given = parser.parse_args()
    found = measure(given.only or (*CONFIGS, LAPTOP))
    if given.json:
        print(json.dumps(found))
        return
    for model, figures in found.items():
        if model == LAPTOP:
            print(f"{model:6} at most {figures['peak'] / 1e9:6.2f} GB")
            continue
        for tier in range(TIERS):
            state, most, least = (
                figures[name][tier] / 1e9 for name in ("state", "peak", "recomputed")
            )
            print(
                f"{model:6} tier {tier}: state {state:6.2f} GB, at most {most:6.2f} GB; "
                f"with layers computed twice {least:6.2f} GB"
            )


if __name__ == "__main__":
    main()
