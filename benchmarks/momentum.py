"""Compare the plain mean of SparseLoCo with outer momentum, in steps of realistic length.

python benchmarks/momentum.py [--json]
python benchmarks/momentum.py --members 8 --inner-steps 30 --rounds 32
"""

# How it is measured:
# - The laboratory of `train-local` trains each arm, so the members' own code does. Arms differ in
#   the apply only: same initial weights, data and order.
# - A member's step has 4,096 tokens. Results have all numbers in two bits. Muon makes the inner
#   steps.
# - The held-out loss is in nats per byte, after each quarter of the rounds. One seed.

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aftermath.events.event_types import Event
from aftermath.lab import lab_events
from aftermath.lab.resolve_recipe import recipe_of
from aftermath.lab.settings import with_options
from aftermath.lab.setup import start
from aftermath.lab.training_loop import TrainingLoop
from aftermath.replica.exactness import exact_device
from aftermath.replica.passes import arithmetic_of
from arms import prepare

SIZE = "0.2M"
SEQ_LEN = 256
SEQUENCES = 16  # a member's sequences in an inner step
RATE = 0.02
HELD_OUT = 512
QUARTERS = 4
ARMS: Mapping[str, Mapping[str, float]] = {
    "mean": {"outer_lr": 1.0, "outer_momentum": 0.0},
    "momentum": {"outer_lr": 0.7, "outer_momentum": 0.6},
}


def measure(
    root: Path, apply: Mapping[str, float], *, members: int, inner_steps: int, rounds: int
) -> dict[str, Any]:
    """Train one arm. Return its parameters and held-out losses by round."""
    settings = with_options(
        **prepare(root, SIZE, seed=0),
        **apply,
        optimizer="sparseloco",
        inner_optimizer="muon",
        inner_steps=inner_steps,
        members=members,
        mean="all",
        overlap="0",
        topk=4096,
        lr=RATE,
        steps=rounds,
        total_batch=members * inner_steps * SEQUENCES,
        micro_batch=SEQUENCES,
        seq_len=SEQ_LEN,
        eval_every=max(1, rounds // QUARTERS),
        eval_sequences=HELD_OUT,
    )
    recipe = recipe_of(settings)
    device = exact_device("cpu")
    found: dict[str, Any] = {"held_out": {}}

    def take(event: Event) -> None:
        if isinstance(event, lab_events.Started):
            found["parameters"] = event.parameters
        if isinstance(event, lab_events.Step):
            found["tokens"] = found.get("tokens", 0) + event.tokens
        if isinstance(event, lab_events.HeldOut) and event.loss is not None:
            found["held_out"][str(event.step)] = round(event.loss, 4)
            print(f"{dict(apply)}: {found['held_out']}", file=sys.stderr, flush=True)

    begun = start(recipe, device, arithmetic_of(device, "auto", "off"))
    TrainingLoop(recipe, begun, take, None, rounds).run()
    return found


def report(*, members: int, inner_steps: int, rounds: int) -> dict[str, Any]:
    """Train all arms. Return their losses, and the momentum's gain at the end."""
    with tempfile.TemporaryDirectory(prefix="aftermath-momentum-") as folder:
        arms = {
            name: measure(
                Path(folder), apply, members=members, inner_steps=inner_steps, rounds=rounds
            )
            for name, apply in ARMS.items()
        }
    last = str(rounds)
    gain = arms["mean"]["held_out"][last] - arms["momentum"]["held_out"][last]
    return {
        "members": members,
        "inner_steps": inner_steps,
        "rounds": rounds,
        "tokens_of_step": SEQ_LEN * SEQUENCES,
        "arms": {name: {**ARMS[name], **found} for name, found in arms.items()},
        "gain": round(gain, 4),
    }


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--inner-steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    found = report(**options)
    print(json.dumps(found, indent=None if as_json else 1))


if __name__ == "__main__":
    main()
