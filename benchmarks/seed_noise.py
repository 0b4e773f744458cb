"""Compute how far trainings that differ only in their seed end from each other.

A difference between arms must exceed this noise before it means anything.
"""

# How it is measured:
# - All trainings with several seeds are pooled, of each size and file, in three kinds: one
#   machine with AdamW or Muon, members with Muon at the apply, and members that apply the mean.
#   DisTrO counts as the last; it has no trainings with several seeds.
# - A training that is in several files under one name counts once.
# - Beyond nine degrees of freedom, Student's t is the normal distribution with the first term of
#   its expansion.

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from statistics import NormalDist, stdev
from typing import Any

from arms import RUNS, STUDENT

Noise = Mapping[str, float]
"""`deviation`: standard deviation of one training's loss in nats per byte. `freedom`: its degrees
of freedom. `reach`: half-width of the 95 % interval of one training. `apart`: that of the
difference of two trainings.
"""


def kind_of(said: Mapping[str, Any]) -> str:
    """Return the kind of a training by its settings: `machine`, `polar` or `mean`."""
    if said["optimizer"] in ("adamw", "muon"):
        return "machine"
    return "polar" if said.get("orthogonal_lr") else "mean"


def student(freedom: int) -> float:
    """Return the 97.5 % point of Student's t."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    normal = NormalDist().inv_cdf(0.975)
    return normal + (normal**3 + normal) / (4 * freedom)


def pooled(trainings: Mapping[str, list[tuple[float, ...]]]) -> dict[str, Noise]:
    """Return the noise by kind, from the losses of all trainings with several seeds."""
    found: dict[str, Noise] = {}
    for kind, losses in sorted(trainings.items()):
        freedom = sum(len(one) - 1 for one in losses)
        deviation = math.sqrt(sum(stdev(one) ** 2 * (len(one) - 1) for one in losses) / freedom)
        reach = student(freedom) * deviation
        found[kind] = {
            "deviation": round(deviation, 4),
            "freedom": freedom,
            "reach": round(reach, 4),
            "apart": round(math.sqrt(2) * reach, 4),
        }
    return found


def noise() -> dict[str, Noise]:
    """Return the noise by kind, from the recorded trainings."""
    by_seed: dict[tuple[str, str, str], dict[int, float]] = defaultdict(dict)
    for path in sorted(RUNS.glob("*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            if "said" in line:
                told = json.dumps(
                    [line["arm"], line["steps"], line["lr"], line["said"]], sort_keys=True
                )
                by_seed[path.stem, kind_of(line["said"]), told][line["seed"]] = line["held_out"]
    losses: dict[str, set[tuple[float, ...]]] = defaultdict(set)
    for (_, kind, _), held_out in by_seed.items():
        if len(held_out) > 1:
            losses[kind].add(tuple(held_out[seed] for seed in sorted(held_out)))
    return pooled({kind: sorted(found) for kind, found in losses.items()})
