"""Measure whether small members learn more by changing strips: a tier's prefix against new strips.

rolling.py [--json]        print the figures of measured/runs/rolling.jsonl
rolling.py --run EVERY     train with strips drawn every EVERY rounds, and keep the result
"""

# How it is measured:
# - A draw permutes the hidden units of each feed-forward. The whole model still computes the same.
#   A small tier's prefix is then another strip of it, and its members copy their new slices.
# - A draw clears the optimizers' state of feed-forwards. All else is as in the arm `mixed` of
#   unequal-kinds.toml at the size 0.2M-width, including seeds and budget.
# - Source: rolling sub-models, FedRolex (arXiv 2212.01548).

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from aftermath.lab.multi_replica import MultiReplicaTrainer
from aftermath.lab.trainer import Stepped
from aftermath.model.levels import prefix
from arms import RUNS, Training, arms, kept, train

KIND = Path(__file__).with_name("unequal-kinds.toml")
SIZE = "0.2M-width"
ARM = "mixed"
KEPT = RUNS / "rolling.jsonl"
_FEED_FORWARD = ".mlp."


def draw(together: MultiReplicaTrainer, seed: int) -> None:
    """Permute the hidden units of all feed-forward layers, and load the new slices into small
    members.
    """
    together.settle()
    together._travelling = [False] * len(together.replicas)
    whole, *small = together.replicas
    draws = torch.Generator().manual_seed(seed)
    orders = dict[str, Tensor]()
    with torch.no_grad():
        for name, tensor in whole.params.items():
            layer, found, _ = name.partition(_FEED_FORWARD)
            if not found:
                continue
            units = 1 if "down_proj" in name else 0
            order = orders.setdefault(layer, torch.randperm(tensor.shape[units], generator=draws))
            tensor.copy_(tensor.index_select(units, order))
            for replica in small:
                replica.params[name].copy_(tensor[prefix(replica.params[name].shape)])
    for replica in together.replicas:
        state = replica.optimizer.state()
        replica.optimizer.restore(
            {
                name: torch.zeros_like(t) if _FEED_FORWARD in name else t.clone()
                for name, t in state.items()
            }
        )


def rolled(one: Training, every: int) -> dict[str, Any]:
    """Return the result line of a training whose strips are re-drawn every `every` rounds."""
    plain: Callable[[MultiReplicaTrainer, int, Sequence[Tensor], Sequence[bool]], Stepped] = (
        MultiReplicaTrainer.step
    )

    def step(
        self: MultiReplicaTrainer, number: int, shares: Sequence[Tensor], accepted: Sequence[bool]
    ) -> Stepped:
        if number > 1 and (number - 1) % every == 0:
            draw(self, 1_000_003 * one.seed + number)
        return plain(self, number, shares, accepted)

    setattr(MultiReplicaTrainer, "step", step)  # noqa: B010  # only for this training
    try:
        with tempfile.TemporaryDirectory() as root:
            return train(one, Path(root))
    finally:
        setattr(MultiReplicaTrainer, "step", plain)  # noqa: B010


def report() -> dict[str, dict[str, float]]:
    """Return the mean loss by tier, with fixed and with re-drawn strips."""
    done = kept(SIZE, KIND)
    found = {
        "stays": [done[one.key]["held_out_by_tier"] for one in _trainings() if one.key in done]
    }
    for line in map(json.loads, KEPT.read_text().splitlines() if KEPT.exists() else ()):
        found.setdefault(f"every_{line['every']}", []).append(line["held_out_by_tier"])
    return {
        name: {tier: round(fmean(of[tier] for of in seeds), 6) for tier in seeds[0]}
        for name, seeds in found.items()
        if seeds
    }


def _trainings() -> list[Training]:
    (arm,) = (arm for arm in arms(KIND) if arm.name == ARM)
    return [one for one in arm.trainings if one.size == SIZE]


def main() -> None:
    """Read the options, train if asked to, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run",
        type=int,
        metavar="EVERY",
        help="train with a draw every EVERY rounds, and record it",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of lines"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    for one in _trainings() if given.run else ():
        line = {
            "every": given.run,
            "seed": one.seed,
            "held_out_by_tier": rolled(one, given.run)["held_out_by_tier"],
        }
        with KEPT.open("a") as file:
            file.write(json.dumps(line) + "\n")
    made = report()
    if given.json:
        print(json.dumps(made))
        return
    for name, tiers in made.items():
        print(f"{name:10} " + "  ".join(f"tier {tier} {loss:.4f}" for tier, loss in tiers.items()))


if __name__ == "__main__":
    main()
