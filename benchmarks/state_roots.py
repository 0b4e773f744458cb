"""Measure the cost of the roots of a member's private state, relative to its round.

python benchmarks/state_roots.py [--json]
"""

# How it is measured:
# - A member of the light recipe, of tier 0 (`benchmarks/step.py`), trains half of a round and
#   encodes it. Then its state is hashed, and copied for members that ask for its blocks. Figures
#   are medians.
# - `cpu_of_round` is the CPU time of hashing over that of training and encoding;
#   `copy_cpu_of_round` is that of the copy.
# - `hash_ms` is the longest wait of the announcement, since the member's own result is checked
#   meanwhile.
# - `block_ms` is the time to look up, read, hash and prove a block on the serving side, and
#   `check_ms` on the asking side. `proof_bytes` travel with each block.
# - The first figures are the highest of all below.

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.optim.engine import outline_of
from aftermath.optim.schema import build_schema
from aftermath.optim.state_merkle import BLOCK, tree_of
from aftermath.replica.exactness import exact_device
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.replica.state_sharing import StateShare, copy_state, proven, question
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.sim.sim_transport import SimNetwork
from step import MODEL, OPTIMIZERS, RATE, TOKENS

KINDS: dict[str, Optimizer] = OPTIMIZERS | {
    "muon": SparseLoCo(inner_steps=4, inner_optimizer="muon")
}
ASKED = 50
T = TypeVar("T")


class Spent:
    """CPU seconds of all threads and wall seconds of each task."""

    def __init__(self) -> None:
        self.cpu: dict[str, list[float]] = {}
        self.wall: dict[str, list[float]] = {}

    def time(self, what: str, work: Callable[[], T]) -> T:
        """Run `work` and record its time."""
        cpu = time.process_time()
        wall = time.perf_counter()
        made = work()
        self.cpu.setdefault(what, []).append(time.process_time() - cpu)
        self.wall.setdefault(what, []).append(time.perf_counter() - wall)
        return made


def measure(kind: str, *, sequences: int, repetitions: int) -> dict[str, float]:
    """Return the figures of one optimizer, with torch's current number of threads."""
    config = config_of(MODEL)
    schema = build_schema(config.to_hf(), 3, KINDS[kind])
    replica = Replica(
        schema,
        config,
        0,
        init_weights(config, 0),
        device=torch.device("cpu"),
        pass_size=PassSize(sequences, "off"),
        stopwatch=time.perf_counter,
    )
    draws = torch.Generator().manual_seed(1)
    spent = Spent()
    optimizer = replica.optimizer
    share = StateShare(SimNetwork().open(bytes(32)))
    for repetition in range(repetitions + 1):
        tokens = torch.randint(0, 260, (sequences, TOKENS), generator=draws)
        spent.time("round", partial(replica.train, tokens, RATE, RATE, threading.Event()))
        tree = spent.time("hash", lambda: tree_of(optimizer.state_tensors()))
        share.offer(spent.time("copy", partial(copy_state, optimizer, tree, states=1)), states=1)
        if not repetition:
            spent = Spent()  # the first repetition only warms up
    parts = outline_of(schema, 0)
    for index in range(0, parts.count, max(1, parts.count // ASKED)):
        asked = question(tree.root, index)
        reply = spent.time("block", partial(_answered, share, asked))
        spent.time("check", partial(proven, reply, tree.root, parts, index))
    cpu, wall = (
        {what: statistics.median(of) for what, of in by.items()} for by in (spent.cpu, spent.wall)
    )
    return {
        "cpu_of_round": round(cpu["hash"] / cpu["round"], 5),
        "copy_cpu_of_round": round(cpu["copy"] / cpu["round"], 5),
        "state_bytes": parts.size,
        "blocks": parts.count,
        "proof_bytes": 32 * max(len(tree.proof(index)) for index in range(parts.count)),
    } | {f"{what}_ms": round(1000 * seconds, 2) for what, seconds in wall.items()}


def _answered(share: StateShare, asked: bytes) -> bytes:
    """Return the answer. Nothing in it waits, so no event loop is timed."""
    answer = share.answer(bytes(32), asked)
    try:
        answer.send(None)
    except StopIteration as end:
        return bytes(end.value)
    raise RuntimeError("an answer from the CPU's memory waits for nothing")


def report(threads: Sequence[int], kinds: Sequence[str], **sizes: int) -> dict[str, Any]:
    """Return all figures by optimizer and threads, and the highest costs of them."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for kind in kinds:
        for count in threads:
            torch.set_num_threads(count)
            found.setdefault(kind, {})[str(count)] = measure(kind, **sizes)
    each = [figures for by_threads in found.values() for figures in by_threads.values()]
    highest = {
        name: max(figures[name] for figures in each)
        for name in ("cpu_of_round", "copy_cpu_of_round")
    }
    parameters = sum(
        torch.Size(shape).numel() for shape in config_of(MODEL).parameter_shapes(0).values()
    )
    return highest | {"parameters": parameters, "block_bytes": BLOCK} | sizes | found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[2], help="CPU threads (default 2)"
    )
    parser.add_argument("--optimizers", nargs="+", choices=sorted(KINDS), default=sorted(KINDS))
    parser.add_argument("--sequences", type=int, default=4, help="sequences of a share (default 4)")
    parser.add_argument(
        "--repetitions", type=int, default=3, help="repetitions of the round (default 3)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    exact_device("cpu")
    found = report(
        chosen.threads,
        chosen.optimizers,
        sequences=chosen.sequences,
        repetitions=chosen.repetitions,
    )
    if chosen.json:
        print(json.dumps(found))
        return
    for kind in chosen.optimizers:
        for count, figures in found[kind].items():
            print(
                f"{kind}, threads {count}: "
                + ", ".join(f"{name} {value}" for name, value in figures.items())
            )


if __name__ == "__main__":
    main()
