"""Measure how far honest and dishonest computations of a pseudo-gradient are from a reference.

An audit trains a member's share again and compares the results. This measures what it can tell.

    audit_distance.py [--device cuda] [--inner adamw muon] [--steps 1 4 30] [--keep]
"""

# How it is measured:
# - The round is trained in several ways. Each is compared with the reference, which has the
#   precision `--precision`.
# - Honest ways start from the same weights, data and moments. `again` repeats the reference.
#   `micro` halves the micro-batch. `other` has the other precision. `compiled` compiles the
#   passes. `cpu` runs on the CPU instead of a GPU (fp32 only). `threads` uses half of the CPU
#   threads.
# - Dishonest ways: `skip_1`, `skip_3` and `skip_half` leave out inner steps at the end. `stale`
#   starts from the weights of the round before. `other_data` trains on other data. `direction`
#   adds 5 % of the norm along a fixed random direction.
# - Each case has figures over the 64 x 64 blocks of matrices. `distance` is the norm of the
#   difference over the norm of the reference (median, 99.9th percentile, maximum). `overlap` is
#   the part of the 64 largest entries that both have. `signs` is the part of entries with equal
#   signs. `whole` is the distance of all blocks as one vector. `loss` is the largest difference
#   of an inner step's mean loss. `bits` is a hash of the reference: two devices of one kind
#   (`aftermath.replica.device_kind`) must print the same for bf16.
# - With `--moments kept` the optimizer starts with the moments of one round before; with `reset`
#   it starts without moments.

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sysconfig
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.inner_steps import InnerSteps
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.schema import build_schema
from aftermath.replica.device_kind import device_kind
from aftermath.replica.exactness import exact_device
from aftermath.replica.options import PLAIN, Arithmetic
from aftermath.replica.passes import Passes
from aftermath.replica.replica import accumulate
from aftermath.rules.sparseloco import SparseLoCo
from measure import BY_ITSELF, ON_A_GPU, write

MODEL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
RATES = {"adamw": 1e-3, "muon": 1e-2}
TOPK = 64
DIRECTION = 0.05
WARM_UP_STEPS = 30


@dataclass(frozen=True)
class Way:
    """One way to train a round."""

    device: torch.device
    micro: int
    arithmetic: Arithmetic = PLAIN
    threads: int | None = None
    """CPU threads. None uses all."""


@dataclass(frozen=True)
class Round:
    """The settings, weights, moments and data of one round."""

    settings: SparseLoCo
    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]
    """The moments by the names of `InnerSteps.state`. Empty for a new optimizer."""
    share: Tensor
    """Token ids [inner steps x sequences, tokens]."""


@dataclass(frozen=True)
class Outcome:
    """The result of training a round in one way, on the CPU."""

    blocks: Tensor
    """The pseudo-gradient's blocks of matrices [blocks, numbers]."""
    losses: Tensor
    """Mean loss of each inner step."""
    tensors: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]
    seconds: float


def train(task: Round, way: Way) -> Outcome:
    """Train one round in one way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(way.threads or threads)
    try:
        return _train(task, way)
    finally:
        torch.set_num_threads(threads)


def _train(task: Round, way: Way) -> Outcome:
    config = config_of(MODEL)
    model = config.build(
        0, {name: tensor.to(way.device, copy=True) for name, tensor in task.weights.items()}
    )
    params = dict(model.named_parameters())
    passes = Passes(model, way.arithmetic)
    step = InnerSteps(params, task.settings, ahead=_no_result_travels, balances=config.balances)
    if task.moments:
        step.restore(task.moments)
    losses: list[float] = []

    def backward(part: Tensor) -> float:
        losses.append(accumulate(passes, part, way.micro, threading.Event()))
        return losses[-1]

    began = time.perf_counter()
    rate = RATES[task.settings.inner_optimizer]
    made = step.make(task.share, backward, rate, rate, travelling=False)
    blocks = _blocks(task.settings, params, made)
    seconds = time.perf_counter() - began
    tensors = {name: tensor.cpu() for name, tensor in made.tensors.items()}
    return Outcome(blocks, torch.tensor(losses), tensors, step.state(), seconds)


def _no_result_travels(lr: float) -> None:
    raise AssertionError(f"no earlier result is applied here (rate {lr})")


def _blocks(settings: SparseLoCo, params: Mapping[str, Tensor], made: PseudoGradient) -> Tensor:
    """Return the blocks of the pseudo-gradient's matrices, on the CPU."""
    schema = build_schema(config_of(MODEL).to_hf(), 1, settings)
    feedback = ErrorFeedback(schema.results, 0, params, settings.decay)
    feedback.choose(made)
    edge = settings.chunk
    return torch.cat(
        [
            block.flatten(1).cpu()
            for _, block in feedback.residual()
            if block.shape[1:] == (edge, edge)
        ]
    )


def compared(reference: Outcome, other: Outcome) -> dict[str, Any]:
    """Return the figures that compare `other` with the reference."""
    difference = (reference.blocks - other.blocks).norm(dim=1)
    size = reference.blocks.norm(dim=1)
    changed = size > 0  # embeddings of bytes that the text lacks do not move
    distance = difference[changed] / size[changed]
    first, second = (
        outcome.blocks[changed].abs().topk(TOPK).indices for outcome in (reference, other)
    )
    overlap = (first[:, :, None] == second[:, None, :]).any(2).float().mean(1)
    signs = (reference.blocks[changed].sign() == other.blocks[changed].sign()).float().mean(1)
    steps = min(len(reference.losses), len(other.losses))
    return {
        "distance": _high(distance),
        "overlap": _low(overlap),
        "signs": _low(signs),
        "whole": _short(difference.norm() / size.norm()),
        "loss": _short((reference.losses[:steps] - other.losses[:steps]).abs().max()),
        "equal": bool(torch.equal(reference.blocks, other.blocks)),
        "seconds": round(other.seconds, 2),
    }


def _high(values: Tensor) -> dict[str, float]:
    return {
        "median": _short(values.median()),
        "p99.9": _short(values.quantile(0.999)),
        "most": _short(values.max()),
    }


def _low(values: Tensor) -> dict[str, float]:
    return {
        "median": _short(values.median()),
        "p0.1": _short(values.quantile(0.001)),
        "least": _short(values.min()),
    }


def _short(number: Tensor) -> float:
    return float(f"{float(number):.3g}")


def ways(device: torch.device, sizes: argparse.Namespace) -> tuple[Way, dict[str, Way]]:
    """Return the reference, and the honest ways to compare with it."""
    bf16 = sizes.precision == "bf16"
    reference = Way(device, sizes.micro, Arithmetic(bf16=bf16))
    found = {"again": reference, "micro": replace(reference, micro=sizes.micro // 2)}
    found["other"] = replace(reference, arithmetic=Arithmetic(bf16=not bf16))
    if sizes.compiled:
        found["compiled"] = replace(reference, arithmetic=Arithmetic(bf16=bf16, compiled=True))
    if device.type == "cpu":
        found["threads"] = replace(reference, threads=max(1, torch.get_num_threads() // 2))
    elif not bf16:
        found["cpu"] = replace(reference, device=torch.device("cpu"))
    return reference, found


def dishonest(
    task: Round, before: Mapping[str, Tensor], other: Tensor, steps: int
) -> dict[str, Round]:
    """Return rounds that a dishonest member may train: fewer inner steps, old weights `before`, or
    `other` data.
    """
    found = {"stale": replace(task, weights=before), "other_data": replace(task, share=other)}
    each = len(task.share) // steps
    for name, left_out in (("skip_1", 1), ("skip_3", 3), ("skip_half", steps // 2)):
        if 0 < left_out < steps:
            settings = replace(task.settings, inner_steps=steps - left_out)
            found[name] = replace(
                task, settings=settings, share=task.share[: each * (steps - left_out)]
            )
    return found


def with_direction(outcome: Outcome) -> Outcome:
    """Return the outcome with a fixed random direction added."""
    direction = torch.randn(outcome.blocks.shape, generator=torch.Generator().manual_seed(5))
    added = direction * (DIRECTION * outcome.blocks.norm() / direction.norm())
    return replace(outcome, blocks=outcome.blocks + added)


def measure(
    device: torch.device, inner: str, steps: int, moments: str, sizes: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of all cases of one round."""
    settings = SparseLoCo(inner_steps=steps, inner_optimizer=inner)  # type: ignore[arg-type]
    text = tokens(sizes.sequences * (WARM_UP_STEPS + 2 * steps), sizes.tokens)
    warm, share, other = text.split([sizes.sequences * n for n in (WARM_UP_STEPS, steps, steps)])
    weights = init_weights(config_of(MODEL), 0)
    reference, honest = ways(device, sizes)
    past = train(Round(replace(settings, inner_steps=WARM_UP_STEPS), weights, {}, warm), reference)
    reached = {name: tensor - past.tensors[name] for name, tensor in weights.items()}
    task = Round(settings, reached, past.moments if moments == "kept" else {}, share)
    known = train(task, reference)
    figures = {name: compared(known, train(task, way)) for name, way in honest.items()}
    for name, round_ in dishonest(task, weights, other, steps).items():
        figures[name] = compared(known, train(round_, reference))
    bits = hashlib.sha256(known.blocks.numpy().tobytes()).hexdigest()[:16]
    return figures | {"direction": compared(known, with_direction(known)), "bits": bits}


def tokens(sequences: int, length: int) -> Tensor:
    """Return byte sequences [sequences, length] from random places in Python's standard library."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = torch.frombuffer(
        bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8
    )
    places = torch.randint(
        len(text) - length, (sequences,), generator=torch.Generator().manual_seed(3)
    )
    return torch.stack([text[place : place + length] for place in places.tolist()]).long()


def report(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures, by inner optimizer, inner steps and moments."""
    found: dict[str, Any] = {
        "device": device_kind(device) or device.type,
        "torch": torch.__version__,
        "precision": options.precision,
        "tokens_per_step": options.sequences * options.tokens,
    }
    for inner in options.inner:
        for steps in options.steps:
            for moments in options.moments:
                figures = measure(device, inner, steps, moments, options)
                found.setdefault(inner, {}).setdefault(str(steps), {})[moments] = figures
                _show(
                    f"{inner}, {steps} inner steps, moments {moments}", figures, quiet=options.json
                )
    return found


def _show(title: str, cases: Mapping[str, Any], *, quiet: bool) -> None:
    if quiet:
        return
    print(f"{title}, bits {cases['bits']}", flush=True)
    for name, case in cases.items():
        if name == "bits":
            continue
        distance = case["distance"]
        overlap = case["overlap"]
        print(
            f"  {name:14} whole {case['whole']:.2e}  distance {distance['median']:.2e} (most {distance['most']:.2e})  "
            f"overlap {overlap['median']:.3f} (least {overlap['least']:.3f})  loss {case['loss']:.1e}  "
            f"{'equal bits, ' if case['equal'] else ''}{case['seconds']} s",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="same as for train (default cpu)")
    parser.add_argument("--inner", nargs="+", choices=sorted(RATES), default=["adamw", "muon"])
    parser.add_argument(
        "--steps", nargs="+", type=int, default=[1, 4, 30], help="inner steps (default 1 4 30)"
    )
    parser.add_argument(
        "--moments", nargs="+", choices=("kept", "reset"), default=["kept", "reset"]
    )
    parser.add_argument(
        "--sequences", type=int, default=8, help="sequences in an inner step (default 8)"
    )
    parser.add_argument(
        "--tokens", type=int, default=256, help="tokens in a sequence (default 256)"
    )
    parser.add_argument("--micro", type=int, default=8, help="sequences in one pass (default 8)")
    parser.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        default="fp32",
        help="precision of the reference (default fp32)",
    )
    parser.add_argument("--compiled", action="store_true", help="compare compiled passes as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/measured/spread.json, or spread-bf16"
    )
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    found = report(exact_device(options.device), options)
    if options.keep:
        if options.precision == "bf16":
            write("spread-bf16", BY_ITSELF["spread-bf16"], load, found)
        else:
            write("spread", ON_A_GPU["spread"], load, found)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
