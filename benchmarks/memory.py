"""How many bytes of tensors a member holds at most while it trains, per tier of the recipes' models.

Usage: python benchmarks/memory.py [--json]

A member of the recipe (its config's sequence length and optimizer, `--micro-batch-size 1`) trains on two sequences and
applies a round, of eight members' results where every number is sent; every tensor that PyTorch makes and drops on the
way is counted. It runs on the CPU: a GPU holds the same tensors, and some hundred MB of its own (its context, the
libraries' workspaces, fragments) that are not counted here. `state` is 16 bytes for each parameter the tier holds, 24
with SparseLoCo; what the peak has beyond it are activations and results. `recomputed` is the peak with
`--activation-checkpointing on`. The light recipe's model is measured whole. Of the other one and two layers are, and
the peak of all of them lies on the straight line through both, since every layer holds the same.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
from pathlib import Path

import torch

from aftermath.cli.schema import shape_of
from aftermath.config.document import parse_config
from aftermath.data.bytelevel import VOCAB_SIZE
from aftermath.model.architectures import config_of
from aftermath.optim.codec import decode_level
from aftermath.replica.live_bytes import LiveBytes
from aftermath.replica.pass_size import Checkpointing, PassSize
from aftermath.replica.replica import Replica

ROOT = Path(__file__).parents[1]
CONFIGS = {"light": "light-config.toml", "test": "config.toml"}
TIERS = 4
WHOLE = ("light",)
"""Measured with all layers: what results of several members hold does not grow evenly with them."""
STATE_BYTES = {"light": 24, "test": 16}
"""For each parameter, in fp32: weight, gradient, delta and the copy during the look-ahead; with Muon's inner steps the
moment and its copy as well.
"""
MEMBERS = {"light": 8, "test": 1}
"""Whose results are applied together: with every number sent, two bytes of a number for each are most of it."""


def shape_of_recipe(model: str) -> dict[str, int]:
    """The sizes that `scripts/setup-run.sh` gives the recipe's model."""
    recipe = (ROOT / "scripts" / "setup-run.sh").read_text()
    found = re.search(rf'/{CONFIGS[model]}\n *shape="([^"]+)"', recipe)
    assert found, "scripts/setup-run.sh has another form"
    return {name: int(number) for name, number in re.findall(r"--([a-z-]+) (\d+)", found[1])}


def peak(model: str, tier: int, layers: int, checkpointing: Checkpointing = "off") -> tuple[int, int]:
    """(parameters, most bytes at once) of a tier of the recipe's model with so many of its layers."""
    sizes = shape_of_recipe(model)
    document = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": sizes["hidden"],
        "intermediate_size": sizes["intermediate"],
        "num_hidden_layers": layers,
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv-heads"],
    }
    text = (ROOT / "config" / "solana-test" / CONFIGS[model]).read_text()
    text = re.sub(r"\btiers = \d+", f"tiers = {TIERS}", text)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(document))
        run = parse_config(text.replace(f'"runs/{model}/model"', json.dumps(place)), CONFIGS[model])
        schema = shape_of(run).schema
    config = config_of(document)
    tokens = torch.randint(VOCAB_SIZE, (2, run.llm.max_seq_len), generator=torch.Generator().manual_seed(0))
    live = LiveBytes()
    with live:
        weights = {name: torch.randn(shape) * 0.02 for name, shape in config.parameter_shapes(tier).items()}
        replica = Replica(
            schema,
            config,
            tier,
            weights,
            device=torch.device("cpu"),
            pass_size=PassSize(1, checkpointing),
            stopwatch=time.monotonic,
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
    """The figures of one tier."""
    layers = shape_of_recipe(model)["layers"]
    if model in WHOLE:
        (parameters, most), (_, least) = peak(model, tier, layers), peak(model, tier, layers, "on")
    else:
        (parameters, most), (more, higher) = peak(model, tier, 1), peak(model, tier, 2)
        (_, least), (_, twice) = peak(model, tier, 2, "on"), peak(model, tier, 3, "on")
        parameters += (layers - 1) * (more - parameters)
        most += (layers - 1) * (higher - most)
        least += (layers - 2) * (twice - least)
    return {"parameters": parameters, "state": STATE_BYTES[model] * parameters, "peak": most, "recomputed": least}


def measure() -> dict[str, dict[str, list[int]]]:
    """For each model and figure the values by tier."""
    found = {}
    for model in CONFIGS:
        tiers = [of_tier(model, tier) for tier in range(TIERS)]
        found[model] = {name: [figures[name] for figures in tiers] for name in tiers[0]}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args().json
    found = measure()
    if as_json:
        print(json.dumps(found))
        return
    for model, figures in found.items():
        for tier in range(TIERS):
            state, most, least = (figures[name][tier] / 1e9 for name in ("state", "peak", "recomputed"))
            print(
                f"{model:6} tier {tier}: state {state:6.2f} GB, at most {most:6.2f} GB; "
                f"with layers computed twice {least:6.2f} GB"
            )


if __name__ == "__main__":
    main()
