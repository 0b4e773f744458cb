"""What a seed stands for: who takes part, under which rules, and for how long faults are made.

Decided: everything is drawn here from the seed alone, so that a scenario can be printed and played again; the numbers
are small, so that an hour of a real run's borders passes in minutes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import get_args

from aftermath.rules.sparseloco import DivisorName, InnerOptimizerName

WINDOW = 100.0
"""Virtual seconds over which a run's pace is measured."""
_EDGE = 7  # of a block, as in the tiny run
_BLOCK = _EDGE * _EDGE
_GRACE = 45.0  # for what has no setting: lost places are requested with a growing backoff


@dataclass(frozen=True)
class Seat:
    """One member: its tier, the virtual seconds of one piece of its work, and how many RPC nodes it is given."""

    tier: int
    seconds: float
    nodes: int


@dataclass(frozen=True)
class Scenario:
    """One run."""

    seed: int
    seconds: float
    """For how long faults are made."""
    seats: tuple[Seat, ...]
    rules: tuple[tuple[str, int], ...]
    quantize: bool
    sparseloco: tuple[tuple[str, str | float], ...]
    """Settings of SparseLoCo; without any the run has DisTrO."""
    keeps: bool
    """Whether the members of tier 0 keep checkpoints in a directory."""
    eager: float
    """How often a border draws a fault."""

    @property
    def patience(self) -> float:
        """Virtual seconds in which a run that is left in peace finds back to its pace."""
        return self.rule("warmup_time") + self.rule("cooldown_time") + 2 * self.rule("max_round_train_time") + _GRACE

    def rule(self, name: str) -> int:
        return dict(self.rules)[name]

    def describe(self) -> str:
        seats = " ".join(f"{seat.tier}@{seat.seconds}s" + "+1" * (seat.nodes - 1) for seat in self.seats)
        rules = " ".join(f"{name}={value}" for name, value in self.rules)
        learns = " ".join(f"{name}={value}" for name, value in self.sparseloco)
        if not learns:
            learns = "1-bit" if self.quantize else "float"
        kinds = f"{learns} {'keeps' if self.keeps else 'keeps nothing'}"
        return f"members {seats} | {rules} | {kinds} | {self.seconds:.0f} s of faults, then peace"


def draw(seed: int, seconds: float, overlap: int | None = None) -> Scenario:
    """The scenario of a seed; with `overlap` given, of one that draws this."""
    lot = random.Random(f"scenario {seed}")
    if overlap is None:
        overlap = random.Random(f"overlap {seed}").randint(0, 1)  # not of `lot`: what else a seed stands for stays
    count = lot.randint(3, 6)
    scarce = lot.random() < 0.5  # one holder of tier 0 only
    tiers = [0] + [lot.randint(1 if scarce else 0, 2) for _ in range(count - 1)]
    seats = tuple(Seat(tier, lot.choice((0.3, 0.6, 1.0, 1.5)), lot.choice((1, 1, 2))) for tier in tiers)
    least = lot.randint(1, count - 1)
    batch = lot.randint(count, 4 * count)
    ends = lot.random() < 0.1
    warmup, cooldown, rounds = lot.choice((15, 30, 60)), lot.choice((8, 15, 25)), lot.randint(2, 7)
    rules = {
        "warmup_time": warmup,
        "cooldown_time": cooldown,
        "rounds_per_epoch": rounds,
        "max_round_train_time": lot.choice((8, 12, 15)) * (2 - overlap),  # as late as with overlap a result may be
        "round_witness_time": lot.randint(1, 2),
        "min_clients": least,
        "init_min_clients": lot.randint(least, count),
        "witness_nodes": min(lot.choice((0, 0, 1, 2, 3)), least),
        "overlap": overlap,
        "waiting_for_members_extra_time": lot.randint(1, 3),
        "global_batch_size_start": batch,
        "global_batch_size_end": batch,
        "cold_start_warmup_steps": min(lot.choice((0, 0, 3)), rounds),
        "total_steps": lot.randint(15, 40) if ends else 1_000_000,
    }
    return Scenario(
        seed=seed,
        seconds=seconds,
        seats=seats,
        rules=tuple(sorted(rules.items())),
        quantize=lot.random() < 0.7,
        sparseloco=_sparseloco(random.Random(f"learning {seed}")),  # not of `lot` either
        keeps=lot.random() < 0.85,
        eager=lot.choice((0.2, 0.4, 0.7)),
    )


def _sparseloco(lot: random.Random) -> tuple[tuple[str, str | float], ...]:
    if lot.random() >= 0.5:
        return ()
    kept = lot.choice((4, _BLOCK))
    return (
        ("inner_steps", lot.choice((1, 2, 4))),
        ("inner_optimizer", lot.choice(get_args(InnerOptimizerName))),
        ("value_bits", lot.choice((1, 2))),
        ("divisor", lot.choice(get_args(DivisorName))),
        ("orthogonal_lr", lot.choice((0.0, 10.0))),
        ("compression_chunk", _EDGE),
        ("compression_topk", kept),
        ("compression_topk_embeddings", kept),
    )
