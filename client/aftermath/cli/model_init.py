"""`model init`: write a new, untrained checkpoint from a preset or from sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.bounded import Malformed, json_value
from aftermath.base.errors import UsageError
from aftermath.base.outputs import check_directory
from aftermath.cli.command import command
from aftermath.cli.present import Result, note
from aftermath.data.bytelevel import END_TOKEN, VOCAB_SIZE, byte_tokenizer
from aftermath.model.json_documents import (
    CARD_FILE,
    COMPANIONS,
    TOKENIZER_FILES,
    CheckpointError,
    read_limited,
)
from aftermath.model.presets import LIMITS, PRESETS
from aftermath.model.tokenizer_files import (
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    TOKENIZER_FILE,
    files_of,
    with_end_token,
    without_limits,
)
from aftermath.rules.limits import MAX_LEVELS

if TYPE_CHECKING:
    from aftermath.model.config import ModelConfig

SHAPE = "Shape"
NEW_DIRECTORY = "Directory to write. Must be new, empty, or written by this command; its earlier output is replaced."
_MAX_ENTRIES_BYTES = 1 << 20
_KV_HEADS = 2  # default for a Llama
_SIZES = {
    "hidden": 128,
    "layers": 4,
    "heads": 4,
    "intermediate": 512,
    "vocab": VOCAB_SIZE,
    "context": 2048,
}
"""Default sizes by option."""
SIZES = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
}
"""Keys of the model's config.json, by option."""


class Kind(StrEnum):
    """What can be made without a preset."""

    LLAMA = "llama"
    NANOGPT = "nanogpt"
    DEEPSEEK = "deepseek"


def _size(name: str, text: str) -> object:
    least, most = LIMITS[SIZES[name]]
    default = f". By default {_SIZES[name]}" if name in _SIZES else ""
    return typer.Option(min=least, max=most, help=f"{text}{default}.", rich_help_panel=SHAPE)


@command(
    "model init", example="aftermath-solana model init --preset llama-1m --out checkpoints/tiny"
)
def model_init(
    out: Annotated[Path, typer.Option(help=NEW_DIRECTORY)],
    preset: Annotated[
        str | None,
        typer.Option(help=f"Named model; shape options override it. One of {', '.join(PRESETS)}."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="tokenizer.json to include, or a folder with one, for example from data tokenize. The vocabulary "
            "grows to hold its ids. By default one token per byte."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Seed of the initial weights.")
    ] = 0,
    tiers: Annotated[
        int, typer.Option(min=1, max=MAX_LEVELS, help="Tiers that the FFN width must allow.")
    ] = 3,
    matformer_tiers: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of what tiers 1, 2, ... keep (docs/models.md#tiers). By default each tier halves the width."
        ),
    ] = None,
    architecture: Annotated[
        Kind | None,
        typer.Option(
            help="llama, nanogpt (relu^2, QK-norm, soft-cap, value embeddings, x0 and U-net skips) or deepseek (V3 "
            "with a dense first layer, then a shared and 8 routed experts). By default llama.",
            rich_help_panel=SHAPE,
        ),
    ] = None,
    hidden: Annotated[int | None, _size("hidden", "Hidden size")] = None,
    layers: Annotated[int | None, _size("layers", "Layers")] = None,
    heads: Annotated[int | None, _size("heads", "Query heads")] = None,
    kv_heads: Annotated[
        int | None, _size("kv_heads", f"Key and value heads of a Llama. By default {_KV_HEADS}")
    ] = None,
    intermediate: Annotated[
        int | None, _size("intermediate", "FFN width of the full model")
    ] = None,
    vocab: Annotated[
        int | None, _size("vocab", "Vocabulary size, at least that of the tokenizer")
    ] = None,
    context: Annotated[int | None, _size("context", "Longest text, in tokens")] = None,
    tied: Annotated[
        bool,
        typer.Option("--tied", help="Share input and output embeddings.", rich_help_panel=SHAPE),
    ] = (False),
) -> Result:
    """Write a new, untrained checkpoint with a tokenizer.

    Equal options give equal bits on every machine. With --json also prints the parameters of every
    tier.
    """
    from aftermath.model.architectures import config_of
    from aftermath.model.initial_weights import init_weights
    from aftermath.model.save_checkpoint import write_checkpoint

    sizes = {"hidden": hidden, "layers": layers, "heads": heads, "kv_heads": kv_heads}
    sizes |= {"intermediate": intermediate, "vocab": vocab, "context": context}
    sizes_given = {name: number for name, number in sizes.items() if number is not None}
    tokens = byte_tokens() if tokenizer is None else tokens_of(tokenizer)
    model_document = document(
        preset, architecture, sizes_given, tied=tied, entries=matformer_tiers, tokens=tokens
    )
    tiers = tiers if matformer_tiers is None else 1
    if preset is None or preset in PRESETS:  # another package's config checks its own sizes
        _check(model_document, tiers, kv_heads=kv_heads)
    config = config_of(model_document | {"bos_token_id": tokens.begin, "eos_token_id": tokens.end})
    tiers = config.possible_tiers() if matformer_tiers is not None else tiers
    directory = out.expanduser()
    check_directory(directory, "model init")
    weights = init_weights(config, seed)
    write_checkpoint(
        directory, weights, config, tier=0, companions=tokens.files, made_by="model init"
    )
    if tokens.end is None:
        note(
            f"warning: the files next to {tokenizer} name no end-of-text token, so eos_token_id is empty. "
            "fix: pass the tokenizer.json that data tokenize --end-token wrote"
        )
    by_tier = {tier: _parameters(config, tier) for tier in range(tiers)}
    data = {
        "out": str(directory),
        "parameters": by_tier[0],
        "tiers": by_tier,
        "vocab": config.vocab_size,
    }
    by_tier_text = ", ".join(f"{tier}: {count:,}" for tier, count in by_tier.items())
    return Result(data, f"{by_tier[0]:,} parameters in {directory}\nby tier: {by_tier_text}")


def document(
    preset: str | None,
    architecture: Kind | None,
    sizes: dict[str, int],
    *,
    tied: bool,
    entries: Path | None,
    tokens: Tokens | None = None,
) -> dict[str, Any]:
    """Return the config.json of these options, without a tokenizer's special tokens.

    The vocabulary grows to hold all ids of `tokens`. Raises UsageError if `sizes` makes it smaller,
    and CheckpointError if the file `entries` cannot be read.
    """
    from aftermath.model.architectures import presets
    from aftermath.model.tier_shapes import KEY

    if preset is None:
        result = _sized_document(architecture or Kind.LLAMA, _SIZES | sizes, tied)
    elif architecture is not None:
        raise UsageError(
            f"--architecture {architecture.value} contradicts the preset {preset}",
            "Leave out --architecture or --preset",
        )
    elif preset not in (all_presets := presets()):
        raise UsageError(f"there is no preset {preset}", f"Choose one of {', '.join(all_presets)}")
    else:
        result = dict(all_presets[preset]) | {SIZES[name]: number for name, number in sizes.items()}
        result |= {"tie_word_embeddings": True} if tied else {}
    if entries is not None:
        result[KEY] = _entries(entries)
    if tokens is not None:
        if "vocab" in sizes and sizes["vocab"] < tokens.size:
            raise UsageError(
                f"--vocab {sizes['vocab']} is less than the {tokens.size} ids of {tokens.name}",
                f"Pass --vocab {tokens.size} or more, or another --tokenizer",
            )
        result["vocab_size"] = max(result["vocab_size"], tokens.size)
    return result


def _entries(path: Path) -> Any:
    """Read the unchecked tier entries of a JSON file. Raises CheckpointError."""
    try:
        return json_value(read_limited(path.expanduser(), _MAX_ENTRIES_BYTES))
    except Malformed as error:
        raise CheckpointError(
            f"{path} is not JSON: {error}", "See the format in docs/models.md#tiers"
        ) from None


def _parameters(config: ModelConfig, tier: int) -> int:
    return sum(map(math.prod, config.parameter_shapes(tier).values()))


def _sized_document(architecture: Kind, sizes: dict[str, int], tied: bool) -> dict[str, Any]:
    """Return a config.json of these sizes."""
    result: dict[str, Any] = {SIZES[name]: number for name, number in sizes.items()}
    result |= {
        "model_type": architecture.value,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
    }
    result |= {"bos_token_id": None, "eos_token_id": None}
    if architecture is Kind.DEEPSEEK:
        return result | {"model_type": "deepseek_v3"} | _latent_and_experts(sizes)
    if architecture is Kind.NANOGPT:
        features = {
            "value_embeddings": min(3, sizes["layers"] // 2),
            "x0_residual": True,
            "unet_skips": True,
        }
        return result | features
    return {"num_key_value_heads": min(_KV_HEADS, sizes["heads"])} | result


def _latent_and_experts(sizes: dict[str, int]) -> dict[str, Any]:
    """Return a small V3: heads of the Llama's size plus their rotated part, experts of a quarter of
    the FFN's width.
    """
    head = max(2, sizes["hidden"] // sizes["heads"])
    return {
        "q_lora_rank": max(1, sizes["hidden"] // 2),
        "kv_lora_rank": max(1, sizes["hidden"] // 4),
        "qk_nope_head_dim": head,
        "qk_rope_head_dim": head,
        "v_head_dim": head,
        "moe_intermediate_size": max(1, sizes["intermediate"] // 4),
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
    }


def _check(document: dict[str, Any], tiers: int, *, kv_heads: int | None) -> None:
    """Raise UsageError for inconsistent sizes, with valid values in its fix."""
    hidden = document["hidden_size"]
    heads = document["num_attention_heads"]
    step = 1 << tiers - 1
    least, most = LIMITS["head_dim"]
    # rotary positions rotate pairs of dimensions
    sizes = [size for size in range(least, most + 1, 2) if hidden % size == 0]
    if not sizes:
        raise UsageError(f"--hidden {hidden} is odd", "Choose an even number")
    if hidden not in (heads * size for size in sizes):
        allowed = ", ".join(str(hidden // size) for size in reversed(sizes))
        raise UsageError(
            f"--heads {heads} does not divide --hidden {hidden} into heads of an even size",
            f"Choose --heads from {allowed}, or another --hidden",
        )
    llama = document["model_type"] == Kind.LLAMA.value
    if not llama and kv_heads not in (None, heads):
        raise UsageError(
            f"--kv-heads {kv_heads}: only a Llama can have fewer than --heads", "Leave it out"
        )
    groups = document.get("num_key_value_heads", heads) if llama else heads
    if heads % groups:
        allowed = ", ".join(str(count) for count in range(1, heads + 1) if heads % count == 0)
        raise UsageError(
            f"--kv-heads {groups} does not divide --heads {heads}",
            f"Choose --kv-heads from {allowed}",
        )
    if remainder := document["intermediate_size"] % step:
        below = document["intermediate_size"] - remainder
        nearest = f"{below} or {below + step}" if below else str(step)
        raise UsageError(
            f"--intermediate {document['intermediate_size']} cannot be halved for --tiers {tiers}: it must be a "
            f"multiple of {step}",
            f"Choose --intermediate {nearest}, or fewer --tiers",
        )


@dataclass(frozen=True)
class Tokens:
    """The tokenizer of a new model."""

    name: str
    """How errors call it."""
    size: int
    """The smallest vocabulary that has all its ids."""
    begin: int | None
    """The id of the token that begins a text, if it has one."""
    end: int | None
    """The id of the token that ends a text, if it has one."""
    files: dict[str, bytes]
    """The files that go next to the weights, by name."""


def byte_tokens() -> Tokens:
    """Return the tokenizer of single bytes."""
    files = {
        TOKENIZER_FILE: byte_tokenizer().to_str().encode(),
        TOKENIZER_CONFIG: with_end_token(None, END_TOKEN),
    }
    return Tokens("the byte tokenizer", VOCAB_SIZE, None, VOCAB_SIZE - 1, files)


def tokens_of(path: Path) -> Tokens:
    """Return the tokenizer of a `tokenizer.json`, with its companion files. Raise CheckpointError
    if it is not one.
    """
    from aftermath.model.tokenizer import Tokenizer

    data, companions = files_of(path.expanduser())
    try:
        tokenizer = Tokenizer(without_limits(data), str(path), companions)
        end = tokenizer.end_id
        name = tokenizer.token_of(end) if end is not None else None
        end = end if name is not None else None
    except (Malformed, CheckpointError) as error:
        reason = (
            error.message
            if isinstance(error, CheckpointError)
            else f"{path} is not a tokenizer: {error}"
        )
        raise CheckpointError(reason, "Name a tokenizer.json") from None
    files = {
        **_companions(path.expanduser()),
        **{name: data for name, data in companions.items() if name == SPECIAL_TOKENS},
        TOKENIZER_FILE: without_limits(data),
        TOKENIZER_CONFIG: with_end_token(companions.get(TOKENIZER_CONFIG), name),
    }
    begin = tokenizer.begin_id
    begin = begin if begin is not None and begin < tokenizer.vocab_size else None
    return Tokens(str(path), tokenizer.vocab_size, begin, end, files)


def _companions(tokenizer: Path) -> dict[str, bytes]:
    """Return a tokenizer's other files, such as its chat template.

    From a checkpoint also return the license, but not the model card of that other model.
    """
    from aftermath.model.save_checkpoint import read_companions

    if tokenizer.name != TOKENIZER_FILE:
        return {}
    in_checkpoint = tokenizer.with_name("config.json").is_file()
    names = set(COMPANIONS) - {CARD_FILE} if in_checkpoint else set(TOKENIZER_FILES)
    return {name: data for name, data in read_companions(tokenizer.parent).items() if name in names}
