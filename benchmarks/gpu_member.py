"""Measure a member of 124 million parameters on a GPU against a plain training loop.

python benchmarks/gpu_member.py [--json] [--small] [PART ...]
"""

# The parts and how they are measured:
# - The model has GPT-2's vocabulary of 50,304. Sequences have 1,024 tokens; a pass has 32 of
#   them, in bf16, compiled.
# - plain: the plain loop (`benchmarks/plain_loop.py`), tokens per second
# - distro: a member with a share of 64 sequences
# - sparseloco: 30 inner steps of AdamW, 64 of 4,096 numbers sent
# - outer_muon: 30 inner steps of Muon, all numbers sent, applied along the polar factor and as a
#   mean
# - Figures of a member: tokens per second while it trains; milliseconds to encode its result, to
#   decode and apply eight results, and to hash its replica; and the peak bytes on the GPU.
# - BARS are what a member should reach on an H100. `against_bars` compares figures with them.
# - Each part prints a line as soon as it ends. `--small` takes a small model and no compiler, to
#   try it on a CPU.

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.optim.codec import decode_level
from aftermath.optim.level_votes import Votes
from aftermath.optim.schema import build_schema
from aftermath.optim.sparseloco_apply import MeanApply
from aftermath.replica.exactness import exact_device
from aftermath.replica.options import Arithmetic
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo
from plain_loop import Loop, of_llama
from step import MODEL

LARGE: dict[str, Any] = MODEL | {
    "vocab_size": 50304,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "max_position_embeddings": 1024,
}
SMALL: dict[str, Any] = MODEL | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32}
MEMBERS = 8
RATE = 4e-4
OPTIMIZERS: dict[str, Optimizer] = {
    "distro": Distro(topk_embeddings=64),
    "sparseloco": SparseLoCo(inner_steps=30, topk=64, topk_embeddings=64),
    "outer_muon": SparseLoCo(
        inner_steps=30,
        inner_optimizer="muon",
        topk=4096,
        topk_embeddings=4096,
        divisor="all",
        outer_lr=4.0,
        orthogonal_lr=1.5,
    ),
}


BARS: dict[str, dict[str, float]] = {
    name: {
        "encode_ms": 10,
        "decode_ms": 15,
        "apply_ms": 60 if name == "outer_muon" else 5,
        "apply_mean_ms": 5,
        "tokens_over_plain": 0.95 if OPTIMIZERS[name].inner_steps else 0.85,
    }
    for name in OPTIMIZERS
}
"""Upper limits in milliseconds, and the lower limit of tokens per second relative to the plain
loop.
"""
UNBARRED = ("hash_ms", "peak_gb", "memory_over_plain")
"""Figures to show without a limit."""


class Bench:
    """One size of model on one device."""

    def __init__(self, device: torch.device, small: bool) -> None:
        self.device = device
        self.small = small
        self.document = SMALL if small else LARGE
        self.config = config_of(self.document)
        self.weights = init_weights(self.config, 0)
        self.micro, self.steps = (2, 3) if small else (32, 30)

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def share(self, sequences: int, seed: int) -> Tensor:
        length = self.document["max_position_embeddings"]
        draws = torch.Generator().manual_seed(seed)
        return torch.randint(0, self.document["vocab_size"], (sequences, length), generator=draws)

    def timed(self, work: Callable[[], object], repetitions: int = 3) -> float:
        """Return the median time in milliseconds, after one untimed run."""
        took = []
        for _ in range(repetitions + 1):
            began = self.now()
            work()
            took.append(self.now() - began)
        return round(1000 * statistics.median(took[1:]), 2)

    def peak(self) -> float:
        """Return the peak GPU memory in GB since the previous call."""
        if self.device.type != "cuda":
            return 0.0
        found = torch.cuda.max_memory_allocated(self.device) / 1e9
        torch.cuda.reset_peak_memory_stats(self.device)
        return round(found, 2)

    def plain(self) -> dict[str, float]:
        model = of_llama(self.weights, heads=self.document["num_attention_heads"]).to(self.device)
        loop = Loop(
            model, micro_batch=self.micro, steps=self.steps, bf16=self.fast, compiled=self.fast
        )
        share = self.share(self.micro * self.steps, 1)
        began = self.now()
        loop.step(share)
        first = self.now() - began
        print(f"the plain loop's first share: {first:.1f} s", file=sys.stderr, flush=True)
        took = self.timed(lambda: loop.step(share), 2)
        return {
            "tokens_per_s": round(1000 * share.numel() / took),
            "peak_gb": self.peak(),
            "first_s": round(first, 1),
        }

    @property
    def fast(self) -> bool:
        return self.device.type == "cuda"

    def member(self, name: str) -> dict[str, Any]:
        settings = OPTIMIZERS[name]
        schema = build_schema(self.config.to_hf(), 3, settings)
        weights = {key: tensor.clone() for key, tensor in self.weights.items()}
        size = PassSize(self.micro, "off")
        arithmetic = Arithmetic(self.fast, self.fast)
        given: dict[str, Any] = {"device": self.device, "pass_size": size, "stopwatch": self.now}
        replica = Replica(schema, self.config, 0, weights, arithmetic=arithmetic, **given)
        began = self.now()
        replica.warm_up(self.document["max_position_embeddings"], False)
        found: dict[str, Any] = {"warm_up_s": round(self.now() - began, 1)}
        print(f"{name}: {found}", file=sys.stderr, flush=True)
        share = self.share(self.micro * (self.steps if settings.inner_steps else 2), 2)
        rounds = [replica.train(share, RATE, RATE, threading.Event()) for _ in range(3)]
        train, encode = (
            statistics.median(s)
            for s in zip(*((r.seconds, r.encode_seconds) for r in rounds[1:]), strict=True)
        )
        found |= {
            "tokens_per_s": round(share.numel() / train),
            "encode_ms": round(1000 * encode, 2),
        }
        if os.environ.get("PROFILE"):
            profiled(lambda: replica.train(share[: 3 * self.micro], RATE, RATE, threading.Event()))
        payloads = rounds[-1].payloads
        votes = dict[int, list[Votes]]()
        found["payload_mb"] = round(sum(map(len, payloads.values())) / 1e6, 2)

        def decode() -> None:
            for level, data in payloads.items():
                votes[level] = [
                    decode_level(data, schema.results, level, self.device) for _ in range(MEMBERS)
                ]

        found["decode_ms"] = self.timed(decode)
        found["apply_ms"] = self.timed(lambda: replica.apply(votes, RATE))
        if isinstance(settings, SparseLoCo) and settings.orthogonal_lr:
            by_mean = SparseLoCo(**{**vars(settings), "orthogonal_lr": 0.0})
            apply = MeanApply(schema.results, 0, replica.params, by_mean)
            found["apply_mean_ms"] = self.timed(lambda: apply.apply(votes, RATE))
        found["hash_ms"] = self.timed(replica.hashes)
        return found | {"peak_gb": self.peak()}


def over_plain(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return each member's speed and memory relative to the plain loop."""
    plain = found.get("plain")
    if plain is None:
        return {}
    ratios = {}
    for name in OPTIMIZERS.keys() & found.keys():
        own = found[name]
        ratios[name] = {"tokens_over_plain": own["tokens_per_s"] / plain["tokens_per_s"]}
        if plain["peak_gb"]:
            ratios[name]["memory_over_plain"] = own["peak_gb"] / plain["peak_gb"]
    return ratios


def against_bars(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the figures as lines that say whether the member reaches its limits."""
    ratios = over_plain(found)
    lines = []
    for name in (name for name in OPTIMIZERS if name in found):
        own = found[name] | ratios.get(name, {})
        for what, bar in BARS[name].items():
            if what not in own:
                continue
            reached = own[what] >= bar if what == "tokens_over_plain" else own[what] <= bar
            judged = "reached" if reached else "missed"
            lines.append(f"{name:12} {what:18} {own[what]:10.2f}   bar {bar:6.2f}   {judged}")
        lines += [f"{name:12} {what:18} {own[what]:10.2f}" for what in UNBARRED if what in own]
    return lines


def profiled(work: Callable[[], object]) -> None:
    """Print how a GPU's and the host's time is spent."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        work()
    for by in ("self_cuda_time_total", "self_cpu_time_total"):
        for line in (
            found.key_averages()
            .table(sort_by=by, row_limit=22, max_name_column_width=70)
            .splitlines()
        ):
            print(" ".join(line.split())[:200], file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"default: plain {' '.join(OPTIMIZERS)}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--small", action="store_true", help="use a small model, on the CPU if there is no GPU"
    )
    chosen = parser.parse_args()
    device = exact_device("cpu" if chosen.small and not torch.cuda.is_available() else "cuda:0")
    bench = Bench(device, chosen.small)
    found = dict[str, Any]()
    for name in chosen.parts or ["plain", *OPTIMIZERS]:
        found[name] = bench.plain() if name == "plain" else bench.member(name)
        print(
            f"{name}: {json.dumps(found[name])}",
            file=sys.stderr if chosen.json else sys.stdout,
            flush=True,
        )
    if chosen.json:
        print(json.dumps(found))
    elif not chosen.small:
        print(*against_bars(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
