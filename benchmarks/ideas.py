"""Try ideas that a run has no setting for, in the laboratory, before anyone builds them.

ideas.py [--json]                print the figures of measured/runs
ideas.py --run [--only ARM ...]  train the arms of ideas.toml that are not measured yet
"""

# How it is measured:
# - ideas.toml names the arms before they run. An arm's table `idea` names what replaces the
#   members' own code, for this training only. All other settings are as in arms.toml.
# - `against` are the arms that an idea is compared with: of ideas.toml, or FILE/ARM of another
#   file. A gain is the loss of such an arm minus the idea's, of the same tier and seed, with the
#   interval of heterogeneity.py.
# - idea_methods.py has the code of the ideas. One replica applies and the others copy it. That
#   saves a quarter of the time, so seconds are not shown.

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from aftermath.lab.resolve_recipe import recipe_of
from aftermath.model.levels import is_hidden_matrix
from aftermath.optim.schema import build_schema
from arms import Training, arms, interval, keep, kept, missing, model_of, settings_of, train
from heterogeneity import Losses, best, ended
from idea_methods import with_idea

FILE = Path(__file__).with_name("ideas.toml")
SIZE = "0.2M"
IDEA = "idea"


def plain_of(one: Training) -> Training:
    """Return the training without its idea."""
    return replace(one, said={name: value for name, value in one.said.items() if name != IDEA})


def tried(one: Training) -> dict[str, Any]:
    """Train with the idea, and return the result line."""
    plain = plain_of(one)
    with with_idea(one.said.get(IDEA, {}), plain.said), tempfile.TemporaryDirectory() as root:
        return train(plain, Path(root)) | {"said": one.said}


def bytes_of(one: Training) -> float:
    """Return the bytes of a tier-0 member's result for each parameter and step of a machine."""
    plain = plain_of(one)
    idea = one.said.get(IDEA, {})
    with with_idea(idea, plain.said):
        recipe = recipe_of(
            settings_of(plain, {name: Path(name) for name in ("model", "data_path")})
        )
        assert recipe.agreed is not None
        schema = build_schema(model_of(one.size), recipe.levels, recipe.agreed)
    results = schema.results
    rank = int(idea.get("low_rank", 0))
    narrow = [
        own
        for own in results.blocks
        if rank and is_hidden_matrix(own.segment.name, own.segment.shape)
    ]
    others = replace(results, blocks=tuple(own for own in results.blocks if own not in narrow))
    # a column of a narrow matrix has one byte for its exponent, and two bits for each value
    sent = others.result_bytes() + sum(
        own.count * rank * (2 + sum(own.edges) * 2 // 8) for own in narrow
    )
    return round(
        sent / sum(segment.numel for segment in schema.state.segments) / one.inner_steps, 6
    )


def losses(name: str) -> Losses:
    """Return an arm's losses at its best rate. FILE/ARM names an arm of another file."""
    stem, _, own = name.rpartition("/")
    source = FILE.with_name(f"{stem}.toml") if stem else FILE
    (arm,) = (arm for arm in arms(source) if arm.name == own)
    rates = ended(arm, SIZE, kept(SIZE, source))
    return rates[best(rates)] if rates else {}


def gains(idea: Losses, against: Losses) -> dict[str, dict[str, Any]]:
    """Return by tier the gain of the idea's arm in nats per byte. One seed gives no interval."""
    found = {}
    for tier in sorted(idea.keys() & against.keys()):
        seeds = sorted(idea[tier].keys() & against[tier].keys())
        if not seeds:
            continue
        middle, reach = interval([against[tier][seed] - idea[tier][seed] for seed in seeds])
        known = math.isfinite(reach)
        found[str(tier)] = {
            "gain": round(middle, 6),
            "interval": round(reach, 6) if known else None,
            "seeds": len(seeds),
            "clear": known and abs(middle) > reach,
        }
    return found


def _missing(names: Sequence[str] | None) -> list[Training]:
    """Return the trainings still to do, ordered by seed."""
    return sorted(missing(SIZE, set(names) if names else None, FILE), key=lambda one: one.seed)


def report() -> dict[str, Any]:
    """Return each trained arm, in file order, and the number of trainings still to do."""
    against = {
        arm["name"]: arm["against"]
        for arm in tomllib.loads(FILE.read_text())["arm"]
        if "against" in arm
    }
    shown = {}
    for arm in arms(FILE):
        if not (found := losses(arm.name)):
            continue
        one = arm.trainings[0]
        names = against.get(arm.name, [])
        shown[arm.name] = {
            "question": arm.question,
            "expected": arm.expected[SIZE],
            "members": one.members,
            "steps": one.steps,
            "held_out": {
                str(tier): round(fmean(seeds.values()), 6) for tier, seeds in sorted(found.items())
            },
            "seeds": len(found[min(found)]),
            "bytes_per_parameter_step": bytes_of(one),
            "gains": {name: gained for name in names if (gained := gains(found, losses(name)))},
        }
    return {"missing": len(_missing(None)), "arms": shown}


def table(found: Mapping[str, Any]) -> str:
    """Return all arms, one per line."""
    lines = [f"{found['missing']} trainings not done yet"]
    for name, arm in found["arms"].items():
        ends = "  ".join(f"tier {tier} {loss:.3f}" for tier, loss in arm["held_out"].items())
        lines.append(f"  {name:22} {ends}")
        for other, of_tiers in arm["gains"].items():
            gained = "  ".join(
                f"{one['gain']:+.3f}"
                + (f" ± {one['interval']:.3f}" if one["interval"] is not None else "")
                for one in of_tiers.values()
            )
            lines.append(f"    against {other}: {gained}")
    return "\n".join(lines)


def main() -> None:
    """Read the options, train if asked to, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", action="store_true", help="train and record the arms that are not measured yet"
    )
    parser.add_argument("--only", nargs="+", metavar="ARM", help="with --run: only these arms")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of lines"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    for one in _missing(given.only) if given.run else ():
        print(f"{one.arm}, rate {one.lr:g}, seed {one.seed}", file=sys.stderr, flush=True)
        line = tried(one)
        keep(SIZE, line, FILE)
        print(f"  {line.get('held_out_by_tier', line['held_out'])}", file=sys.stderr, flush=True)
    found = report()
    print(json.dumps(found, indent=1) if given.json else table(found))


if __name__ == "__main__":
    main()
