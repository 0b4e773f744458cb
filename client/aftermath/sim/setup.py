"""A run small enough for tests: its model, its rules, and the files it starts from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from aftermath.config.document import RunConfig
from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfig
from aftermath.model.initial_weights import init_weights
from aftermath.model.save_checkpoint import write_checkpoint

RUN_ID = "sim"
CONFIG = config_of(
    {
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 16,
    }
)
RULES = """
[config]
warmup_time = 30
cooldown_time = 20
rounds_per_epoch = 6
max_round_train_time = 15
round_witness_time = 1
min_clients = 2
init_min_clients = 3
global_batch_size_start = 9
global_batch_size_end = 9
total_steps = 12
waiting_for_members_extra_time = 1

[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 16
checkpoint = { Local = "MODEL" }
data_location = { Local = "DATA" }
matformer = { tiers = 3 }

[model.LLM.lr_schedule.Constant]
base_lr = 0.004
warmup_steps = 0

[model.LLM.optimizer.Distro]
clip_grad_norm = 1.0
weight_decay = 0.01
compression_decay = 0.999
compression_chunk = 7
compression_topk = 4
compression_topk_embeddings = 6
quantize_1bit = true
"""


def set_up(
    directory: Path,
    config: ModelConfig,
    rules: Mapping[str, int],
    *,
    quantize: bool,
    optimizer: Mapping[str, Any] | None,
    stored: bool,
) -> RunConfig:
    """Write the model and tokens into `directory`, and return the config with these rules.

    Write the weights only if `stored`.
    """
    write_checkpoint(
        directory / "model",
        init_weights(config, 0),
        config,
        tier=0,
        companions={},
        made_by="simulation",
    )
    (directory / "data").mkdir()
    tokens = torch.arange(4096).mul(7).remainder(64).to(torch.int16).numpy()
    (directory / "data" / "tokens.bin").write_bytes(tokens.tobytes())
    text = RULES.replace("MODEL", str(directory / "model")).replace("DATA", str(directory / "data"))
    tables = tomllib.loads(
        text if quantize else text.replace("quantize_1bit = true", "quantize_1bit = false")
    )
    if optimizer is not None:
        tables["model"]["LLM"]["optimizer"] = dict(optimizer)
    if not stored:
        (directory / "model" / "model.safetensors").unlink()
        tables["model"]["LLM"]["checkpoint"] = {"Dummy": {"repo_id": str(directory / "model")}}
    for name, value in rules.items():
        (tables["model"]["LLM"] if name == "cold_start_warmup_steps" else tables["config"])[
            name
        ] = value
    return RunConfig.model_validate(tables)
