"""A small model's shape, and the text that the model of the tests knows by heart."""

from __future__ import annotations

from aftermath.data.bytelevel import VOCAB_SIZE
from aftermath.model.architectures import config_of

CONFIG = config_of(
    {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 24,
        "eos_token_id": VOCAB_SIZE - 1,
    }
)
TEXT = "for i in range(3): print(i)\n"
