"""Checks of the keys in a `config.json`: without effect, of other models, or unknown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from aftermath.base.errors import short_repr
from aftermath.model.config import ModelConfigError

NANOGPT_KEYS = (
    "relu_squared",
    "qk_norm",
    "logit_softcap",
    "value_embeddings",
    "x0_residual",
    "unet_skips",
)
"""Keys that only a NanoGPT has."""
SILENT = frozenset(
    {
        *(
            "_name_or_path",
            "transformers_version",
            "torch_dtype",
            "dtype",
            "architectures",
            "use_cache",
        ),
        *("bos_token_id", "eos_token_id", "decoder_start_token_id", "task_specific_params"),
        *("matformer_tier", "matformer_base_intermediate_size"),
    }
)
"""Keys without effect in every model."""
_ANYWHERE = SILENT | {
    *(
        "model_type",
        "name_or_path",
        "pad_token_id",
        "sep_token_id",
        "unk_token_id",
        "tokenizer_class",
    ),
    *(
        "chunk_size_feed_forward",
        "id2label",
        "label2id",
        "problem_type",
        "finetuning_task",
        "is_decoder",
    ),
    *(
        "is_encoder_decoder",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "torchscript",
    ),
    *(
        "matformer_base",
        "rope_scaling",
        "rope_parameters",
        "original_max_position_embeddings",
        "pretraining_tp",
    ),
}
_GPT2S: Mapping[str, str] = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "n_ctx": "max_position_embeddings",
    "block_size": "max_position_embeddings",
}
_NEAR = 0.3


def refuse_nanogpt_keys(hf_config: Mapping[str, Any]) -> None:
    """Raise ModelConfigError for a key of a NanoGPT."""
    if other := next((key for key in NANOGPT_KEYS if hf_config.get(key)), None):
        raise ModelConfigError(
            f"config.json: only models of type nanogpt have the key {other}",
            f'Set model_type to "nanogpt", or remove {other}',
        )


# transformers silently prefers one of two names of a key. Here both must agree.
def refuse_contradictions(hf_config: Mapping[str, Any], aliases: Mapping[str, str]) -> None:
    """Raise ModelConfigError for a key that contradicts its alias."""
    for alias, key in aliases.items():
        if alias in hf_config and key in hf_config and hf_config[alias] != hf_config[key]:
            raise ModelConfigError(
                f"config.json: {alias} {short_repr(hf_config[alias])} contradicts {key} {short_repr(hf_config[key])}",
                f"Both name the same setting: remove {alias} if the weights were trained with {key}",
            )


# transformers ignores keys that it does not read, so they pass. No other program defines the keys
# of a NanoGPT: unknown ones are refused, with the closest known key.
def refuse_unknown_keys(
    hf_config: Mapping[str, Any], options: Collection[str], others: Collection[str]
) -> None:
    """Raise ModelConfigError for a key outside of `options` and `others`."""
    for key, value in hf_config.items():
        if key in options or key in others or key in _ANYWHERE:
            continue
        near = [_GPT2S[key]] if key in _GPT2S else get_close_matches(key, options, 1, _NEAR)
        raise ModelConfigError(
            f"config.json: the key {short_repr(key)} (value {short_repr(value)}) is unknown",
            f"Rename it to {near[0]}, or remove it" if near else "Remove it",
        )
