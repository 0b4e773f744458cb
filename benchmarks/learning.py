"""How low the loss gets: the demo's three tiers and their optimizer in one process, without chain or network.

Usage: python benchmarks/learning.py [--json] [--rounds 210] [--batch 12] [--lr 1.5e-3] [--topk-embeddings 64] ...
       python benchmarks/learning.py --arms [--json]      every line of the table in docs/research.md

The model, the corpus (the Python standard library) and everything that is not an option are the demo's: its config
file and `demo/plan.py`. Members of tiers 0, 1 and 2 train 3, 4 and 5 of 12 sequences, and results are applied one round
late, as in a run. Losses are nats per byte; `held_out` is on 256 sequences that nobody trains on. One core; the default
takes some minutes. Runs are repeatable: the same options give the same loss on the same machine.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aftermath.cli.script import whole_number
from aftermath.data.bytelevel import VOCAB_SIZE, byte_tokenizer
from aftermath.data.local import TokenFiles, open_tokens
from aftermath.data.tokenise import standard_library, tokenise
from aftermath.demo.plan import TIERS, model_config
from aftermath.lab import rates
from aftermath.lab.held_out import loss_on
from aftermath.lab.together import Together
from aftermath.model.config import LlamaConfig
from aftermath.model.initial import init_weights
from aftermath.optim.distro import Distro
from aftermath.optim.schema import Schema, build_schema
from aftermath.run.accounts import LrSchedule
from aftermath.run.schedules import learning_rate
from aftermath.train.replica import Replica

CONFIG = Path(__file__).parents[1] / "config" / "demo" / "config.toml"
CORPUS_BYTES = 6_000_000  # more than the demo prepares: an arm with many rounds reads no sequence twice either
SHARES = (3, 4, 5)  # of the batch, by tier
HELD_OUT = 256
LAST_ROUNDS = 10


ARMS: tuple[dict[str, Any], ...] = (
    {},
    {"topk_embeddings": 8},
    {"rounds": 120, "batch": 17},
    {"rounds": 120, "batch": 24, "lr": 4e-3, "end": "quarter", "topk_embeddings": 8},
)
"""What is compared, as differences from the demo: the first is the demo itself, the last what it once was."""


@dataclass(frozen=True)
class Options:
    """What may differ from the demo's config."""

    rounds: int
    batch: int
    lr: float
    topk: int
    topk_embeddings: int
    end: str
    seed: int
    tied: bool


def schedule(options: Options) -> LrSchedule:
    """Four steps of warm-up, then the cosine to a quarter, or steady and to 0 over the last fifth."""
    if options.end == "zero":
        return rates.stable(options.lr, 4, options.rounds)
    return rates.cosine(options.lr, 4, options.rounds, options.lr / 4)


def measure(options: Options, tables: Mapping[str, Any], tokens: Path) -> dict[str, Any]:
    """One run."""
    llm = tables["model"]["LLM"]
    config, schema = model_of(options, llm["optimizer"]["Distro"])
    data = open_tokens(tokens, 2, llm["max_seq_len"], vocab_size=VOCAB_SIZE, shuffle_seed=bytes(range(1, 33)))
    members = [
        Replica(
            schema,
            config,
            tier,
            init_weights(config, options.seed, tier),
            device=torch.device("cpu"),
            micro_batch_size=8,
            stopwatch=time.perf_counter,
        )
        for tier in TIERS
    ]
    started = time.perf_counter()
    losses = train(options, members, data)[-LAST_ROUNDS:]
    held_out = torch.from_numpy(data.read(range(data.sequences - HELD_OUT, data.sequences)))
    return {
        **vars(options),
        "parameters": schema.state.parameters(),
        "result_bytes": [schema.results.result_bytes(tier) for tier in TIERS],
        "loss_last_by_tier": [round(sum(row[tier] for row in losses) / len(losses), 3) for tier in TIERS],
        "held_out_by_tier": [round(loss_on(member.model, held_out), 3) for member in members],
        "seconds": round(time.perf_counter() - started, 1),
    }


def model_of(options: Options, distro: Mapping[str, Any]) -> tuple[LlamaConfig, Schema]:
    """The demo's model and its schema under these options."""
    hf = model_config(VOCAB_SIZE, tied=options.tied)
    settings = Distro(
        topk=options.topk,
        topk_embeddings=options.topk_embeddings,
        chunk=distro["compression_chunk"],
        quantize_1bit=distro["quantize_1bit"],
        decay=distro["compression_decay"],
        weight_decay=0.0,
        clip=distro["clip_grad_norm"],
    )
    return LlamaConfig.from_hf(hf), build_schema(hf, len(TIERS), settings)


def train(options: Options, members: list[Replica], data: TokenFiles) -> list[list[float]]:
    """The loss of every member in every round."""
    chosen, course, taken = schedule(options), [], 0
    together = Together(members, lambda step: learning_rate(chosen, step), overlap=1)
    shares = [options.batch * share // sum(SHARES) for share in SHARES]
    shares[-1] = options.batch - sum(shares[:-1])
    for step in range(1, options.rounds + 1):
        sequences = []
        for share in shares:
            sequences.append(torch.from_numpy(data.read(range(taken, taken + share))))
            taken += share
        done = together.step(step, sequences, [True] * len(members))
        course.append([math.nan if loss is None else loss for loss in done.losses])
    together.settle()
    return course


def main() -> None:
    """Read the options, measure, print."""
    tables = tomllib.loads(CONFIG.read_text())
    run, distro = tables["config"], tables["model"]["LLM"]["optimizer"]["Distro"]
    rate = tables["model"]["LLM"]["lr_schedule"]["WarmupStableDecay"]["base_lr"]
    demo = Options(
        run["total_steps"],
        run["global_batch_size_end"],
        rate,
        distro["compression_topk"],
        distro["compression_topk_embeddings"],
        "zero",
        0,
        False,
    )
    parser = argparse.ArgumentParser(description="How low the demo's model gets with other settings.")
    for name in ("rounds", "batch", "lr", "topk", "topk_embeddings", "seed"):
        value = getattr(demo, name)
        most = distro["compression_chunk"] ** 2 if name.startswith("topk") else None
        kind = float if name == "lr" else whole_number(0 if name == "seed" else 1, most)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=value, help=f"default {value}")
    parser.add_argument("--end", choices=("zero", "quarter"), default=demo.end, help="how the rate ends")
    parser.add_argument("--tied", action="store_true", help="one tensor for the embedding and the head")
    parser.add_argument("--arms", action="store_true", help="run all arms instead; other options do not count")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    given = vars(parser.parse_args())
    as_json, arms = given.pop("json"), given.pop("arms")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        tokenise(standard_library(CORPUS_BYTES), Path(folder), byte_tokenizer(), token_bytes=2)
        report: dict[str, Any]
        if arms:
            report = {"arms": [{"given": arm} | measure(replace(demo, **arm), tables, Path(folder)) for arm in ARMS]}
        else:
            report = measure(replace(demo, **given), tables, Path(folder))
    print(json.dumps(report, indent=1) if as_json else "\n".join(f"{name}: {value}" for name, value in report.items()))


if __name__ == "__main__":
    main()
