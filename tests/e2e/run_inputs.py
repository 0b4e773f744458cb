"""The inputs of a run: a tiny model, tokens, and the config.toml that names both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHAPE = ["--hidden", "64", "--layers", "2", "--heads", "4", "--intermediate", "128"]
ARCHITECTURES = {"llama": "HfLlama", "deepseek": "HfDeepseek", "nanogpt": "HfNanoGPT"}

RULES = {
    "warmup_time": 60,
    "cooldown_time": 20,
    "rounds_per_epoch": 8,
    "max_round_train_time": 20,
    "round_witness_time": 1,
    "min_clients": 2,
    "init_min_clients": 3,
    "witness_nodes": 0,
    "global_batch_size_start": 9,
    "global_batch_size_end": 9,
    "total_steps": 16,
    "waiting_for_members_extra_time": 1,
}


@dataclass(frozen=True)
class RunInputs:
    """A model directory and a token directory."""

    model: Path
    tokens: Path
    architecture: str

    def replacing(self, **other: Any) -> RunInputs:
        return replace(self, **other)

    def config(self, place: Path, *, one_bit: bool = True, **rules: int) -> Path:
        """Write the config of a run with these rules, and return the file."""
        place.mkdir(parents=True, exist_ok=True)
        path = place / "config.toml"
        path.write_text(_toml(self, RULES | rules, one_bit))
        return path


def make_run_inputs(root: Path, architecture: str = "llama") -> RunInputs:
    """Initialise the model and tokenise some of the standard library, with the user's commands."""
    scripts: tuple[tuple[str | Path, ...], ...] = (
        (
            "init-model.py",
            "--architecture",
            architecture,
            "--out",
            root / "model",
            *SHAPE,
            "--seed",
            "0",
        ),
        ("tokenise.py", "--output", root / "tokens", "--budget-bytes", "200000"),
    )
    for name, *arguments in scripts:
        command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
        subprocess.run(
            command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    return RunInputs(root / "model", root / "tokens", ARCHITECTURES[architecture])


def _toml(run_inputs: RunInputs, rules: dict[str, Any], one_bit: bool) -> str:
    numbers = "\n".join(f"{name} = {value}" for name, value in rules.items())
    return f"""
[config]
{numbers}

[model.LLM]
architecture = "{run_inputs.architecture}"
data_type = "Pretraining"
max_seq_len = 32
checkpoint = {{ Local = {json.dumps(str(run_inputs.model))} }}
data_location = {{ Local = {json.dumps(str(run_inputs.tokens))} }}
matformer = {{ tiers = 3 }}

[model.LLM.lr_schedule.Constant]
base_lr = 4.0e-3
warmup_steps = 0

[model.LLM.optimizer.Distro]
clip_grad_norm = 1.0
compression_decay = 0.999
compression_chunk = 64
compression_topk = 8
quantize_1bit = {str(one_bit).lower()}
"""
