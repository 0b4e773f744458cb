"""What joining is worth: the time one machine alone needs to a held-out loss, over the time N of them need together.

    python benchmarks/worth.py [--json]            the figures, from what is kept in measured/runs
    python benchmarks/worth.py --run SIZE          train what arms.toml names and nobody measured; it can be stopped
    python benchmarks/worth.py --quick             train a few arms of 0.2M anew, beside what is kept: ten minutes

    worth(N) = N * token efficiency * compute share

Decided
- Token efficiency: the steps that one machine alone needs to the loss, over the steps of all members together. Alone is
  the best rate of the curve in arms.toml at each length; between two lengths loss is a straight line over the logarithm
  of steps. What lies beyond the curve's ends is not guessed.
- Compute share: the seconds that one machine alone would need for a member's steps, over the seconds of a member's
  rounds: its own computing with encoding and applying, as measured, and the protocol's time by the model below.
- The protocol's time is a model of home lines and a public chain, the same for every arm. Results are applied at once,
  so nothing of it is hidden behind training.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from arms import RUNS, Training, arms, keep, kept, missing, train

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "runs" / "worth"
SIZES = ("0.2M", "1M", "10M")
QUICK = ("adamw", "sparseloco-8")

SLOT, LATENCY = 0.4, 0.1  # seconds
UP, DOWN = 110e6 / 8, 500e6 / 8  # bytes a second
SLOTS_OF_A_ROUND = 1.5  # a witness waits half a slot to get into one, and the close is seen at its end
LATENCIES_OF_A_ROUND = 4  # an announcement, a request, its answer, and the witness on its way to the chain


def protocol_seconds(members: int, result_bytes: float) -> float:
    """What a round takes beside training: every member sends its result to all others, and gets theirs."""
    carried = (members - 1) * result_bytes
    return SLOTS_OF_A_ROUND * SLOT + LATENCIES_OF_A_ROUND * LATENCY + carried / UP + carried / DOWN


Curve = Sequence[tuple[int, float]]
"""Steps alone and the loss there, by steps."""


def steps_to(curve: Curve, loss: float) -> float | None:
    """The steps after which the curve is at a loss; None beyond its ends."""
    for (few, above), (many, below) in itertools.pairwise(curve):
        if below <= loss <= above:
            part = (above - loss) / (above - below) if above > below else 0.0
            return math.exp(math.log(few) + part * (math.log(many) - math.log(few)))
    return None


def best(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each number of steps the rate whose mean over its seeds is least, with all rates that were tried."""
    by_steps: dict[int, dict[float, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        by_steps[line["steps"]][line["lr"]].append(line)
    found = []
    for steps, rates in sorted(by_steps.items()):
        means = {lr: fmean(line["held_out"] for line in tried) for lr, tried in sorted(rates.items())}
        lr = min(means, key=lambda rate: means[rate])
        losses = [line["held_out"] for line in rates[lr]]
        found.append(
            {
                "steps": steps,
                "lr": lr,
                "held_out": round(means[lr], 4),
                "seeds": len(losses),
                "spread": round(max(losses) - min(losses), 4),
                "by_rate": {f"{rate:g}": round(mean, 4) for rate, mean in means.items()},
                "seconds_per_step": fmean(line["cpu_seconds_per_step"] for line in rates[lr]),
                "result_bytes": round(fmean(line["result_bytes"] for line in rates[lr])),
                "tokens": rates[lr][0]["tokens"],
            }
        )
    return found


def compared(ended: Mapping[str, Any], said: Mapping[str, Any], alone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What members who ended at a loss are worth against one machine whose curve is `alone`."""
    members, inner = said["members"], said.get("inner_steps", 1)
    needed = steps_to([(point["steps"], point["held_out"]) for point in alone], ended["held_out"])
    own = ended["seconds_per_step"] / members
    one = fmean(point["seconds_per_step"] for point in alone)
    share = one / (own + protocol_seconds(members, ended["result_bytes"]) / inner)
    efficiency = None if needed is None else needed / (members * ended["steps"])
    return {
        "steps_alone": None if needed is None else round(needed),
        "token_efficiency": None if efficiency is None else round(efficiency, 3),
        "compute_share": round(share, 4),
        "worth": None if efficiency is None else round(members * efficiency * share, 3),
        "worth_without_protocol": None if efficiency is None else round(members * efficiency * one / own, 3),
    }


def of_size(size: str) -> dict[str, Any]:
    """Every arm that was measured at a size."""
    done = kept(size)
    measured: dict[str, Any] = {}
    for arm in arms():
        lines = [done[one.key] for one in arm.trainings if one.size == size and one.key in done]
        if lines:
            measured[arm.name] = {"question": arm.question, "expected": arm.expected, "said": lines[0]["said"]}
            measured[arm.name]["ends"] = best(lines)
    alone = {name: measured[name]["ends"] for name in ("adamw", "muon") if name in measured}
    for arm in measured.values():
        if "members" in arm["said"]:
            for end in arm["ends"]:
                end |= {f"against_{name}": compared(end, arm["said"], curve) for name, curve in alone.items()}
    return {"arms": measured, "missing": sum(1 for _ in missing(size))}


def run(size: str, names: set[str] | None) -> None:
    """Train what is missing, and keep it line by line."""
    todo: list[Training] = list(missing(size, names))
    for number, training in enumerate(todo, 1):
        told = f"{training.arm}, {training.steps} steps, rate {training.lr:g}, seed {training.seed}"
        print(f"{number} of {len(todo)}: {told}", file=sys.stderr, flush=True)
        line = train(training, WORK, None)
        keep(size, line)
        print(
            f"  {line['held_out']}, {line['cpu_seconds_per_step'] * line['steps']:.0f} s", file=sys.stderr, flush=True
        )


def main() -> None:
    """Read the options, measure if asked to, print."""
    parser = argparse.ArgumentParser(description="What joining is worth.")
    parser.add_argument("--run", choices=SIZES, help="train what is named and not measured yet")
    parser.add_argument("--only", nargs="+", metavar="ARM", help="with --run: only these arms")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.run:
        run(given.run, set(given.only) if given.only else None)
    report = {size: of_size(size) for size in SIZES if (RUNS / f"{size}.jsonl").exists()}
    if given.json:
        print(json.dumps(report, indent=1))
        return
    for size, found in report.items():
        print(f"{size} ({found['missing']} trainings missing)")
        for name, arm in found["arms"].items():
            for end in arm["ends"]:
                worth = end.get("against_adamw", {})
                print(f"  {name:24} {end['steps']:6} {end['held_out']:.4f} {end['by_rate']} {worth}")


if __name__ == "__main__":
    main()
