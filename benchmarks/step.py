"""Measure a member's step against a plain PyTorch loop on the same shapes in the same run.

python benchmarks/step.py [--json] [--device cuda --precision bf16 --compile on]
python benchmarks/step.py [--model 124M --members 8]
"""

# How it is measured:
# - A member of the light recipe, of tier 0, trains half of a round (4 sequences of 512 tokens),
#   encodes it, and decodes and applies the results of three members. That is the code of `train`.
# - It does so with the recipe's DisTrO, and with SparseLoCo and its four inner steps, of AdamW
#   with few numbers or of Muon with all of them (`outer_muon`, what docs/experiments.md
#   recommends).
# - The plain loop (`benchmarks/plain_loop.py`) takes a step of AdamW on the same share, and four of
#   them against SparseLoCo. Both take turns in another order each time, and ratios are of
#   medians.
# - `train_over_plain` is the member's tokens per second while it trains over the loop's;
#   `with_encode_over_plain` is that of training and encoding.
# - `encode_of_step`, `decode_of_step` and `apply_of_step` are parts of the whole step. The two
#   ratios at the top are the lowest of those below.

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.optim.codec import decode_level
from aftermath.optim.level_votes import Votes
from aftermath.optim.schema import build_schema
from aftermath.replica.exactness import exact_device
from aftermath.replica.options import Arithmetic
from aftermath.replica.pass_size import PassSize
from aftermath.replica.passes import arithmetic_of
from aftermath.replica.replica import Replica
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo
from plain_loop import Loop, of_llama

MODEL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 260,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
"""The sizes of the light recipe (`config/solana-test/light-config.files.toml`), but with tied
embeddings.
"""
MODELS = {
    "light": MODEL,
    "124M": MODEL
    | {"hidden_size": 768, "intermediate_size": 3456, "num_hidden_layers": 12}
    | {"num_attention_heads": 12, "num_key_value_heads": 12},
}
TOKENS = 512
RATE = 4e-4
OPTIMIZERS: dict[str, Optimizer] = {
    "distro": Distro(topk_embeddings=64),
    "sparseloco": SparseLoCo(inner_steps=4),
    "outer_muon": SparseLoCo(
        inner_steps=4,
        inner_optimizer="muon",
        topk=4096,
        divisor="all",
        outer_lr=4.0,
        orthogonal_lr=1.5,
    ),
}
SHOWN = ("distro", "sparseloco")


def measure(
    optimizer: str,
    device: torch.device,
    arithmetic: Arithmetic,
    *,
    model: str,
    members: int,
    sequences: int,
    micro: int,
    repetitions: int,
) -> dict[str, float]:
    """Return the figures of one optimizer, with torch's current number of threads."""
    config = config_of(MODELS[model])
    settings = OPTIMIZERS[optimizer]
    weights = init_weights(config, 0)
    schema = build_schema(config.to_hf(), 3, settings)
    steps = settings.inner_steps or 1

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    replica = Replica(
        schema,
        config,
        0,
        {name: tensor.clone() for name, tensor in weights.items()},
        device=device,
        pass_size=PassSize(micro, "off"),
        stopwatch=now,
        arithmetic=arithmetic,
    )
    plain = of_llama(weights, heads=MODELS[model]["num_attention_heads"]).to(device)
    loop = Loop(
        plain, micro_batch=micro, steps=steps, bf16=arithmetic.bf16, compiled=arithmetic.compiled
    )
    draws = torch.Generator().manual_seed(1)
    spent = Spent(now)
    for repetition in range(repetitions + 1):
        share = torch.randint(0, 260, (sequences, TOKENS), generator=draws)
        turns: list[Callable[[], None]] = [
            lambda share=share: member_step(replica, share, members, spent),  # type: ignore[misc]
            lambda share=share: spent.time("plain", lambda: loop.step(share)),  # type: ignore[misc]
        ]
        for turn in turns if repetition % 2 else reversed(turns):
            turn()
        if not repetition:
            spent.forget()  # the first repetition only warms up and compiles
    return figures(spent, sequences * TOKENS)


class Spent:
    """Seconds of each task."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.seconds: dict[str, list[float]] = {}

    def time(self, what: str, work: Callable[[], object]) -> None:
        """Run `work` and record its time."""
        began = self._now()
        work()
        self.note(what, self._now() - began)

    def note(self, what: str, seconds: float) -> None:
        """Record a duration."""
        self.seconds.setdefault(what, []).append(seconds)

    def forget(self) -> None:
        """Delete all records."""
        self.seconds.clear()


def member_step(replica: Replica, share: Tensor, members: int, spent: Spent) -> None:
    """Train, encode, decode and apply this number of results."""
    trained = replica.train(share, RATE, RATE, threading.Event())
    spent.note("train", trained.seconds)
    spent.note("encode", trained.encode_seconds)
    results = replica.schema.results
    votes: dict[int, list[Votes]] = {}

    def decode() -> None:
        for level, payload in trained.payloads.items():
            votes[level] = [decode_level(payload, results, level) for _ in range(members)]

    spent.time("decode", decode)
    spent.time("apply", lambda: replica.apply(votes, RATE))


def figures(spent: Spent, tokens: int) -> dict[str, float]:
    """Return medians, their ratios, and speeds in tokens per second."""
    middle = {what: statistics.median(seconds) for what, seconds in spent.seconds.items()}
    train, encode, decode, apply, plain = (
        middle[what] for what in ("train", "encode", "decode", "apply", "plain")
    )
    step = train + encode + decode + apply
    return {
        "train_over_plain": round(plain / train, 3),
        "with_encode_over_plain": round(plain / (train + encode), 3),
        "train_tokens_per_s": round(tokens / train),
        "with_encode_tokens_per_s": round(tokens / (train + encode)),
        "plain_tokens_per_s": round(tokens / plain),
        "encode_of_step": round(encode / step, 4),
        "decode_of_step": round(decode / step, 4),
        "apply_of_step": round(apply / step, 4),
    } | {f"{what}_ms": round(1000 * seconds, 1) for what, seconds in middle.items()}


def report(
    device: torch.device,
    arithmetic: Arithmetic,
    threads: Sequence[int],
    optimizers: Sequence[str],
    **sizes: Any,
) -> dict[str, Any]:
    """Return all figures by optimizer and threads, and the lowest ratios of them."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for optimizer in optimizers:
        for count in threads:
            torch.set_num_threads(count)
            found.setdefault(optimizer, {})[str(count)] = measure(
                optimizer, device, arithmetic, **sizes
            )
    each = [figures for by_threads in found.values() for figures in by_threads.values()]
    lowest = {
        name: min(figures[name] for figures in each)
        for name in ("train_over_plain", "with_encode_over_plain")
    }
    precision = "bf16" if arithmetic.bf16 else "fp32"
    return (
        lowest
        | {"device": device.type, "precision": precision, "compiled": arithmetic.compiled}
        | sizes
        | found
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="same as for train (default cpu)")
    parser.add_argument(
        "--precision", choices=("auto", "fp32", "bf16"), default="auto", help="same as for train"
    )
    parser.add_argument(
        "--compile", choices=("auto", "on", "off"), default="auto", help="same as for train"
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], help="CPU threads (default 1 2)"
    )
    parser.add_argument("--optimizers", nargs="+", choices=sorted(OPTIMIZERS), default=SHOWN)
    parser.add_argument(
        "--model", choices=MODELS, default="light", help="shapes of the model (default light)"
    )
    parser.add_argument(
        "--members", type=int, default=3, help="number of applied results (default 3)"
    )
    parser.add_argument("--sequences", type=int, default=4, help="sequences of a share (default 4)")
    parser.add_argument("--micro", type=int, default=4, help="sequences in one pass (default 4)")
    parser.add_argument(
        "--repetitions", type=int, default=5, help="repetitions of the step (default 5)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    device = exact_device(chosen.device)
    found = report(
        device,
        arithmetic_of(device, chosen.precision, chosen.compile),
        chosen.threads,
        chosen.optimizers,
        model=chosen.model,
        members=chosen.members,
        sequences=chosen.sequences,
        micro=chosen.micro,
        repetitions=chosen.repetitions,
    )
    if chosen.json:
        print(json.dumps(found))
        return
    for optimizer in chosen.optimizers:
        for count, figures in found[optimizer].items():
            print(
                f"{optimizer}, threads {count}: "
                + ", ".join(f"{name} {value}" for name, value in figures.items())
            )


if __name__ == "__main__":
    main()
