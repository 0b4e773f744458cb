"""Measure how fast `train-local` trains eight members on a GPU, at once and one after another.

python benchmarks/lab_speed.py [--json] [--small] [--seconds N] [PART ...]
"""

# How it is measured:
# - An arm: eight members with a Llama of 10.8 million parameters make 32 rounds of 30 inner steps
#   of Muon. A member's step has 32 sequences of 256 tokens, so all of them train 63 million
#   tokens. They send all numbers in two bits.
# - The parts: stacked, as `train-local` trains members on a GPU; and single, one after another.
# - `arm_s` has everything after the imports, so compiling counts. An arm that is not done after
#   `--seconds` ends; its missing rounds count as long as the median.
# - BAR is what an arm may take on an H100.
# - `--small` takes a small model and no compiler, to try it on a CPU.

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aftermath.data.bytelevel import VOCAB_SIZE, byte_tokenizer
from aftermath.data.tokenise import hold_out, standard_library, standard_library_root, tokenise
from aftermath.events.event_types import Event
from aftermath.lab import lab_events
from aftermath.lab.resolve_recipe import recipe_of
from aftermath.lab.settings import with_options
from aftermath.lab.setup import start
from aftermath.lab.training_loop import TrainingLoop
from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.replica.exactness import exact_device, keep_compiled
from aftermath.replica.passes import arithmetic_of

BAR = 120.0
"""The most seconds for the arm."""
MEMBERS = 8
MODEL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 256,
}
SMALL = MODEL | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 2}
PARTS = ("stacked", "single")


@dataclass(frozen=True)
class Size:
    """The sizes of a benchmark."""

    model: dict[str, Any]
    rounds: int
    inner_steps: int
    sequences: int
    """A member's sequences per inner step."""
    seq_len: int
    corpus: int
    """Bytes of text."""


WHOLE = Size(MODEL, rounds=32, inner_steps=30, sequences=32, seq_len=256, corpus=16_000_000)
TINY = Size(SMALL, rounds=4, inner_steps=2, sequences=2, seq_len=64, corpus=400_000)


class Watch:
    """Notes when each round ends, and stops the training when its time is over."""

    def __init__(self, until: float) -> None:
        self._until = until
        self.ends: list[float] = []
        self.losses: list[float] = []
        self.training: TrainingLoop | None = None

    def take(self, event: Event) -> None:
        """Follow the training."""
        if not isinstance(event, lab_events.Step):
            return
        self.ends.append(time.perf_counter())
        self.losses.append(event.loss if event.loss is not None else float("nan"))
        # At least two rounds are needed, because the first one has the compiler in it.
        if len(self.ends) > 1 and self.ends[-1] > self._until and self.training is not None:
            self.training.stop()


def prepare(root: Path, size: Size) -> dict[str, Path]:
    """Write the model and the text of an arm."""
    places = {"model": root / "model", "data_path": root / "text", "held_out_path": root / "held"}
    config = config_of(size.model)
    write_checkpoint(places["model"], init_weights(config, 0), config, tier=0, companions={})
    sides = hold_out(standard_library(size.corpus), standard_library_root(), 20)
    for side, name in zip(sides, ("data_path", "held_out_path"), strict=True):
        tokenise(side, places[name], byte_tokenizer(), token_bytes=2)
    return places


def train(
    size: Size, places: dict[str, Path], device: torch.device, *, stacked: bool, seconds: float
) -> dict[str, Any]:
    """Train the arm until it ends, or for about `seconds`. Return its figures."""
    batch = MEMBERS * size.inner_steps * size.sequences
    settings = with_options(
        **places,
        optimizer="sparseloco",
        inner_optimizer="muon",
        inner_steps=size.inner_steps,
        topk=4096,
        topk_embeddings=4096,
        mean="all",
        members=MEMBERS,
        total_batch=batch,
        micro_batch=size.sequences,
        seq_len=size.seq_len,
        steps=size.rounds,
        lr=2e-2,
    )
    recipe = recipe_of(settings)
    began = time.perf_counter()
    watch = Watch(began + seconds)
    arithmetic = arithmetic_of(device, "auto", "auto")
    begun = start(recipe, device, arithmetic, stack_members=stacked)
    watch.training = TrainingLoop(recipe, begun, watch.take, None, size.rounds)
    with suppress(KeyboardInterrupt):
        watch.training.run()
    ended = time.perf_counter()
    done = len(watch.ends)
    took = [after - before for before, after in zip(watch.ends, watch.ends[1:], strict=False)]
    each = statistics.median(took)
    return {
        "tokens": size.rounds * size.seq_len * batch,
        "arm_s": round(ended - began + each * (size.rounds - done), 1),
        "rounds": done,
        "first_s": round(watch.ends[0] - began, 1),
        "round_s": round(each, 3),
        "loss_first": round(watch.losses[0], 3),
        "loss_last": round(watch.losses[-1], 3),
    }


def against_bar(found: dict[str, dict[str, Any]]) -> str:
    """Return a line that says whether the arm is fast enough."""
    own = found["stacked"]
    reached = "reached" if own["arm_s"] <= BAR else "missed"
    over = ""
    if "single" in found:
        over = f"   {found['single']['round_s'] / own['round_s']:.1f} times as fast as one by one"
    tokens = own["tokens"] / 1e6
    return f"{tokens:.0f} M tokens in {own['arm_s']:.1f} s   bar {BAR:.0f}   {reached}{over}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {' '.join(PARTS)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--small", action="store_true", help="a small model, on the CPU where there is no GPU"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.2 * BAR, help="the most per part (default: %(default)g)"
    )
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.parts) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    on_cpu = chosen.small and not torch.cuda.is_available()
    device = exact_device("cpu" if on_cpu else "cuda:0")
    keep_compiled()
    size = TINY if chosen.small else WHOLE
    found = dict[str, dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="aftermath-lab-") as folder:
        places = prepare(Path(folder), size)
        for part in chosen.parts or PARTS:
            found[part] = train(
                size, places, device, stacked=part == "stacked", seconds=chosen.seconds
            )
            print(f"{part}: {json.dumps(found[part])}", file=sys.stderr, flush=True)
    if chosen.json:
        print(json.dumps(found))
    elif "stacked" in found and not chosen.small:
        print(against_bar(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
