"""Whether a GPU does what a member needs, how fast, and what it holds; `make gpu-check` calls it.

Usage: python benchmarks/gpu.py

On the first CUDA device: the tests that need one, Triton's kernels and ranks that speak NCCL among them; whether these
kernels can be used; whether results applied there leave the hashes that the CPU leaves, for the light recipe's model
and every optimizer; the demonstration, with its largest member on the GPU and the others on the CPU;
`benchmarks/step.py` in bf16; and the most bytes that a member of each tier of both recipes held at once, in fp32 and in
bf16, training one sequence at a time. What was found is kept in `benchmarks/measured/gpu.json`. It ends with 1, and
keeps nothing, without a GPU, and if a test, a hash or the demonstration fails.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfig
from aftermath.optim.codec import decode_level
from aftermath.optim.distro import Distro
from aftermath.optim.layout import level_layout
from aftermath.optim.on_gpu import chooses, counts
from aftermath.optim.schema import Settings, build_schema
from aftermath.optim.sparseloco import SparseLoCo
from aftermath.replica.arithmetic import Arithmetic
from aftermath.replica.pass_size import OutOfMemory, PassSize
from aftermath.replica.replica import Replica
from measure import ON_A_GPU, write

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")
LIGHT = {"hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8}
LARGE = {"hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4}
MODELS: dict[str, dict[str, int]] = {
    "light": {"vocab_size": 260, "intermediate_size": 1024, "max_position_embeddings": 512} | LIGHT,
    "test": {"vocab_size": 260, "intermediate_size": 5632, "max_position_embeddings": 2048} | LARGE,
}
"""The recipes' models, as `scripts/setup-run.sh` makes them."""
DISTRO = Distro(8, 64, chunk=64, quantize_1bit=True, decay=0.999, weight_decay=0.01, clip=1.0)
OPTIMIZERS: dict[str, Settings] = {
    "distro": DISTRO,
    "distro_float": Distro(8, 64, chunk=64, quantize_1bit=False, decay=0.999, weight_decay=0.01, clip=1.0),
    "sparseloco": SparseLoCo(inner_steps=2),
    "sparseloco_polar": SparseLoCo(inner_steps=2, orthogonal_lr=12.0),
}
TESTS = ("tests/replica/test_on_cuda.py", "tests/kernels/test_kernels_gpu.py", "tests/ranks/test_ranks_nccl.py")
TIERS, ROUNDS, RATE = 3, 2, 1e-3


def main() -> int:
    """Check and measure; 1 without a GPU, or if something is not as it must be."""
    if not torch.cuda.is_available():
        print("error: this machine has no CUDA device, so there is nothing to check", file=sys.stderr)
        return 1
    from aftermath.replica.exactness import exact_device

    load, device = os.getloadavg()[0], exact_device("cuda:0")
    tests = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *TESTS], cwd=ROOT)
    equal = {name: exactness(MODELS["light"], name, device) for name in OPTIMIZERS}
    print(f"hashes as on the CPU: {equal}", file=sys.stderr, flush=True)
    if tests.returncode or not all(equal.values()):
        print("error: this GPU must not train: see above", file=sys.stderr)
        return 1
    if (run := demo()) is None:
        print("error: the demonstration failed with a member on this GPU: see above", file=sys.stderr)
        return 1
    figures = {
        "gpu": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "hashes_equal": equal,
        "kernels": kernels(device),
        "demo": run,
        "step": step(),
        "memory": {model: {kind: peaks(model, kind, device) for kind in ("fp32", "bf16")} for model in MODELS},
    }
    write("gpu", ON_A_GPU["gpu"], load, figures)
    print(json.dumps(figures, indent=1))
    return 0


def exactness(model: Mapping[str, int], optimizer: str, device: torch.device) -> bool:
    """Whether rounds of results that both apply leave the same hashes of every level on a device and on the CPU."""
    config = config_of(model)
    schema = build_schema(config.to_hf(), TIERS, OPTIMIZERS[optimizer])
    here, there = (_replica(config, 0, OPTIMIZERS[optimizer], place) for place in (device, CPU))
    peers = [_replica(config, tier, OPTIMIZERS[optimizer], CPU) for tier in range(TIERS)]
    for number in range(ROUNDS):
        trained = [peer.train(_tokens(config, number * TIERS + peer.tier, 64), RATE, RATE, _never()) for peer in peers]
        for replica in (here, there, *peers):
            votes = {
                level: [
                    decode_level(own.payloads[level], schema.results, level) for own in trained if level in own.payloads
                ]
                for level in replica.levels
            }
            replica.apply(votes, RATE)
    return here.hashes() == there.hashes() == peers[0].hashes()


def kernels(device: torch.device) -> Mapping[str, bool]:
    """By optimizer whether its results are chosen and counted by kernels there, where there are kernels for it."""
    found = {}
    for name, settings in OPTIMIZERS.items():
        results = build_schema(MODELS["light"] | {"model_type": "llama"}, TIERS, settings).results
        layouts = [level_layout(results, level) for level in range(TIERS)]
        groups = {(group.block, group.topk) for layout in layouts for group in layout.groups}
        chosen = [chooses(device, block, topk, results.values.lattice_bits) for block, topk in groups]
        found[name] = all(chosen) and counts(device, layouts)
    return found


def demo() -> Any:
    """The report of a demonstration whose member of tier 0 trains there, None if it fails."""
    with tempfile.TemporaryDirectory(prefix="aftermath-gpu-") as folder:
        place = Path(folder) / "demo"
        line = [sys.executable, "-m", "aftermath.demo", "--device", "cuda:0", "--dir", str(place)]
        done = subprocess.run(line, cwd=ROOT, stdout=sys.stderr)
        return json.loads((place / "demo-report.json").read_text()) if done.returncode == 0 else None


def step() -> Any:
    """What `benchmarks/step.py` finds in bf16, without compiling and with it."""
    found = {}
    for name, compiled in (("plain", "off"), ("compiled", "on")):
        command = [sys.executable, "benchmarks/step.py", "--json", "--device", "cuda:0"]
        options = ["--precision", "bf16", "--compile", compiled, "--threads", "2"]
        done = subprocess.run([*command, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        found[name] = json.loads(done.stdout)
    return found


def peaks(model: str, precision: str, device: torch.device) -> Sequence[int | None]:
    """By tier the most bytes that PyTorch held on the device; None where it was too small."""
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
            votes = {level: [decode_level(data, results, level)] for level, data in trained.payloads.items()}
            replica.apply(votes, RATE)
            found.append(torch.cuda.max_memory_allocated(device))
        except (OutOfMemory, torch.OutOfMemoryError):
            found.append(None)
    return found


def _replica(
    config: ModelConfig, tier: int, settings: Settings, device: torch.device, arithmetic: Arithmetic | None = None
) -> Replica:
    """With weights that all tiers share."""
    whole = _weights(json.dumps(config.to_hf()))
    weights = {name: whole[name][tuple(map(slice, own))].clone() for name, own in config.parameter_shapes(tier).items()}
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
    """All tensors of the model of this config.json."""
    draws = torch.Generator().manual_seed(0)
    shapes = config_of(json.loads(document)).parameter_shapes()
    return {
        name: torch.ones(shape) if "norm" in name else torch.randn(shape, generator=draws) * 0.02
        for name, shape in shapes.items()
    }


def _tokens(config: ModelConfig, seed: int, length: int) -> Tensor:
    """Two sequences."""
    return torch.randint(config.vocab_size, (2, length), generator=torch.Generator().manual_seed(seed))


def _never() -> threading.Event:
    return threading.Event()


if __name__ == "__main__":
    sys.exit(main())
