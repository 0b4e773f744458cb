#!/usr/bin/env python3
"""Write a new, untrained Llama checkpoint (Hugging Face layout) with a tokenizer.

Example: python scripts/init-model.py --out checkpoints/tiny --hidden 128 --layers 4 --heads 4 --kv-heads 2 \\
             --intermediate 512 --vocab 257 --seed 0
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from aftermath.cli.present import Result
from aftermath.cli.script import Arguments, run
from aftermath.data.bytelevel import END_TOKEN, VOCAB_SIZE, byte_tokenizer
from aftermath.model.config import LlamaConfig
from aftermath.model.documents import CheckpointError
from aftermath.model.initial import init_weights
from aftermath.model.store import write_checkpoint


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments, write the checkpoint, say what it is. Returns the exit status."""
    return run(_parser(), _create, argv)


def _create(arguments: argparse.Namespace) -> Result:
    config = _config(arguments)
    if (arguments.out / "config.json").exists():
        raise CheckpointError(f"{arguments.out} already holds a checkpoint", "Remove it or name another directory.")
    config.width(arguments.tiers - 1)
    params = init_weights(config, arguments.seed)
    write_checkpoint(arguments.out, params, config, tier=0, companions=_companions(arguments.tokenizer))
    count = sum(math.prod(shape) for shape in config.parameter_shapes().values())
    tiers = {k: sum(map(math.prod, config.parameter_shapes(k).values())) for k in range(arguments.tiers)}
    data = {"out": str(arguments.out), "parameters": count, "tiers": tiers, "vocab": config.vocab_size}
    by_tier = ", ".join(f"{tier}: {size:,}" for tier, size in tiers.items())
    return Result(data, f"{count:,} parameters in {arguments.out}\nby tier: {by_tier}")


def _parser() -> Arguments:
    parser = Arguments(__file__, __doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    for name, default, meaning in (
        ("hidden", 128, "hidden size"),
        ("layers", 4, "number of layers"),
        ("heads", 4, "query heads"),
        ("kv-heads", 2, "key and value heads"),
        ("intermediate", 512, "FFN width of the full model"),
        ("vocab", VOCAB_SIZE, "tokens of the tokenizer"),
        ("context", 2048, "max_position_embeddings"),
        ("tiers", 3, "tiers that the FFN width must allow"),
        ("seed", 0, "seed of the initial weights"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} (default {default})")
    parser.add_argument("--tied", action="store_true", help="share input and output embeddings")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json to carry; without it one token per byte")
    return parser


def _config(arguments: argparse.Namespace) -> LlamaConfig:
    own = arguments.tokenizer is None
    if own and arguments.vocab < VOCAB_SIZE:
        raise CheckpointError(
            f"--vocab {arguments.vocab} is less than the {VOCAB_SIZE} tokens of the byte tokenizer",
            f"Give at least {VOCAB_SIZE}, or another --tokenizer.",
        )
    return LlamaConfig.from_hf(
        {
            "vocab_size": arguments.vocab,
            "hidden_size": arguments.hidden,
            "intermediate_size": arguments.intermediate,
            "num_hidden_layers": arguments.layers,
            "num_attention_heads": arguments.heads,
            "num_key_value_heads": arguments.kv_heads,
            "max_position_embeddings": arguments.context,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": arguments.tied,
            "bos_token_id": None,
            "eos_token_id": VOCAB_SIZE - 1 if own else None,
        }
    )


def _companions(tokenizer: Path | None) -> dict[str, bytes]:
    if tokenizer is not None:
        try:
            return {"tokenizer.json": tokenizer.read_bytes()}
        except OSError as error:
            raise CheckpointError(f"cannot read {tokenizer}: {error.strerror}", "Name a tokenizer.json.") from None
    names = {"eos_token": END_TOKEN, "tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False}
    return {
        "tokenizer.json": byte_tokenizer().to_str().encode(),
        "tokenizer_config.json": json.dumps(names, indent=2).encode(),
    }


if __name__ == "__main__":
    sys.exit(main())
