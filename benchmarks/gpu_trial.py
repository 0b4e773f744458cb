"""What a GPU says of exactness and of times, for a few minutes with one."""

from __future__ import annotations

import sys
import time
import traceback

import torch
from torch.profiler import ProfilerActivity, profile

from aftermath.optim import flat, on_gpu, packed
from aftermath.optim.codec import decode_level
from aftermath.optim.mean import MeanApply
from aftermath.optim.parts import PseudoGradient
from aftermath.optim.schema import build_schema
from aftermath.optim.sparseloco import SparseLoCo
from aftermath.replica.exactness import exact_device
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from large import MEMBERS, OPTIMIZERS, RATE, Bench

SMALL = "small" in sys.argv


def proofs(device: torch.device) -> None:
    from replica.whole_round import OPTIMIZERS as TINY, play

    checks = {
        "choose 4096/4096": lambda: on_gpu.chooses(device, 4096, 4096, 2),
        "choose 4096/64": lambda: on_gpu.chooses(device, 4096, 64, 2),
        "choose 3968": lambda: on_gpu.chooses(device, 3968, 3968, 2),
        "count": lambda: on_gpu._counting(device),
        "move": lambda: flat.works(device),
        "packed 2": lambda: packed.usable(device, 2),
        "packed 1": lambda: packed.usable(device, 1),
    }
    found = {}
    for name, check in checks.items():
        began = time.perf_counter()
        found[name] = (check(), round(time.perf_counter() - began, 2))
    print(found, flush=True)
    from aftermath.optim import sparse_payloads
    from aftermath.optim.format import Values

    for kind in (Values.TWO_BIT, Values.ONE_BIT, Values.SIGN):
        began = time.perf_counter()
        print(kind, "sparse payloads:", sparse_payloads._alike(device, kind), round(time.perf_counter() - began, 2), flush=True)
    cpu = torch.device("cpu")
    same = {}
    for name in TINY:
        try:
            there = play("llama", name, cpu)
            here = play("llama", name, device, given=there.payloads)
            same[name] = here.hashes == there.hashes and here.loaded == there.hashes
        except Exception:  # a trial goes on
            traceback.print_exc()
            same[name] = "raised"
        print(name, same[name], flush=True)
    print("hashes as on the CPU:", same)


def codec(device: torch.device) -> None:
    bench = Bench(device, SMALL)
    table = []
    for name, settings in OPTIMIZERS.items():
        schema = build_schema(bench.config.to_hf(), 3, settings)
        weights = {key: tensor.clone() for key, tensor in bench.weights.items()}
        given = {"device": device, "pass_size": PassSize(1, "off"), "stopwatch": bench.now}
        replica = Replica(schema, bench.config, 0, weights, **given)
        feedback, results = replica.optimizer._result, schema.results
        draws = torch.Generator(device).manual_seed(1) if device.type == "cuda" else torch.Generator().manual_seed(1)
        made = {n: 1e-3 * torch.randn(p.shape, device=device, generator=draws) for n, p in replica.params.items()}
        gradient = PseudoGradient(made, 1.0, 0.0)
        line = {"encode": bench.timed(lambda: feedback.compress(gradient))}
        line["choose"] = bench.timed(lambda: feedback.choose(gradient))
        line["sent"] = bench.timed(feedback.sent)
        data = feedback.sent()
        line["ahead"] = bench.timed(lambda: feedback.go_ahead(replica.params, 0.0))
        line["upload8"] = bench.timed(lambda: [packed.uploaded(own, device) for own in data.values() for _ in range(8)])
        votes = {}

        def decode() -> None:
            for level, own in data.items():
                votes[level] = [decode_level(own, results, level, device) for _ in range(MEMBERS)]

        line["decode8"] = bench.timed(decode, 2)
        line["apply"] = bench.timed(lambda: replica.apply(votes, RATE), 2)
        if isinstance(settings, SparseLoCo) and settings.orthogonal_lr:
            plain = SparseLoCo(**{**vars(settings), "orthogonal_lr": 0.0})
            apply = MeanApply(results, 0, replica.params, plain)
            line["mean"] = bench.timed(lambda: apply.apply(votes, RATE))
        line["hash"] = bench.timed(replica.hashes, 2)
        line["peak_gb"] = bench.peak()
        for what, work in (
            ("encode", lambda: feedback.compress(gradient)),
            ("decode", decode),
            ("apply", lambda: replica.apply(votes, RATE)),
        ):
            profiled(f"{name} {what}", work)
        table.append((name, line))
        print(name, line, flush=True)
    print("CODEC")
    for name, line in table:
        print(name, line)


def profiled(name: str, work) -> None:
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    with profile(activities=activities) as found:
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    print(f"--- {name}")
    for line in found.key_averages().table(sort_by=by, row_limit=7, max_name_column_width=60).splitlines():
        if line and not line.startswith("-"):
            print("  ", " ".join(line.split())[:230])


if __name__ == "__main__":
    parts = {"proofs": proofs, "codec": codec}
    device = exact_device("cuda:0" if torch.cuda.is_available() else "cpu")
    for part in sys.argv[1:]:
        if part in parts:
            parts[part](device)
