"""Measure whether a GPU does what a member needs, how fast, and its memory; for `make gpu-check`.

python benchmarks/gpu.py [PART ...]    run these parts on the first CUDA device, or all of them
"""

# The parts:
# - tests: those that need a GPU, including Triton's kernels and ranks with NCCL
# - hashes: whether results applied on the GPU leave the CPU's hashes, for the light recipe's
#   model and each optimizer
# - kernels: whether Triton's kernels can be used
# - demo: the demonstration, with its largest member on the GPU and the others on the CPU
# - step: `benchmarks/step.py` of the light recipe in bf16
# - large: `benchmarks/gpu_member.py`, a member of 124 million parameters against a plain loop
# - lab: `benchmarks/lab_speed.py`, eight members of 10.8 million parameters that `train-local`
#   trains at once, 63 million tokens in at most two minutes; and one after another while time is
#   left
# - memory: peak bytes of a member of each tier of both recipes, in fp32 and bf16, with one
#   sequence at a time
# - A part's figures are in `benchmarks/measured/gpu.json` as soon as it ends, next to those of
#   other parts on the same kind of GPU with the same PyTorch: a GPU may be available for minutes
#   only.
# - The exit code is 1 without a GPU, and after the first part that fails. Its figures are not
#   kept.

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

import torch
from torch import Tensor

import lab_speed
from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfig
from aftermath.optim import packed_dense, packed_sparse
from aftermath.optim.codec import decode_level
from aftermath.optim.gpu_choice import chooses
from aftermath.optim.layout import level_layout
from aftermath.optim.result_format import Values
from aftermath.optim.schema import build_schema
from aftermath.replica.exactness import exact_device
from aftermath.replica.options import Arithmetic
from aftermath.replica.pass_size import OutOfMemory, PassSize
from aftermath.replica.replica import Replica
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo
from gpu_member import against_bars
from measure import MEASURED, ON_A_GPU, printed_by, report_of_demo, write
from memory import document_of

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")
MODELS = {
    name: document_of(name) | {"max_position_embeddings": tokens}
    for name, tokens in (("light", 512), ("test", 2048))
}
"""The recipes' models, with their sequence lengths."""
DISTRO = Distro(
    topk=8,
    topk_embeddings=64,
    chunk=64,
    quantize_1bit=True,
    decay=0.999,
    weight_decay=0.01,
    clip=1.0,
)
OPTIMIZERS: dict[str, Optimizer] = {
    "distro": DISTRO,
    "distro_float": Distro(
        topk=8,
        topk_embeddings=64,
        chunk=64,
        quantize_1bit=False,
        decay=0.999,
        weight_decay=0.01,
        clip=1.0,
    ),
    "sparseloco": SparseLoCo(inner_steps=2),
    "sparseloco_polar": SparseLoCo(inner_steps=2, orthogonal_lr=12.0),
    "sparseloco_whole": SparseLoCo(inner_steps=2, topk=4096, outer_lr=0.7),
    "outer_muon": SparseLoCo(
        inner_steps=2, inner_optimizer="muon", topk=4096, divisor="all", orthogonal_lr=1.5
    ),
}
TESTS = (
    "tests/replica/test_on_cuda.py",
    "tests/kernels/test_kernels_gpu.py",
    "tests/parallel/test_parallel_nccl.py",
    "tests/lab/test_lab_on_cuda.py",
)
TIERS = 3
PART_SECONDS = 180
"""The longest a part of `large` may take. A GPU may be available for minutes only."""
ROUNDS = 2
RATE = 1e-3


def main() -> int:
    """Check and measure. Return 1 without a GPU, or if a part fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {' '.join(PARTS)}")
    names = parser.parse_args().parts or list(PARTS)
    if unknown := sorted(set(names) - PARTS.keys()):
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    if not torch.cuda.is_available():
        print(
            "error: this machine has no CUDA device, so there is nothing to check", file=sys.stderr
        )
        return 1
    device = exact_device("cuda:0")
    for name in names:
        load = os.getloadavg()[0]
        found = PARTS[name](device)
        print(f"{name}: {json.dumps(found)}", flush=True)
        if found is None:
            print(f"error: this GPU must not train: {name} failed, see above", file=sys.stderr)
            return 1
        keep(device, load, name, found)
    return 0


def keep(device: torch.device, load: float, part: str, found: Any) -> None:
    """Add a part's result to the file of this GPU model and PyTorch version."""
    own = {"gpu": torch.cuda.get_device_name(device), "torch": torch.__version__}
    path = MEASURED / "gpu.json"
    kept = json.loads(path.read_text())["figures"] if path.exists() else {}
    if any(kept.get(name) != value for name, value in own.items()):
        kept = own
    write("gpu", ON_A_GPU["gpu"], load, kept | {part: found})


def tests(device: torch.device) -> Any:
    """Return the number of passed tests, or None if one failed."""
    del device
    command = [sys.executable, "-m", "pytest", "-n", "4", "-m", "not slow and not nightly", *TESTS]
    done = subprocess.run(command, cwd=ROOT, stdout=PIPE, text=True)
    print(done.stdout, file=sys.stderr, flush=True)
    return (
        None if done.returncode else {"passed": int(re.findall(r"(\d+) passed", done.stdout)[-1])}
    )


def hashes(device: torch.device) -> Any:
    """Return, by optimizer, whether the hashes equal the CPU's, or None if any differ."""
    equal = {name: exactness(MODELS["light"], name, device) for name in OPTIMIZERS}
    print(f"hashes as on the CPU: {equal}", file=sys.stderr, flush=True)
    return equal if all(equal.values()) else None


def exactness(model: Mapping[str, int], optimizer: str, device: torch.device) -> bool:
    """Return whether the device and the CPU have the same hash of every level after they applied
    the same results.
    """
    config = config_of(model)
    schema = build_schema(config.to_hf(), TIERS, OPTIMIZERS[optimizer])
    here, there = (_replica(config, 0, OPTIMIZERS[optimizer], place) for place in (device, CPU))
    peers = [_replica(config, tier, OPTIMIZERS[optimizer], CPU) for tier in range(TIERS)]
    for number in range(ROUNDS):
        trained = [
            peer.train(_tokens(config, number * TIERS + peer.tier, 64), RATE, RATE, _never())
            for peer in peers
        ]
        for replica in (here, there, *peers):
            votes = {
                level: [
                    decode_level(own.payloads[level], schema.results, level, replica.device)
                    for own in trained
                    if level in own.payloads
                ]
                for level in replica.levels
            }
            replica.apply(votes, RATE)
    return here.hashes() == there.hashes() == peers[0].hashes()


def kernels(device: torch.device) -> Mapping[str, bool]:
    """Return, by optimizer, whether kernels on the device encode and count its results.

    Votes of floats are counted on the CPU.
    """
    found = {}
    for name, settings in OPTIMIZERS.items():
        results = build_schema(MODELS["light"] | {"model_type": "llama"}, TIERS, settings).results
        layouts = [level_layout(results, level) for level in range(TIERS)]
        groups = {(group.block, group.topk) for layout in layouts for group in layout.groups}
        chosen = [
            chooses(device, block, topk, results.values.lattice_bits) for block, topk in groups
        ]
        counted = [
            packed_dense.usable(device, results.values.bits)
            if results.is_dense(level)
            else packed_sparse.usable(device, results.values)
            for level in range(TIERS)
            if results.values is not Values.FLOAT
        ]
        found[name] = all(chosen) and all(counted)
    return found


def demo(device: torch.device) -> Any:
    """Return the report of a demo whose tier-0 member uses this device, or None if it failed."""
    return report_of_demo("--device", str(device))


def step(device: torch.device) -> Any:
    """Return the figures of `benchmarks/step.py` in bf16, with and without compilation."""
    return {
        name: _step(device, "--compile", compiled, "--threads", "2")
        for name, compiled in (("plain", "off"), ("compiled", "on"))
    }


def large(device: torch.device) -> Any:
    """Return the figures of `benchmarks/gpu_member.py`. Each part runs in its own process and is
    saved at once.
    """
    found: dict[str, Any] = {}
    load = os.getloadavg()[0]
    for part in ("plain", "distro", "sparseloco", "outer_muon"):
        line = shlex.join(["python", "benchmarks/gpu_member.py", "--json", part])
        figures = printed_by(line, seconds=PART_SECONDS)
        if figures is None:
            return None
        found |= figures
        keep(device, load, "large", found)
    print(*against_bars(found), sep="\n", flush=True)
    return found


def lab(device: torch.device) -> Any:
    """Return the figures of lab_speed.py, measured in at most `PART_SECONDS`."""
    del device
    found: dict[str, Any] = {}
    began = time.monotonic()
    for part in lab_speed.PARTS:
        left = PART_SECONDS - (time.monotonic() - began)
        line = shlex.join(["python", "benchmarks/lab_speed.py", "--json", part])
        figures = printed_by(f"{line} --seconds {0.8 * left:.0f}", seconds=left)
        if figures is None:
            break
        found |= figures
    if "stacked" not in found:
        return None
    print(lab_speed.against_bar(found), flush=True)
    return found


def _step(device: torch.device, *options: str) -> Any:
    line = [
        "python",
        "benchmarks/step.py",
        "--json",
        "--device",
        str(device),
        "--precision",
        "bf16",
        *options,
    ]
    return printed_by(shlex.join(line))


def memory(device: torch.device) -> Any:
    """Return the peak bytes of each model, by precision and tier."""
    return {
        model: {kind: peaks(model, kind, device) for kind in ("fp32", "bf16")} for model in MODELS
    }


def peaks(model: str, precision: str, device: torch.device) -> Sequence[int | None]:
    """Return the peak bytes of PyTorch on the device by tier, or None where it was too small."""
    config = config_of(MODELS[model])
    found: list[int | None] = []
    for tier in range(TIERS):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        try:
            replica = _replica(config, tier, DISTRO, device, Arithmetic(bf16=precision == "bf16"))
            share = _tokens(config, tier, config.max_position_embeddings)
            trained = replica.train(share, RATE, RATE, _never())
            results = replica.schema.results
            votes = {
                level: [decode_level(data, results, level)]
                for level, data in trained.payloads.items()
            }
            replica.apply(votes, RATE)
            found.append(torch.cuda.max_memory_allocated(device))
        except (OutOfMemory, torch.OutOfMemoryError):
            found.append(None)
    return found


def _replica(
    config: ModelConfig,
    tier: int,
    settings: Optimizer,
    device: torch.device,
    arithmetic: Arithmetic | None = None,
) -> Replica:
    """Return a replica whose weights are a slice of the same whole model in all tiers."""
    whole = _weights(json.dumps(config.to_hf()))
    weights = {
        name: whole[name][tuple(map(slice, own))].clone()
        for name, own in config.parameter_shapes(tier).items()
    }
    return Replica(
        build_schema(config.to_hf(), TIERS, settings),
        config,
        tier,
        weights,
        device=device,
        pass_size=PassSize(1, "off"),
        stopwatch=lambda: 0.0,
        arithmetic=arithmetic or Arithmetic(),
    )


@functools.lru_cache(maxsize=1)
def _weights(document: str) -> Mapping[str, Tensor]:
    """Return all weights of the model of a config.json."""
    draws = torch.Generator().manual_seed(0)
    shapes = config_of(json.loads(document)).parameter_shapes()
    return {
        name: torch.ones(shape) if "norm" in name else torch.randn(shape, generator=draws) * 0.02
        for name, shape in shapes.items()
    }


def _tokens(config: ModelConfig, seed: int, length: int) -> Tensor:
    """Return two sequences."""
    return torch.randint(
        config.vocab_size, (2, length), generator=torch.Generator().manual_seed(seed)
    )


def _never() -> threading.Event:
    return threading.Event()


PARTS = {
    "tests": tests,
    "hashes": hashes,
    "kernels": kernels,
    "demo": demo,
    "step": step,
    "large": large,
    "lab": lab,
    "memory": memory,
}

if __name__ == "__main__":
    sys.exit(main())
