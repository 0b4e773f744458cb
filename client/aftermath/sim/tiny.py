"""A run small enough to be trained in a test: its model and its rules."""

from __future__ import annotations

from aftermath.model.architectures import config_of

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
