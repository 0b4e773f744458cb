"""Measure what unequal members gain from each other: large ones from small ones, and the reverse.

heterogeneity.py [--json] [--kind KIND]    print the figures of measured/runs
heterogeneity.py --run SIZE [--kind KIND]  train the named trainings that are not measured yet
"""

# How it is measured:
# - A kind combines an optimizer with a way to cut tiers from the model. Each has its own file of
#   arms.
# - An arm counts at the rate that is best for its largest tier on the mean over seeds.
# - Gains are in nats per held-out byte, of the same tier and seed with and without the others. An
#   interval contains the mean with 95 % by Student's t over the seeds. A gain is clear if its
#   interval does not contain 0.
# - Compute is parameters times sequences: the work of a tier's member for a step.

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from aftermath.model.architectures import config_of
from arms import Arm, Training, arms, interval, kept, missing, model_of, runs_of
from worth import SIZES as PLAIN
from worth import run

CUTS = ("0.2M-width", "0.2M-heads", "0.2M-depth", "0.2M-early", "0.2M-late")
"""One model, by the part of it that its tiers keep."""
SIZES = (*PLAIN, *CUTS)

KINDS = {
    kind: Path(__file__).with_name(name)
    for kind, name in (
        ("static", "unequal.toml"),
        ("static-muon", "unequal-muon.toml"),
        ("kinds", "unequal-kinds.toml"),
    )
}
"""The file of arms of each kind."""

SMALL = "small-only"
ENOUGH = 0.8
"""The arm without a large member, and the target fraction of a large member's gain."""
QUESTIONS = (
    ("tier 0 with tiers 1 and 2, against alone", 0, "mixed", "alone"),
    ("tier 0 with tiers 1 and 2, against alone with AdamW", 0, "mixed", "alone-adamw"),
    ("tier 0 with tiers 1 and 2, against alone with Muon", 0, "mixed", "alone-muon"),
    ("tier 0 with two of its kind, against alone", 0, "three-large", "alone"),
    ("tier 0 with tiers 1 and 2, against with two of its kind", 0, "mixed", "three-large"),
    ("tier 1 with tiers 0 and 2, against without tier 0", 1, "mixed", "small-only"),
    ("tier 2 with tiers 0 and 1, against without tier 0", 2, "mixed", "small-only"),
    ("tier 2 with tiers 0 and 1, against three of its kind", 2, "mixed", "smallest"),
)
"""Each question's tier and two arms. A gain is the second arm's loss minus the first's."""

Losses = Mapping[int, Mapping[int, float]]
"""Held-out loss by tier and seed."""


def losses_of(lines: Sequence[Mapping[str, Any]]) -> Losses:
    """Return the losses of trainings of one arm at one rate, by tier and seed."""
    found: dict[int, dict[int, float]] = {}
    for line in lines:
        for tier, loss in line.get("held_out_by_tier", {"0": line["held_out"]}).items():
            found.setdefault(int(tier), {})[line["seed"]] = loss
    return found


def ended(arm: Arm, size: str, done: Mapping[str, Mapping[str, Any]]) -> dict[float, Losses]:
    """Return an arm's recorded losses by learning rate."""
    by_rate: dict[float, list[Mapping[str, Any]]] = {}
    for one in arm.trainings:
        if one.size == size and one.key in done:
            by_rate.setdefault(one.lr, []).append(done[one.key])
    return {lr: losses_of(lines) for lr, lines in sorted(by_rate.items())}


def best(rates: Mapping[float, Losses]) -> float:
    """Return the rate with the lowest mean loss over seeds for the largest tier."""
    return min(rates, key=lambda lr: fmean(rates[lr][min(rates[lr])].values()))


def gain(
    question: str, tier: int, names: tuple[str, str], losses: Mapping[str, Losses]
) -> dict[str, Any] | None:
    """Return how much lower the first arm's loss is than the second's, in nats per byte, or None
    with fewer than two common seeds.
    """
    first, second = (losses.get(name, {}).get(tier, {}) for name in names)
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        return None
    mean, reach = interval([second[seed] - first[seed] for seed in seeds])
    return {
        "question": question,
        "tier": tier,
        "with": names[0],
        "without": names[1],
        "gain": round(mean, 6),
        "interval": round(reach, 6),
        "seeds": len(seeds),
        "clear": abs(mean) > reach,
    }


def recovered(gains: Sequence[Mapping[str, Any]], size: str) -> float | None:
    """Return the gain per computation of small members relative to large ones, or None if not
    measured.
    """
    by_arm = {one["with"]: one["gain"] for one in gains if one["without"] == "alone"}
    if not {"mixed", "three-large"} <= by_arm.keys() or by_arm["three-large"] <= 0:
        return None
    config = config_of(model_of(size))
    large, *small = (
        sum(map(math.prod, config.parameter_shapes(tier).values())) for tier in (0, 1, 2)
    )
    part: float = round(by_arm["mixed"] / sum(small) / (by_arm["three-large"] / (2 * large)), 3)
    return part


def goals(gains: Sequence[Mapping[str, Any]], recovered: float | None) -> list[dict[str, Any]]:
    """Return the targets for unequal members that have figures, and whether each is met.

    A gain meets its target if it is clear and above 0.
    """
    known = {(one["tier"], one["without"]): one for one in gains if one["with"] == "mixed"}
    asked = [
        ("the large one learns more with small ones than alone", [(0, "alone")]),
        (
            "small ones learn more with a large one than without it, from as many tokens",
            [(1, SMALL), (2, SMALL)],
        ),
    ]
    found = [
        {
            "goal": goal,
            "met": all(known[one]["clear"] and known[one]["gain"] > 0 for one in about),
            "measured": {
                str(tier): [known[tier, arm]["gain"], known[tier, arm]["interval"]]
                for tier, arm in about
            },
        }
        for goal, about in asked
        if set(about) <= known.keys()
    ]
    if recovered is not None:
        goal = (
            f"for the same computing, small ones give at least {ENOUGH:.0%} of what large ones give"
        )
        found.append({"goal": goal, "met": recovered >= ENOUGH, "measured": recovered})
    return found


def of_size(size: str, kind: str) -> dict[str, Any]:
    """Return the arms and gains of a size."""
    done = kept(size, KINDS[kind])
    shown = {}
    losses = {}
    for arm in arms(KINDS[kind]):
        rates = ended(arm, size, done)
        if not rates:
            continue
        lr = best(rates)
        losses[arm.name] = rates[lr]
        shown[arm.name] = {
            "expected": arm.expected[size],
            "lr": lr,
            "by_rate": {
                f"{rate:g}": round(fmean(of[min(of)].values()), 6) for rate, of in rates.items()
            },
            "held_out": {
                str(tier): dict(
                    zip(
                        ("mean", "interval"),
                        (round(x, 6) for x in interval([*seeds.values()])),
                        strict=True,
                    )
                )
                for tier, seeds in sorted(rates[lr].items())
                if len(seeds) > 1
            },
        }
    gains = [
        found
        for what, tier, *names in QUESTIONS
        if (found := gain(what, tier, (names[0], names[1]), losses))
    ]
    part = recovered(gains, size)
    return {
        "missing": len(_missing(size, kind)),
        "arms": shown,
        "gains": gains,
        "recovered_per_compute": part,
        "goals": goals(gains, part),
    }


def _missing(size: str, kind: str) -> list[Training]:
    # all arms of a seed before the next
    return sorted(missing(size, source=KINDS[kind]), key=lambda one: one.seed)


def _of_kind(kind: str) -> dict[str, Any]:
    return {size: of_size(size, kind) for size in SIZES if runs_of(size, KINDS[kind]).exists()}


def table(report: Mapping[str, Any]) -> str:
    """Return the gains of all kinds and sizes, one per line."""
    lines = []
    for kind, sizes in report.items():
        for size, found in sizes.items():
            lines.append(f"{size}, {kind}: {found['missing']} trainings not done yet")
            lines += [
                f"  {one['question']:62} {one['gain']:+.3f} ± {one['interval']:.3f}"
                for one in found["gains"]
            ]
    return "\n".join(lines)


def main() -> None:
    """Read the options, train if asked to, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", choices=SIZES, help="train and record the arms that are not measured yet"
    )
    parser.add_argument("--kind", choices=KINDS, help="only arms of this kind (default: all)")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of lines"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    kinds = [given.kind] if given.kind else [*KINDS]
    if given.run:
        for kind in kinds:
            run(_missing(given.run, kind), KINDS[kind])
    report = {kind: _of_kind(kind) for kind in kinds}
    print(json.dumps(report, indent=1) if given.json else table(report), file=sys.stdout)


if __name__ == "__main__":
    main()
