"""Every key of a `config.json` is honoured or refused by name. Keys without effect are accepted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from aftermath.model.arch.llama import Llama
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.checkpoint import load_config
from aftermath.model.config import ModelConfigError
from aftermath.model.initial_weights import init_weights
from aftermath.model.save_checkpoint import write_checkpoint
from model.llama_documents import CHANGES, PLAIN, document, tokens

torch.set_num_threads(1)
transformers = pytest.importorskip("transformers")

SEED = 1

SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
DEFAULT = {"rope_type": "default"}
LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Return the last logits of transformers' Llama with the same weights, for every config."""
    logits = {}
    for name, change in CHANGES.items():
        place = tmp_path_factory.mktemp("theirs") / "m"
        config = LlamaConfig.from_hf(document(change))
        write_checkpoint(place, init_weights(config, SEED), config, tier=0, companions={})
        (place / "config.json").write_text(json.dumps(document(change)))
        model = transformers.LlamaForCausalLM.from_pretrained(place, dtype=torch.float32).eval()
        with torch.no_grad():
            logits[name] = model(tokens(config.vocab_size)).logits[0, -1, :]
    return logits


@pytest.mark.parametrize("name", CHANGES)
def test_llama_logits_equal_transformers(name: str, theirs: dict[str, torch.Tensor]) -> None:
    config = LlamaConfig.from_hf(document(CHANGES[name]))
    model = Llama.of(config, 0, init_weights(config, SEED))
    with torch.no_grad():
        logits = model(tokens(config.vocab_size))[0, -1, :]
    torch.testing.assert_close(logits, theirs[name], rtol=1e-4, atol=1e-4)


def test_configurations_distinguish_functions(theirs: dict[str, torch.Tensor]) -> None:
    alike = {"grouped heads", "swish", "keys that change nothing"}
    bases = {"rope base", "rope table", "rope table over its own key", "two rope tables that agree"}
    for name, logits in theirs.items():
        group = next((group for group in (alike, bases) if name in group), {name})
        equal = {
            other
            for other, them in theirs.items()
            if them.shape == logits.shape and torch.allclose(them, logits, 0, 1e-3)
        }
        assert equal == group, name


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (
            {"rope_parameters": DEFAULT, "rope_scaling": LINEAR},
            "rope_parameters and rope_scaling contradict",
        ),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope_scaling of type 'longrope'"),
        (
            {"rope_scaling": {"type": "default", "rope_type": "yarn"}},
            "rope_scaling of type yarn has no factor",
        ),
        ({"rope_scaling": "linear"}, "rope_scaling is not a flat table"),
        ({"rope_parameters": {"full_attention": DEFAULT}}, "rope_parameters is not a flat table"),
        (
            {"rope_parameters": DEFAULT | {"rope_theta": 5e5}, "rope_scaling": DEFAULT},
            "rope_parameters and rope_scaling contradict",
        ),
        (
            {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor 0.5",
        ),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor 0.25"),
        ({"is_causal": False}, "is_causal False"),
        ({"is_causal": None}, "is_causal None"),
        ({"attention_dropout": 0.1}, "attention_dropout 0.1"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"attention_chunk_size": 128}, "attention_chunk_size"),
        ({"per_layer_config": {"1": {"intermediate_size": 8}}}, "per_layer_config"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": "false"}, "attention_bias 'false'"),
        ({"eos_token_id": [3, -1]}, "eos_token_id: "),
        ({"eos_token_id": "3"}, "eos_token_id: "),
    ],
)
def test_config_key_changing_function_is_refused_by_name(keys: dict[str, Any], names: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        LlamaConfig.from_hf(PLAIN | keys)
    assert caught.value.message.startswith(f"config.json: {names}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_scaling", None),
        ("rope_parameters", {}),
        ("quantization_config", None),
        ("sliding_window", None),
        ("attention_dropout", 0),
        ("layer_types", ["full_attention"] * 3),
        ("is_causal", True),
        ("partial_rotary_factor", 1.0),
    ],
)
def test_config_key_without_effect_is_accepted(key: str, value: object) -> None:
    assert LlamaConfig.from_hf(PLAIN | {key: value}) == LlamaConfig.from_hf(PLAIN)


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        ({"eos_token_id": [5, 9, 7]}, {"eos_token_id": [5, 9, 7]}),
        ({"eos_token_id": [5]}, {"eos_token_id": [5]}),
        ({"eos_token_id": 5}, {"eos_token_id": 5}),
        (
            {"eos_token_id": None, "bos_token_id": None},
            {"eos_token_id": None, "bos_token_id": None},
        ),
        # transformers' defaults for a Llama
        ({}, {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": None}),
        ({"pad_token_id": 0, "bos_token_id": 3}, {"pad_token_id": 0, "bos_token_id": 3}),
        ({"pad_token_id": -1}, {"pad_token_id": -1}),
    ],
)
def test_token_ids_survive_loading_and_saving(
    tmp_path: Path, keys: dict[str, Any], written: dict[str, Any]
) -> None:
    config = LlamaConfig.from_hf(PLAIN | keys)
    write_checkpoint(tmp_path / "m", init_weights(config, 0), config, tier=0, companions={})
    saved = json.loads((tmp_path / "m" / "config.json").read_text())
    assert {key: saved[key] for key in written} == written
    assert load_config(tmp_path / "m") == config


def test_config_lists_every_end_token() -> None:
    ends = {"a": [5, 9], "b": 5, "c": None, "d": []}
    end_tokens = {
        name: LlamaConfig.from_hf(PLAIN | {"eos_token_id": end}).end_tokens
        for name, end in ends.items()
    }
    assert end_tokens == {"a": (5, 9), "b": (5,), "c": (), "d": ()}
