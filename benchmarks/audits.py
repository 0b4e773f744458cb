"""Count what audits find: honest members that do not match, and attackers that do.

OMP_WAIT_POLICY=PASSIVE python benchmarks/audits.py [--seconds 600] [--keep]
"""

# How it is measured:
# - Members of tiny runs train rounds of eight inner steps on the CPU: SparseLoCo with
#   AdamW and with Muon inside, and DisTrO, with and without overlap. Each share is audited in
#   several ways, with other micro-batches and thread counts (`WAYS`).
# - `honest`: `false_alarms` are audits of honest members with a mismatch. `largest` has the largest
#   distance of each kind (`audit.comparison.Distances`).
# - `attacks`: `detected` are audits of an attacker with a mismatch. `smallest` is the smallest
#   distance of the residual, or of the moments if only they were changed. It is null for attacks
#   that only exact checks see.
#   Shares of the first round, or of the first two with overlap, are left out: their weights are
#   never stale.
# - `bf16`: the same for members that train in bf16, audited in bf16 on this machine. Judges use the
#   member's micro-batch (`same_passes`, with one and two threads). `other_passes` shows why.
# - `audit_over_share` is the CPU time of an audit (replay and comparison) over that of the member's
#   share, by optimizer: medians of a larger model (`COST_MODEL`), in passes of the same size.
# - Honest audits stop after `--audits`, or after `--seconds` of CPU time. Without OMP_WAIT_POLICY,
#   waiting threads would take most of it.

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch

from aftermath.audit.claim import Claim, claim_of
from aftermath.audit.comparison import FP32_BOUNDS, AuditVerdict, Comparison, bounds_of, compare
from aftermath.replica.exactness import exact_device
from aftermath.replica.options import PLAIN, Arithmetic
from aftermath.rules.optimizer import Optimizer
from audited_members import (
    ATTACKS,
    MODEL,
    OPTIMIZERS,
    PER_STEP,
    TrainedShare,
    can_be_attacked,
    has_moments,
    honest_shares,
    member_with,
    replayed,
    train,
)
from measure import BY_ITSELF, write

ROUNDS = 5
MEMBERS = 2
BF16 = Arithmetic(bf16=True)
EXACT_ATTACKS = {"other_payload", "other_root"}
"""Attacks after which the claimed state is honest or unreadable."""


class Way(NamedTuple):
    """How an auditor trains a share."""

    micro: int
    threads: int


WAYS = (Way(PER_STEP // 2, 1), Way(PER_STEP - 1, 1))
SAME = Way(PER_STEP, 1)
"""The passes of the member."""
THREADED = Way(PER_STEP, 2)
"""The last shares of a run are audited in this way too."""
COST_MODEL = MODEL | {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3}
COST_ROUNDS = 3


class Honest:
    """Counts of the audits of honest members."""

    def __init__(self) -> None:
        self.audits = 0
        self.false_alarms = 0
        self.largest: dict[str, float] = {}

    def add(self, found: Comparison) -> None:
        """Count an audit."""
        self.audits += 1
        self.false_alarms += found.verdict is AuditVerdict.MISMATCH
        assert found.distances is not None
        for name, distance in asdict(found.distances).items():
            self.largest[name] = max(distance, self.largest.get(name, 0.0))

    def figures(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        return {
            "audits": self.audits,
            "false_alarms": self.false_alarms,
            "largest": {name: short(distance) for name, distance in self.largest.items()},
        }


class Attacked:
    """Counts of the audits of one kind of attacker."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.audits = 0
        self.detected = 0
        self.smallest = float("inf")

    def add(self, found: Comparison) -> None:
        """Count an audit."""
        self.audits += 1
        self.detected += found.verdict is AuditVerdict.MISMATCH
        if self._name not in EXACT_ATTACKS and found.distances is not None:
            distances = found.distances
            distance = distances.moments if self._name == "moments" else distances.whole
            self.smallest = min(self.smallest, distance)

    def figures(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        return {
            "audits": self.audits,
            "detected": self.detected,
            "smallest": None if self._name in EXACT_ATTACKS else short(self.smallest),
        }


def short(number: float) -> float:
    """Return a number with three digits."""
    return float(f"{number:.3g}")


def shares(name: str, seed: int, arithmetic: Arithmetic = PLAIN) -> Iterator[TrainedShare]:
    """Return the honest shares of one run. Runs with odd seeds overlap their rounds."""
    return honest_shares(
        OPTIMIZERS[name], ROUNDS, seed=seed, overlap=seed % 2, arithmetic=arithmetic
    )


def audit(trained: TrainedShare, claim: Claim, way: Way) -> Comparison:
    """Audit a claim for a share in the precision of its member."""
    torch.set_num_threads(way.threads)
    try:
        found = replayed(trained.share, way.micro, trained.arithmetic)
        return compare(found, claim, bounds_of(found.passes, found.share.schema))
    finally:
        torch.set_num_threads(1)


def honest(audits: int, seconds: float) -> dict[str, Any]:
    """Audit honest members. Return the figures by optimizer."""
    found = {name: Honest() for name in OPTIMIZERS}
    started = time.process_time()
    for seed in count():
        for name, counted in found.items():
            for number, trained in enumerate(shares(name, seed)):
                claim = claim_of(trained.payloads, trained.state)
                ways = WAYS if number < MEMBERS * (ROUNDS - 1) else (*WAYS, THREADED)
                for way in ways:
                    counted.add(audit(trained, claim, way))
        done = sum(counted.audits for counted in found.values())
        print(f"{done:,} honest audits", file=sys.stderr, flush=True)
        if done >= audits or time.process_time() - started > seconds:
            break
    return {name: counted.figures() for name, counted in found.items()}


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of some work."""
    began = time.process_time()
    work()
    return time.process_time() - began


def costs() -> dict[str, float]:
    """Return the CPU time of an audit over that of the share, by optimizer."""
    found = {}
    for name, optimizer in OPTIMIZERS.items():
        of_share: list[float] = []
        of_audit: list[float] = []
        for trained in honest_shares(optimizer, COST_ROUNDS, model=COST_MODEL):
            claim = claim_of(trained.payloads, trained.state)
            member = member_with(trained.share)
            of_share.append(cpu_seconds(partial(train, member, trained.share)))
            of_audit.append(cpu_seconds(partial(audit, trained, claim, SAME)))
        found[name] = short(statistics.median(of_audit) / statistics.median(of_share))
    return found


def attacks(
    audits: int, arithmetic: Arithmetic, way: Way, optimizers: Mapping[str, Optimizer]
) -> dict[str, Any]:
    """Audit attackers. Return the figures by attack."""
    possible = any(map(has_moments, optimizers.values()))
    names = [attack for attack in ATTACKS if attack != "moments" or possible]
    found = {attack: Attacked(attack) for attack in names}
    for seed in count(1000):
        for name, optimizer in optimizers.items():
            for trained in shares(name, seed, arithmetic):
                if not can_be_attacked(trained):
                    continue
                known = replayed(trained.share, way.micro, arithmetic)
                bound = bounds_of(known.passes, known.share.schema)
                for attack, counted in found.items():
                    possible = attack != "moments" or has_moments(optimizer)
                    if possible and counted.audits < audits:
                        counted.add(compare(known, ATTACKS[attack](trained), bound))
        if all(counted.audits >= audits for counted in found.values()):
            return {attack: counted.figures() for attack, counted in found.items()}
    raise AssertionError("there are always more seeds")


def in_bf16(audits: int, ways: Sequence[Way]) -> dict[str, Any]:
    """Audit honest members that train in bf16. Return the figures by optimizer."""
    found = {name: Honest() for name in OPTIMIZERS}
    for name, counted in found.items():
        for seed in count(2000):
            for trained in shares(name, seed, BF16):
                claim = claim_of(trained.payloads, trained.state)
                for way in ways:
                    counted.add(audit(trained, claim, way))
            if counted.audits >= audits:
                break
    return {name: counted.figures() for name, counted in found.items()}


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures."""
    of_attacks = attacks(options.attacks, PLAIN, WAYS[0], OPTIMIZERS)
    of_bf16 = {
        "same_passes": in_bf16(options.bf16, (SAME, THREADED)),
        "other_passes": in_bf16(options.bf16 // 10 or 1, WAYS[:1]),
        "attacks": {
            name: attacks(options.bf16 // 10 or 1, BF16, SAME, {name: optimizer})
            for name, optimizer in OPTIMIZERS.items()
        },
    }
    ratios = costs()
    by_optimizer = honest(options.audits, options.seconds)
    return {
        "bound": FP32_BOUNDS.residual,
        "audits": sum(figures["audits"] for figures in by_optimizer.values()),
        "false_alarms": sum(figures["false_alarms"] for figures in by_optimizer.values()),
        "honest": by_optimizer,
        "attacks": of_attacks,
        "bf16": of_bf16,
        "audit_over_share": ratios,
    }


def show(found: dict[str, Any]) -> None:
    """Print the figures as lines."""
    print(
        f"honest: {found['audits']:,} audits, {found['false_alarms']} false alarms "
        f"(bound {found['bound']:g})"
    )
    in_bf16 = found["bf16"]
    kinds = {
        "honest": found["honest"],
        "bf16": in_bf16["same_passes"],
        "bf16 in other passes": in_bf16["other_passes"],
    }
    for kind, by_optimizer in kinds.items():
        for name, figures in by_optimizer.items():
            distances = ", ".join(f"{key} {value:g}" for key, value in figures["largest"].items())
            print(
                f"  {kind} {name}: {figures['false_alarms']} of {figures['audits']} are false "
                f"alarms; largest distances: {distances}"
            )
    of_attacks = {"": found["attacks"]}
    for name, by_attack in in_bf16["attacks"].items():
        of_attacks[f"bf16 {name} "] = by_attack
    for kind, by_attack in of_attacks.items():
        for name, figures in by_attack.items():
            distance = figures["smallest"]
            smallest = "exact" if distance is None else f"smallest distance {distance:g}"
            detected = f"{figures['detected']} of {figures['audits']} detected"
            print(f"  {kind}{name}: {detected}, {smallest}")
    for name, ratio in found["audit_over_share"].items():
        print(f"  {name}: an audit takes {ratio} times the CPU time of the share")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--audits", type=int, default=10_000, help="honest audits at most (default 10000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=600, help="their CPU seconds at most (default 600)"
    )
    parser.add_argument("--attacks", type=int, default=200, help="audits per attack (default 200)")
    parser.add_argument(
        "--bf16", type=int, default=300, help="audits in bf16 per optimizer (default 300)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/measured/audits.json")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    exact_device("cpu")
    torch.set_num_threads(1)
    found = report(options)
    if options.keep:
        write("audits", BY_ITSELF["audits"], load, found)
    if options.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
