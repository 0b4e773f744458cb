"""Measure what a member's ranks gain by sharing an inner optimizer's moments, and what it costs.

python benchmarks/ranks.py [--json] [--ranks 2]
"""

# How it is measured:
# - A member of the light recipe's model, with four of its layers, trains shares of 4 sequences of
#   64 tokens in four inner steps, on CPU ranks with one thread each.
# - In turns, in another order each time, the first rank has all moments, or each rank has its
#   part.
# - Bytes are those of counted tensors. `first_whole` and `first_dealt` are the peaks of the first
#   rank, from its replica's creation to the end of a second share. `moments` is what each rank
#   reported.
# - Seconds are medians. `steps` are the inner optimizer's of a share: what the ranks compute at
#   the same time, and what they send each other over the loopback, 4 bytes for each parameter of
#   another rank.
# - `first_cpu` is the first rank's CPU time for the steps, which other processes do not change.
#   `share` is all of the training. Ratios are of dealt over whole moments.

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.optim.inner_optimizer import InnerOptimizer
from aftermath.optim.inner_steps import InnerSteps
from aftermath.optim.schema import build_schema
from aftermath.parallel.launch import launch_ranks
from aftermath.parallel.mesh import Mesh
from aftermath.parallel.multi_device_replica import MultiDeviceReplica
from aftermath.parallel.sharded import ShardedModel
from aftermath.parallel.sharded_inner import ShardedInner
from aftermath.replica.memory import LiveBytes
from aftermath.replica.pass_size import PassSize
from aftermath.rules.optimizer import InnerOptimizerName as Kind
from aftermath.rules.sparseloco import SparseLoCo
from step import MODEL, RATE, Spent

KINDS: tuple[Kind, ...] = ("adamw", "muon")
STEPS = 4
SEQUENCES = 4
TOKENS = 64
SIZES = MODEL | {"num_hidden_layers": 4}
CPU = torch.device("cpu")
MEASURED = ("steps", "first_cpu", "share")


class Member:
    """A member whose moments are sharded over the ranks, or all on the first one."""

    def __init__(self, network: ShardedModel, kind: Kind, dealt: bool) -> None:
        config = config_of(SIZES)
        settings = SparseLoCo(inner_steps=STEPS, inner_optimizer=kind)
        self.replica = MultiDeviceReplica(
            network,
            build_schema(config.to_hf(), 3, settings),
            config,
            0,
            init_weights(config, 0),
            device=CPU,
            pass_size=PassSize(1, "off"),
            stopwatch=time.perf_counter,
        )
        step = self.replica.optimizer._step
        assert isinstance(step, InnerSteps)
        if not dealt:
            step._inner = InnerOptimizer(step._learnt, settings)
        self.inner = step._inner

    def share(self, number: int, spent: Spent) -> None:
        """Train one share and record the time of each part."""
        draws = torch.Generator().manual_seed(number)
        share = torch.randint(0, 260, (SEQUENCES, TOKENS), generator=draws)
        plain = self.inner.step
        took = list[tuple[float, float]]()

        def timed(lr: float, factors: Sequence[float]) -> None:
            began = time.perf_counter(), time.process_time()
            plain(lr, factors)
            took.append((time.perf_counter() - began[0], time.process_time() - began[1]))

        self.inner.step = timed  # type: ignore[method-assign]
        trained = self.replica.train(share, RATE, RATE, threading.Event())
        self.inner.step = plain  # type: ignore[method-assign]
        spent.note("steps", sum(seconds for seconds, _ in took))
        spent.note("first_cpu", sum(seconds for _, seconds in took))
        spent.note("share", trained.seconds)

    def moments(self) -> list[int]:
        """Return the bytes of each rank's moments."""
        assert isinstance(self.inner, ShardedInner)
        ranks: Counter[int] = Counter()
        for path, tensor in self.inner.state_tensors().items():
            ranks[self.inner._plan.owner(path)] += tensor.nbytes
        return [size for _, size in sorted(ranks.items())]


def most_bytes(network: ShardedModel, kind: Kind, dealt: bool) -> int:
    """Return the peak bytes of the first rank's tensors."""
    spent = Spent(time.perf_counter)
    with LiveBytes() as live:
        member = Member(network, kind, dealt)
        for number in range(2):
            member.share(number, spent)
    peak: int = live.peak
    return peak


def measure(network: ShardedModel, kind: Kind, repetitions: int) -> dict[str, Any]:
    """Return the figures of one inner optimizer."""
    spent = {dealt: Spent(time.perf_counter) for dealt in (False, True)}
    moments: list[int] = []
    for repetition in range(repetitions):
        for dealt in (False, True) if repetition % 2 else (True, False):
            member = Member(network, kind, dealt)
            member.share(0, Spent(time.perf_counter))  # create the moments and warm up
            for number in range(1, 3):
                member.share(number, spent[dealt])
            if dealt:
                moments = member.moments()
    peaks = {dealt: most_bytes(network, kind, dealt) for dealt in spent}
    middle = {
        dealt: {what: statistics.median(all_) for what, all_ in own.seconds.items()}
        for dealt, own in spent.items()
    }
    return {
        "first_whole": peaks[False],
        "first_dealt": peaks[True],
        "first_ratio": round(peaks[True] / peaks[False], 3),
        "moments": moments,
        "most_of_moments": round(max(moments) / sum(moments), 3),
        **{
            f"{what}_ratio": round(middle[True][what] / middle[False][what], 2) for what in MEASURED
        },
        **{f"{what}_whole_s": round(middle[False][what], 3) for what in MEASURED},
        **{f"{what}_dealt_s": round(middle[True][what], 3) for what in MEASURED},
    }


def report(ranks: int, repetitions: int) -> dict[str, Any]:
    """Return all figures, by inner optimizer."""
    torch.set_num_threads(1)
    with launch_ranks(Mesh((CPU,) * ranks, ranks, 1), 1) as processes:
        network = processes.join().build(ShardedModel, config_of(SIZES).to_hf(), 0)
        found: dict[str, Any] = {kind: measure(network, kind, repetitions) for kind in KINDS}
    parameters = build_schema(SIZES, 3, SparseLoCo()).state.parameters(0)
    return {"ranks": ranks, "parameters": parameters, **found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ranks", type=int, default=2, help="number of ranks, with one thread each (default 2)"
    )
    parser.add_argument(
        "--repetitions", type=int, default=2, help="repetitions of two shares (default 2)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    found = report(chosen.ranks, chosen.repetitions)
    if chosen.json:
        print(json.dumps(found))
        return
    for kind in KINDS:
        print(f"{kind}: " + ", ".join(f"{name} {value}" for name, value in found[kind].items()))


if __name__ == "__main__":
    main()
