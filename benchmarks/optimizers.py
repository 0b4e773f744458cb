"""What AdamW, Muon and DisTrO reach with the demo's model on one machine: the laboratory of `train-local`, arm by arm.

Usage: python benchmarks/optimizers.py [--json] [--steps 120] [--seed 0]

The corpus is the Python standard library, a fifth of its files held out. An arm is either one machine alone with the
batch of all members, which is what averaging their gradients would give; or alone with one member's share; or members
of tier 0 with DisTrO. Every arm tries the same number of rates, each twice the one before, and reports all of them.
Losses are nats per byte on sequences of held-out files. One core; the default takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from aftermath.cli.script import whole_number
from aftermath.data.bytelevel import VOCAB_SIZE, byte_tokenizer
from aftermath.data.tokenise import hold_out, standard_library, standard_library_root, tokenise
from aftermath.demo.plan import model_config
from aftermath.lab.course import Course
from aftermath.lab.recipe import recipe_of
from aftermath.lab.settings import LabSettings
from aftermath.lab.start import start
from aftermath.model.config import LlamaConfig
from aftermath.model.initial import init_weights
from aftermath.model.store import write_checkpoint
from aftermath.watch.events import Event

CORPUS_BYTES = 6_000_000
MEMBERS, SHARE = 3, 4
SEQ_LEN, HELD_OUT = 128, 256
ARMS: tuple[dict[str, Any], ...] = (
    {"optimizer": "adamw", "total_batch": MEMBERS * SHARE, "rates": (2e-3, 4e-3)},
    {"optimizer": "adamw", "total_batch": SHARE, "rates": (2e-3, 4e-3)},
    {"optimizer": "muon", "total_batch": MEMBERS * SHARE, "rates": (1e-2, 2e-2)},
    {"optimizer": "muon", "total_batch": SHARE, "rates": (1e-2, 2e-2)},
    {"optimizer": "distro", "total_batch": MEMBERS * SHARE, "members": MEMBERS, "rates": (1.5e-3, 3e-3)},
)
"""What is compared; the batch in sequences of a step."""


def prepare(root: Path, seed: int) -> dict[str, Path]:
    """The demo's model, and the two sides of the corpus."""
    places = {"model": root / "model", "data_path": root / "tokens", "held_out_path": root / "held-out"}
    config = LlamaConfig.from_hf(model_config(VOCAB_SIZE))
    write_checkpoint(places["model"], init_weights(config, seed), config, tier=0, companions={})
    sides = hold_out(standard_library(CORPUS_BYTES), standard_library_root(), 20)
    for side, name in zip(sides, ("data_path", "held_out_path"), strict=True):
        tokenise(side, places[name], byte_tokenizer(), token_bytes=2)
    return places


def train(places: dict[str, Path], steps: int, seed: int, given: dict[str, Any]) -> Event:
    """One training; its last event, with the seconds of all steps."""
    settings = LabSettings(
        **places, **given, steps=steps, seed=seed, seq_len=SEQ_LEN, micro_batch=SHARE, eval_sequences=HELD_OUT
    )
    events: list[Event] = []
    recipe = recipe_of(settings)
    Course(recipe, start(recipe, torch.device("cpu")), events.append, None, steps).run()
    seconds = sum(event["seconds"] for event in events if event["kind"] == "step")
    return events[-1] | {"seconds": round(seconds, 1)}


def measure(places: dict[str, Path], steps: int, seed: int, arm: dict[str, Any]) -> dict[str, Any]:
    """One arm: every rate, and the best of them."""
    given = {name: value for name, value in arm.items() if name != "rates"}
    ended = {rate: train(places, steps, seed, given | {"lr": rate}) for rate in arm["rates"]}
    losses = {rate: event["held_out_by_tier"]["0"] for rate, event in ended.items()}
    best = min(losses, key=lambda rate: losses[rate])
    return {
        "optimizer": arm["optimizer"],
        "members": arm.get("members", 1),
        "batch": arm["total_batch"],
        "tokens": ended[best]["tokens"],
        "rate": best,
        "held_out": round(losses[best], 3),
        "held_out_by_rate": {f"{rate:g}": round(loss, 3) for rate, loss in losses.items()},
        "seconds": ended[best]["seconds"],
    }


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description="What AdamW, Muon and DisTrO reach with the demo's model.")
    parser.add_argument("--steps", type=whole_number(1), default=120, help="default 120")
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, help="of the weights and of the order of the data; default 0"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        places = prepare(Path(folder), given.seed)
        arms = [measure(places, given.steps, given.seed, arm) for arm in ARMS]
    report = {"steps": given.steps, "seed": given.seed, "arms": arms}
    print(json.dumps(report, indent=1) if given.json else "\n".join(map(str, arms)))


if __name__ == "__main__":
    main()
