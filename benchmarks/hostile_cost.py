"""What audits cost a member, and how many honest shares they call false.

`benchmarks/hostile_audits.py` keeps the figures and says what they are.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from aftermath.audit.comparison import AuditVerdict
from aftermath.audit.start_weights import StartWeights
from aftermath.optim.state_merkle import tree_of
from aftermath.replica.state_sharing import copy_state
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo
from audited_members import TrainedShare, honest_shares, member_with, train
from hostile_work import OPTIMIZERS, STEPS, WAYS, Finding, Way, honest, judge
from step import MODEL

AUDITED = 1 / 16
"""Share of the results that are audited."""
PEERS = 7
LINE_BITS = 110e6
"""Uplink of a home line (`benchmarks/wan.py`), in bits per second."""
UPLINK = 0.05
SHARE_TOKENS = STEPS * 4096
"""Tokens of a share whose steps have a realistic length."""
MEASURED_STEPS = 4
MEASURED_TOKENS = 64
"""Inner steps of the share that is measured, and tokens of a sequence."""
REPETITIONS = 2
COSTLY: dict[str, Optimizer] = {
    "adamw": SparseLoCo(inner_steps=MEASURED_STEPS),
    "muon": SparseLoCo(inner_steps=MEASURED_STEPS, inner_optimizer="muon"),
    "distro": Distro(),
}
"""With their defaults."""
KEPT_STATES = 8
SAME_PASSES = Way(4, 1)
HONEST_WAYS = (*WAYS[:2], Way(1, 1))
HONEST_ROUNDS = 4


def short(number: float) -> float:
    """Return a number with three digits."""
    return float(f"{number:.3g}")


def costs() -> dict[str, Any]:
    """Return the cost of audits for a member of `MODEL`, by optimizer."""
    return {name: cost(optimizer) for name, optimizer in COSTLY.items()}


def cost(optimizer: Optimizer) -> dict[str, Any]:
    """Return the cost of audits for members with this optimizer.

    An audit takes the CPU time of the share, and some more that does not depend on the share.
    """
    # The first share begins without a state, so its audit fetches less.
    _, trained = honest_shares(
        optimizer, 2, steps=MEASURED_STEPS, tokens=MEASURED_TOKENS, tiers=(0,), model=MODEL
    )
    member = member_with(trained.share)
    training = min(_cpu(lambda: train(member, trained.share)) for _ in range(REPETITIONS))
    found = [judge(honest(trained), SAME_PASSES, b"cost") for _ in range(REPETITIONS)]
    besides = max(0.0, min(finding.cpu_seconds for finding in found) - training)
    kept = min(_keeping(trained) for _ in range(REPETITIONS))
    share = training * SHARE_TOKENS / trained.share.sequences.numel()
    fetched = found[0].fetched_bytes * AUDITED
    payload = sum(map(len, trained.payloads.values()))
    return {
        "parameters": sum(tensor.numel() for tensor in trained.share.shared.values()),
        "share_tokens": SHARE_TOKENS,
        "share_seconds": short(share),
        "seconds": short(share + besides),
        "besides_training_seconds": short(besides),
        "kept_seconds": short(kept),
        "compute": short(((share + besides) * AUDITED + kept) / share),
        "bytes": found[0].fetched_bytes,
        "fetched_bytes_per_round": round(fetched),
        "result_bytes": payload,
        "over_results": short(fetched / (payload * PEERS)),
        "uplink": short(fetched * 8 / (LINE_BITS * share)),
        "shortest_round": short(fetched * 8 / (UPLINK * LINE_BITS)),
    }


def _keeping(trained: TrainedShare) -> float:
    """Return the CPU seconds of the copies that a member keeps for audits of a round.

    These are the weights before a share and the state after it. The state's hashes exist anyway.
    """
    member = member_with(trained.share)
    tree = tree_of(trained.share.before)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        weights = StartWeights(directory, KEPT_STATES)
        return _cpu(lambda: weights.keep(0, member.params)) + _cpu(
            lambda: copy_state(member.optimizer, tree, states=KEPT_STATES, directory=directory)
        )


def _cpu(work: Callable[[], object]) -> float:
    """Return the CPU seconds of some work."""
    began = time.process_time()
    work()
    return time.process_time() - began


# --- honest members


def honest_judgements(most: int, seconds: float) -> dict[str, Any]:
    """Judge honest shares of 30 inner steps, and count those that are called false."""
    found = {name: Counted() for name in OPTIMIZERS}
    alarms: list[dict[str, Any]] = []
    began = time.process_time()
    for seed in count(5000):
        for name, optimizer in OPTIMIZERS.items():
            shares = honest_shares(
                optimizer, HONEST_ROUNDS, seed=seed, overlap=seed % 2, steps=STEPS
            )
            for number, trained in enumerate(shares):
                for way in HONEST_WAYS:
                    finding = judge(honest(trained), way, f"{seed} {name}".encode())
                    found[name].add(finding)
                    if finding.verdict is AuditVerdict.MISMATCH:
                        place = {"seed": seed, "share": number, "tier": trained.share.tier}
                        alarms.append({"optimizer": name, **place, "reason": finding.reason})
        done = sum(counted.judgements for counted in found.values())
        print(f"{done:,} honest judgements", file=sys.stderr, flush=True)
        if done >= most or time.process_time() - began > seconds:
            break
    return {
        "judgements": done,
        "false_alarms": len(alarms),
        "by_optimizer": {name: counted.figures() for name, counted in found.items()},
        "alarms": alarms,
    }


class Counted:
    """Counts of the judgements of honest shares."""

    def __init__(self) -> None:
        self.judgements = 0
        self.false_alarms = 0
        self.undecided = 0
        self.largest = 0.0

    def add(self, finding: Finding) -> None:
        """Count a judgement."""
        self.judgements += 1
        self.false_alarms += finding.verdict is AuditVerdict.MISMATCH
        self.undecided += finding.verdict is None
        self.largest = max(self.largest, finding.distance or 0.0)

    def figures(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        return {
            "judgements": self.judgements,
            "false_alarms": self.false_alarms,
            "undecided": self.undecided,
            "largest_distance": short(self.largest),
        }
