"""Measure what joining is worth: the time to a held-out loss alone, over that of N members.

worth.py [--json]             print the figures of measured/runs
worth.py --run SIZE           train the arms of arms.toml that are not measured yet
worth.py --run SIZE --again   train all of them once more, without keeping the results
worth.py --quick              train a few arms of 0.2M once more: ten minutes
"""

# How it is measured:
# - worth(N) = N * token efficiency * compute share.
# - Token efficiency: the steps that one machine alone needs to the loss, over the steps of all
#   members together. For one machine, each length uses its best learning rate in arms.toml.
#   Between two lengths, loss is a straight line over the logarithm of steps. Beyond the curve's
#   ends nothing is extrapolated.
# - Steps alone have a range, because seeds change losses: it covers the differences between seeds
#   in 95 % of cases (seed_noise.py).
# - Compute share: the seconds that one machine alone would need for a member's steps, over the
#   seconds of a member's rounds. Those are its own measured computing, encoding and applying, and
#   the protocol's time by the model of protocol_time.py. It and worth are given per processor that
#   trained both the members' arm and the machine alone.

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from arms import (
    ARMS,
    RUNS,
    Training,
    arms,
    interval,
    keep,
    kept,
    missing,
    result_bytes,
    train,
    winner,
)
from learning_tables import REALISTIC
from protocol_time import seconds_of, shares, spread, step_seconds_for
from realistic import realistic
from seed_noise import Noise, kind_of, noise

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "runs" / "worth"
SIZES = ("0.2M", "0.2M-16", "0.2M-4k", "1M", "1M-16", "10M", "10M-8k", "124M")
MEMBERS = (4, 8, 16)
WORTHS = (2, 4, 6)
ALONE = ("adamw", "muon", "outer-alone")
QUICK = ("adamw", "sparseloco-8", "outer-4-muon")
BARRED = 8
MORE_LOSS = 0.01
"""Number of members with limits, and the allowed loss above AdamW's, as a fraction."""

Curve = Sequence[tuple[float, float]]
"""Points (steps or bytes, loss), ascending."""
Shares = tuple[float, float]
"""Seconds of one machine divided by a member's, with and without the protocol."""


def steps_to(curve: Curve, loss: float) -> float | None:
    """Return the steps after which the falling curve reaches a loss; None beyond its ends."""
    for (few, above), (many, below) in itertools.pairwise(curve):
        if below <= loss <= above:
            part = (above - loss) / (above - below) if above > below else 0.0
            return math.exp(math.log(few) + part * (math.log(many) - math.log(few)))
    return None


def best(trainings: Sequence[tuple[Training, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return, for each number of steps, the rate with the lowest mean loss, and all tried rates."""
    tried: dict[int, dict[float, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for training, line in trainings:
        tried[training.steps][training.lr].append(line)
    return [_end(steps, rates) for steps, rates in sorted(tried.items())]


def _end(steps: int, rates: Mapping[float, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    means = {lr: fmean(line["held_out"] for line in lines) for lr, lines in sorted(rates.items())}
    lr = min(means, key=lambda rate: means[rate])
    losses = {str(line["seed"]): line["held_out"] for line in rates[lr]}
    reach = interval(list(losses.values()))[1]
    return {
        "steps": steps,
        "tokens": rates[lr][0]["tokens"],
        "held_out": round(means[lr], 6),
        "lr": lr,
        "by_rate": {f"{rate:g}": round(mean, 6) for rate, mean in means.items()},
        "by_seed": losses,
        "interval": round(reach, 6) if math.isfinite(reach) else None,
    }


def compared(
    end: Mapping[str, Any],
    training: Training,
    alone: Sequence[Mapping[str, Any]],
    shares_by_processor: Mapping[str, Shares],
    reach: float,
) -> dict[str, Any]:
    """Return how many machines the members replace, given the curve of one machine `alone`.

    `reach` is the loss's uncertainty from seeds. The range of token efficiency is that of the
    trained seeds, of which there must be several.
    """
    curve = [(point["steps"], point["held_out"]) for point in alone]
    needed, *ends = (steps_to(curve, end["held_out"] + off) for off in (0.0, reach, -reach))
    tokens = None if needed is None else needed / end["steps"]
    by_seed = [steps_to(curve, loss) for loss in end["by_seed"].values()]
    known = [steps / end["steps"] / training.members for steps in by_seed if steps is not None]
    return {
        "steps_alone": None if needed is None else round(needed),
        "steps_alone_range": [None if steps is None else round(steps) for steps in ends],
        "token_efficiency": None if tokens is None else round(tokens / training.members, 5),
        "token_efficiency_range": [round(min(known), 5), round(max(known), 5)]
        if len(known) == len(by_seed) > 1
        else None,
        "by_processor": {
            machine: {
                "compute_share": round(share, 4),
                "worth": None if tokens is None else round(tokens * share, 3),
                "worth_without_protocol": None if tokens is None else round(tokens * without, 3),
            }
            for machine, (share, without) in shares_by_processor.items()
        },
    }


def of_size(size: str) -> dict[str, Any]:
    """Every arm that was measured at a size, and the figures of the winner."""
    done = kept(size)
    apart = noise()
    measured: dict[str, Any] = {}
    lines: dict[str, list[dict[str, Any]]] = {}
    for arm in arms():
        ended = [
            (one, done[one.key]) for one in arm.trainings if one.size == size and one.key in done
        ]
        if not ended:
            continue
        first = ended[0][0]
        ends = best(ended)
        sent, parameters = result_bytes(first)
        lines[arm.name] = [line for _, line in ended]
        own = seconds_of(lines[arm.name])
        for name, end in itertools.product(ALONE if first.members > 1 else (), ends):
            if name in measured:
                by_processor = shares(first, sent, own, seconds_of(lines[name]))
                off = _reach(
                    apart[kind_of(first.said)], len(end["by_seed"]), apart[_kind_alone(name)]
                )
                end[f"against_{name}"] = compared(
                    end, first, measured[name]["ends"], by_processor, off
                )
        measured[arm.name] = {
            "question": arm.question,
            "expected": arm.expected[size],
            "members": first.members,
            "bytes_per_parameter_step": round(sent / parameters / first.inner_steps, 6),
            "cpu_seconds_per_step": own,
            "ends": ends,
            **({"tiers": first.said["tiers"]} if "tiers" in first.said else {}),
        }
        if first.members > 1 and not first.overlap and "against_adamw" in ends[-1]:
            measured[arm.name]["step_seconds_for"] = _step_seconds(
                ends[-1]["against_adamw"], first, sent
            )
    return {
        **headline(measured),
        "bytes_at_loss": bytes_at(measured),
        "noise": apart,
        "seconds_spread": round(spread(lines.values()), 2),
        "missing": sum(1 for _ in missing(size)),
        "arms": measured,
    }


def _kind_alone(name: str) -> str:
    return "machine" if name in ("adamw", "muon") else "polar"


def _reach(members: Noise, seeds: int, alone: Noise) -> float:
    """Return how far seeds may move the members' mean from a curve of one seed."""
    return math.hypot(members["reach"] / math.sqrt(seeds), alone["reach"])


def _step_seconds(
    against: Mapping[str, Any], training: Training, sent: int
) -> dict[str, dict[str, list[float | None]]]:
    """Return the step seconds by processor and worth."""
    if against["token_efficiency"] is None:
        return {}
    tokens = training.members * against["token_efficiency"]
    return {
        machine: {
            str(worth): step_seconds_for(
                worth, tokens, found["worth_without_protocol"] / tokens, training, sent
            )
            for worth in WORTHS
        }
        for machine, found in against["by_processor"].items()
    }


def bytes_at(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return what eight members lose by sending less, by number of steps.

    The reference is the loss of one machine that trains all their sequences with AdamW for as many
    steps. Without it there are no figures.

    An arm is on the curve if none with as few bytes has less loss. `bytes_for_bar` lies on it at
    the bar, with the loss as a straight line over the logarithm of bytes between two arms; None if
    the curve does not cross the bar.
    """
    found: dict[str, Any] = {}
    for bound in measured.get("adamw-8x", {"ends": []})["ends"]:
        points = [
            {"arm": name, "bytes": arm["bytes_per_parameter_step"], "held_out": end["held_out"]}
            for name, arm in measured.items()
            if arm["members"] == BARRED and "tiers" not in arm  # else the loss is of tier 0
            for end in arm["ends"]
            if end["steps"] == bound["steps"]
        ]
        points.sort(key=lambda point: (point["bytes"], point["held_out"]))
        least = math.inf
        bar = bound["held_out"] * (1 + MORE_LOSS)
        for point in points:
            point["over"] = round(point["held_out"] / bound["held_out"] - 1, 4)
            point["on_curve"] = point["held_out"] < least
            least = min(least, point["held_out"])
        curve = [point for point in points if point["on_curve"]]
        if points:
            crossed = steps_to([(point["bytes"], point["held_out"]) for point in curve], bar)
            found[str(bound["steps"])] = {
                "bar": round(bar, 4),
                "bytes_for_bar": None if crossed is None else round(crossed, 5),
                "points": points,
            }
    return found


def headline(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of the best arm with eight members in its longest run, and its worth with
    other counts (None: not measured).

    Losses are relative to one machine's at the same steps.
    """
    found: dict[str, Any] = {}
    ends = {
        n: measured[name]["ends"][-1] if (name := winner(n)) in measured and name else None
        for n in MEMBERS
    }
    for name in ALONE:
        found[f"worth_{name}"] = {str(n): _worth_by_processor(end, name) for n, end in ends.items()}
        found[f"worth_{name}_at_most"] = {
            str(n): _by_tokens_alone(end, n, name) for n, end in ends.items()
        }
        bound = measured.get(f"{name}-8x", {"ends": []})["ends"]
        at = [point for point in bound if ends[8] and point["steps"] == ends[8]["steps"]]
        found |= over(ends[8], at[0] if at else None, f"loss_over_{name}")
    eight = measured.get(winner(8) or "", {})
    return found | {
        "bytes_per_parameter_step": eight.get("bytes_per_parameter_step"),
        "step_seconds_for": eight.get("step_seconds_for"),
    }


def _worth_by_processor(end: Mapping[str, Any] | None, name: str) -> dict[str, float]:
    told = (end or {}).get(f"against_{name}", {}).get("by_processor", {})
    return {machine: one["worth"] for machine, one in told.items() if one["worth"] is not None}


def _by_tokens_alone(end: Mapping[str, Any] | None, members: int, name: str) -> float | None:
    efficiency = (end or {}).get(f"against_{name}", {}).get("token_efficiency")
    return None if efficiency is None else round(members * efficiency, 3)


def over(
    end: Mapping[str, Any] | None, bound: Mapping[str, Any] | None, name: str
) -> dict[str, float | None]:
    """Return the relative excess of `end`'s loss over `bound`'s and its 95 % half-width, over pairs
    of the same seed.

    Without pairs, means are compared. With one pair or none, there is no interval.
    """
    if end is None or bound is None:
        return {name: None, f"{name}_interval": None}
    pairs = [
        own / bound["by_seed"][seed] - 1
        for seed, own in end["by_seed"].items()
        if seed in bound["by_seed"]
    ]
    more, reach = interval(pairs or [end["held_out"] / bound["held_out"] - 1])
    return {
        name: round(more, 6),
        f"{name}_interval": round(reach, 6) if math.isfinite(reach) else None,
    }


def run(
    trainings: Sequence[Training], source: Path = ARMS, *, again: bool = False
) -> list[tuple[Training, dict[str, Any]]]:
    """Train them, of the arms that `source` names. Keep each result, unless `again` is set."""
    ended = []
    for number, training in enumerate(trainings, 1):
        told = f"{training.arm}, {training.steps} steps, rate {training.lr:g}, seed {training.seed}"
        print(f"{number} of {len(trainings)}: {told}", file=sys.stderr, flush=True)
        line = train(training, WORK)
        if not again:
            keep(training.size, line, source)
        seconds = line["cpu_seconds_per_step"] * training.steps
        print(f"  {line['held_out']}, {seconds:.0f} s", file=sys.stderr, flush=True)
        ended.append((training, line))
    return ended


def repeated() -> list[dict[str, Any]]:
    """Train a few of the smallest size once more, and return both losses."""
    done = kept("0.2M")
    return train_again(
        [
            min(
                (one for one in arm.trainings if one.size == "0.2M" and one.key in done),
                key=lambda one: (one.steps, done[one.key]["held_out"]),
            )
            for arm in arms()
            if arm.name in QUICK
        ]
    )


def trained(size: str, names: set[str] | None) -> list[Training]:
    """Return the recorded trainings of a size, in the order of arms.toml."""
    done = kept(size)
    return [
        one
        for arm in arms()
        if names is None or arm.name in names
        for one in arm.trainings
        if one.size == size and one.key in done
    ]


def train_again(chosen: Sequence[Training]) -> list[dict[str, Any]]:
    """Train recorded trainings once more, and return both losses."""
    return [
        {
            **{name: getattr(one, name) for name in ("arm", "steps", "lr", "seed")},
            "held_out": line["held_out"],
            "kept": kept(one.size)[one.key]["held_out"],
        }
        for one, line in run(chosen, again=True)
    ]


def table(report: Mapping[str, Any]) -> str:
    """Return the arms of all sizes, one line each."""
    lines = []
    for size, found in report.items():
        lines.append(f"{size}: {found['missing']} trainings not done yet")
        for name, arm in found["arms"].items():
            for end in arm["ends"]:
                against = end.get("against_adamw", {})
                told = ", ".join(
                    f"{one['worth']} ({name})"
                    for name, one in against.get("by_processor", {}).items()
                )
                worth = (
                    f"  {against['steps_alone']} steps alone, worth {told or 'not timed'}"
                    if against
                    else ""
                )
                lines.append(
                    f"  {name:22} {end['steps']:6} steps  {end['held_out']:.3f} at {end['lr']:g}{worth}"
                )
    return "\n".join(lines)


def main() -> None:
    """Read the options, measure if asked to, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--run", choices=SIZES, help="train what is named and not measured yet, and keep it"
    )
    what.add_argument(
        "--quick", action="store_true", help="train a few arms once more, and print both losses"
    )
    parser.add_argument(
        "--again", action="store_true", help="with --run: repeat recorded trainings"
    )
    parser.add_argument("--only", nargs="+", metavar="ARM", help="with --run: only these arms")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of lines"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    only = set(given.only) if given.only else None
    if given.run and not given.again:
        run(list(missing(given.run, only)))
    if given.quick or (given.run and given.again):
        print(
            json.dumps(
                repeated() if given.quick else train_again(trained(given.run, only)), indent=1
            )
        )
        return
    report = {size: of_size(size) for size in SIZES if (RUNS / f"{size}.jsonl").exists()}
    whole = {**report, REALISTIC: realistic(report)}
    print(json.dumps(whole, indent=1) if given.json else table(report))


if __name__ == "__main__":
    main()
