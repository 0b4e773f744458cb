#!/usr/bin/env python3
"""Write a new, untrained checkpoint (Hugging Face layout) of a Llama or a NanoGPT, with a tokenizer.

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

from aftermath.base.errors import UsageError
from aftermath.cli.describe import limits
from aftermath.cli.present import Result
from aftermath.cli.script import Arguments, run, whole_number
from aftermath.data.bytelevel import END_TOKEN, VOCAB_SIZE, byte_tokenizer
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.architectures import config_of
from aftermath.model.config import MAX_TIERS, ModelConfig
from aftermath.model.documents import CheckpointError
from aftermath.model.initial import init_weights
from aftermath.model.store import write_checkpoint

_FIELDS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv-heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
}
"""The options that are numbers of the model's config."""
_KV_HEADS = 2  # of a Llama that is not told
_NANOGPT = "nanogpt"


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments, write the checkpoint, say what it is. Returns the exit status."""
    return run(_parser(), _create, argv)


def _create(arguments: argparse.Namespace) -> Result:
    config = _config(arguments)
    if (arguments.out / "config.json").exists():
        raise CheckpointError(f"{arguments.out} already holds a checkpoint", "remove it, or name another directory")
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
        ("intermediate", 512, "FFN width of the full model"),
        ("vocab", VOCAB_SIZE, "tokens of the tokenizer"),
        ("context", 2048, "max_position_embeddings"),
        ("tiers", 3, "tiers that the FFN width must allow"),
        ("seed", 0, "seed of the initial weights"),
    ):
        number = whole_number(*_limits(name))
        parser.add_argument(f"--{name}", type=number, default=default, help=f"{meaning} (default {default})")
    parser.add_argument(
        "--kv-heads",
        type=whole_number(*_limits("kv-heads")),
        help=f"key and value heads of a Llama (default {_KV_HEADS})",
    )
    parser.add_argument(
        "--architecture",
        choices=("llama", _NANOGPT),
        default="llama",
        help="llama (default), or nanogpt: relu^2, QK-norm, soft-cap, value embeddings, x0 and U-net skips",
    )
    parser.add_argument("--tied", action="store_true", help="share input and output embeddings")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json to carry; without it one token per byte")
    return parser


def _limits(name: str) -> tuple[int, int | None]:
    """The least and the most that a number may be."""
    if name in _FIELDS:
        return limits(LlamaConfig.model_fields[_FIELDS[name]])
    return (1, MAX_TIERS) if name == "tiers" else (0, None)


def _config(arguments: argparse.Namespace) -> ModelConfig:
    own = arguments.tokenizer is None
    if own and arguments.vocab < VOCAB_SIZE:
        raise UsageError(
            f"--vocab {arguments.vocab} is less than the {VOCAB_SIZE} tokens of the byte tokenizer",
            f"say --vocab {VOCAB_SIZE} or more, or name another --tokenizer",
        )
    _check_shape(arguments)
    heads = {} if arguments.architecture == _NANOGPT else {"num_key_value_heads": _kv_heads(arguments)}
    return config_of(
        {
            "model_type": arguments.architecture,
            "vocab_size": arguments.vocab,
            "hidden_size": arguments.hidden,
            "intermediate_size": arguments.intermediate,
            "num_hidden_layers": arguments.layers,
            "num_attention_heads": arguments.heads,
            "max_position_embeddings": arguments.context,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": arguments.tied,
            "bos_token_id": None,
            "eos_token_id": VOCAB_SIZE - 1 if own else None,
        }
        | heads
        | (_ideas(arguments.layers) if arguments.architecture == _NANOGPT else {})
    )


def _kv_heads(arguments: argparse.Namespace) -> int:
    given: int | None = arguments.kv_heads
    return min(_KV_HEADS, arguments.heads) if given is None else given


def _ideas(layers: int) -> dict[str, object]:
    """All that a NanoGPT can have."""
    return {"value_embeddings": min(3, layers // 2), "x0_residual": True, "unet_skips": True}


def _check_shape(arguments: argparse.Namespace) -> None:
    """Raises UsageError for numbers that do not go together."""
    hidden, heads, step = arguments.hidden, arguments.heads, 1 << arguments.tiers - 1
    least, most = limits(LlamaConfig.model_fields["head_dim"])
    sizes = [size for size in range(least, most + 1, 2) if hidden % size == 0]  # rotary positions turn pairs
    if not sizes:
        raise UsageError(f"--hidden {hidden} is odd", "choose an even number")
    if hidden not in (heads * size for size in sizes):
        allowed = ", ".join(str(hidden // size) for size in reversed(sizes))
        raise UsageError(
            f"--heads {heads} does not cut --hidden {hidden} into heads of an even size",
            f"choose --heads from {allowed}, or another --hidden",
        )
    if arguments.architecture == _NANOGPT and arguments.kv_heads not in (None, heads):
        raise UsageError(f"--kv-heads {arguments.kv_heads}: a NanoGPT has one for each of its --heads", "leave it out")
    if arguments.architecture != _NANOGPT and heads % _kv_heads(arguments):
        allowed = ", ".join(str(count) for count in range(1, heads + 1) if heads % count == 0)
        raise UsageError(
            f"--kv-heads {_kv_heads(arguments)} does not divide --heads {heads}", f"choose --kv-heads from {allowed}"
        )
    if rest := arguments.intermediate % step:
        below = arguments.intermediate - rest
        nearest = f"{below} or {below + step}" if below else str(step)
        raise UsageError(
            f"--intermediate {arguments.intermediate} cannot be halved for --tiers {arguments.tiers}: it must be a "
            f"multiple of {step}",
            f"choose --intermediate {nearest}, or fewer --tiers",
        )


def _companions(tokenizer: Path | None) -> dict[str, bytes]:
    if tokenizer is not None:
        try:
            return {"tokenizer.json": tokenizer.read_bytes()}
        except OSError as error:
            raise CheckpointError(f"cannot read {tokenizer}: {error.strerror}", "name a tokenizer.json") from None
    names = {"eos_token": END_TOKEN, "tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False}
    return {
        "tokenizer.json": byte_tokenizer().to_str().encode(),
        "tokenizer_config.json": json.dumps(names, indent=2).encode(),
    }


if __name__ == "__main__":
    sys.exit(main())
