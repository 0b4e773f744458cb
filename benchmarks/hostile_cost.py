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
from hostile_work import OPTIMIZERS, STEPS, WAYS, Way, honest, judge
from step import MODEL

AUDITED = 1 / 16
"""Share of the results that are audited."""
PEERS = 7
LINE_BITS = 110e6
"""Uplink of a home line (`benchmarks/wan.py`), in bits per second."""
UPLINK = 0.05
TOKENS = 256
COSTLY: dict[str, Optimizer] = {
    "adamw": SparseLoCo(inner_steps=STEPS),
    "muon": SparseLoCo(inner_steps=STEPS, inner_optimizer="muon"),
    "distro": Distro(),
}
"""With their defaults. Of a share's 120 sequences, each inner step trains four."""
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


def cost(optimizer: Optimizer, tokens: int = TOKENS, steps: int = STEPS) -> dict[str, Any]:
    """Return the cost of audits for members with this optimizer."""
    # The first share begins without a state, so its audit fetches less.
    _, trained = honest_shares(optimizer, 2, steps=steps, tokens=tokens, tiers=(0,), model=MODEL)
    member = member_with(trained.share)
    share_seconds = _cpu(lambda: train(member, trained.share))
    finding = judge(honest(trained), SAME_PASSES, b"cost")
    kept = _keeping(trained)
    payload = sum(map(len, trained.payloads.values()))
    fetched = finding.fetched_bytes * AUDITED
    return {
        "parameters": sum(tensor.numel() for tensor in trained.share.shared.values()),
        "share_tokens": trained.share.sequences.numel(),
        "share_seconds": short(share_seconds),
        "seconds": short(finding.cpu_seconds),
        "bytes": finding.fetched_bytes,
        "audit_over_share": short(finding.cpu_seconds / share_seconds),
        "kept_over_share": short(kept / share_seconds),
        "compute": short((finding.cpu_seconds * AUDITED + kept) / share_seconds),
        "fetched_bytes_per_round": round(fetched),
        "result_bytes": payload,
        "over_results": short(fetched / (payload * PEERS)),
        "uplink": short(fetched * 8 / (LINE_BITS * share_seconds)),
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
    judgements = 0
    alarms = 0
    largest = 0.0
    shares = 0
    began = time.process_time()
    for seed in count(5000):
        for name, optimizer in OPTIMIZERS.items():
            for trained in honest_shares(
                optimizer, HONEST_ROUNDS, seed=seed, overlap=seed % 2, steps=STEPS
            ):
                shares += 1
                for way in HONEST_WAYS:
                    finding = judge(honest(trained), way, f"{seed} {name}".encode())
                    judgements += 1
                    alarms += finding.verdict is not AuditVerdict.MATCH
                    largest = max(largest, finding.distance or 0.0)
        if seed % 20 == 0:
            print(f"{judgements:,} honest judgements", file=sys.stderr, flush=True)
        if judgements >= most or time.process_time() - began > seconds:
            break
    return {
        "judgements": judgements,
        "shares": shares,
        "false_alarms": alarms,
        "largest_distance": short(largest),
        "cpu_seconds": round(time.process_time() - began),
    }
