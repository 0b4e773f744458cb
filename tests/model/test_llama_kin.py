"""Llama, Mistral, Qwen2 and Qwen3 against transformers: logits, gradients and checkpoints."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from aftermath.model.arch.llama import Llama
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.arch.transformer import scaled_rotary
from aftermath.model.architectures import config_of
from aftermath.model.checkpoint import load
from aftermath.model.config import ModelConfigError
from aftermath.model.export import export_tiers
from aftermath.model.initial_weights import init_weights
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.model.schema import StateInputs, state_of_inputs, state_schema

torch.set_num_threads(1)
transformers = pytest.importorskip("transformers")

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
CASES = 24
# The fast tests have every kind of positions with two families, the slow ones with all four.
FAST = {number for number in range(CASES) if (number + number // 4) % 2 == 0}
NUMBERS = [
    pytest.param(number, marks=() if number in FAST else pytest.mark.slow)
    for number in range(CASES)
]


def random_config(number: int) -> dict[str, Any]:
    """Return a small `config.json` for each number. Families and kinds of positions take turns."""
    chance = random.Random(number)
    family = FAMILIES[number % 4]
    heads = chance.choice([2, 4])
    head_dim = chance.choice([4, 8, 12])
    longest = 64
    known = chance.choice([8, 16, 32])
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": chance.choice([33, 64]),
        "hidden_size": chance.choice([16, 24, heads * head_dim]),
        "intermediate_size": chance.choice([8, 24, 40]),
        "num_hidden_layers": chance.choice([1, 2, 3]),
        "num_attention_heads": heads,
        "num_key_value_heads": chance.choice([1, 2, heads]),
        "head_dim": head_dim,
        "max_position_embeddings": longest,
        "rms_norm_eps": chance.choice([1e-6, 1e-5]),
        "tie_word_embeddings": chance.random() < 0.3,
    }
    if family == "mistral":
        config["sliding_window"] = None
    if family in ("llama", "qwen3"):
        config["attention_bias"] = chance.random() < 0.5
    if family == "llama":
        config["mlp_bias"] = chance.random() < 0.5
    theta = chance.choice([10000.0, 500000.0])
    scale = {"rope_theta": theta, "factor": chance.choice([2.0, 4.0, 8.0])}
    length = {"original_max_position_embeddings": known}
    waves = {"low_freq_factor": 1.0, "high_freq_factor": chance.choice([2.0, 4.0])}
    sharper = {"mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False, "beta_fast": 16.0}
    config["rope_parameters"] = (
        {"rope_type": "default", "rope_theta": theta},
        {"rope_type": "linear", **scale},
        {"rope_type": "dynamic", **scale},
        {"rope_type": "llama3", **waves, **scale, **length},
        {"rope_type": "yarn", **scale, **length},
        {"rope_type": "yarn", **sharper, **scale, **length},
    )[number // 4 % 6]
    return config


def random_weights(config: LlamaConfig, seed: int) -> dict[str, Tensor]:
    """Return weights without neutral values, for biases and norms too."""
    noise = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=noise) * 0.3 + ("norm" in name)
        for name, shape in config.parameter_shapes().items()
    }


def theirs_of(place: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    return model.eval()


@pytest.mark.parametrize("number", NUMBERS)
def test_llama_kin_logits_and_gradients_equal_transformers(number: int, tmp_path: Path) -> None:
    given_config = random_config(number)
    config = LlamaConfig.from_hf(given_config)
    weights = random_weights(config, number)
    write_checkpoint(tmp_path / "ours", weights, config, tier=0, companions={})
    theirs = theirs_of(tmp_path / "ours")  # transformers computes the same from our config.json
    ours = Llama.of(config, 0, weights)
    longer = 80 if given_config["rope_parameters"]["rope_type"] == "dynamic" else 24
    tokens = torch.randint(
        0, config.vocab_size, (2, longer), generator=torch.Generator().manual_seed(number)
    )
    # before the longer text, which transformers remembers with dynamic positions
    logits = theirs(tokens[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    ours.loss(tokens).backward()
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("padded", [False, True], ids=["not read", "read"])
def test_padding_token_in_text_learns(tied: bool, padded: bool, tmp_path: Path) -> None:
    """Logits and all other gradients equal those of transformers, which does not train that row by
    its inputs.
    """
    pad = 5
    config = LlamaConfig.from_hf(
        {**random_config(0), "pad_token_id": pad, "tie_word_embeddings": tied}
    )
    weights = random_weights(config, 0)
    write_checkpoint(tmp_path / "ours", weights, config, tier=0, companions={})
    theirs = theirs_of(tmp_path / "ours")
    ours = Llama.of(config, 0, weights)
    assert theirs.model.embed_tokens.padding_idx == pad
    tokens = torch.randint(
        6, config.vocab_size, (2, 24), generator=torch.Generator().manual_seed(0)
    )
    if padded:
        tokens[:, 7] = pad
    logits = theirs(tokens[:, :-1]).logits
    torch.testing.assert_close(ours(tokens[:, :-1]), logits, rtol=1e-4, atol=1e-4)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    ours.loss(tokens).backward()
    gradient = ours.model.embed_tokens.weight.grad
    expected = theirs.model.embed_tokens.weight.grad
    others = torch.arange(config.vocab_size) != pad
    torch.testing.assert_close(gradient[others], expected[others], rtol=1e-4, atol=1e-4)
    assert torch.allclose(gradient[pad], expected[pad], rtol=1e-4, atol=1e-4) is not padded


@pytest.mark.parametrize("number", NUMBERS)
def test_llama_kin_checkpoint_of_transformers_loads(number: int, tmp_path: Path) -> None:
    given_config = random_config(number)
    their_config = transformers.AutoConfig.for_model(**given_config)
    torch.manual_seed(number)
    theirs = transformers.AutoModelForCausalLM.from_config(their_config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    document = json.loads((tmp_path / "theirs" / "config.json").read_text())
    config = config_of(document)
    assert config == LlamaConfig.from_hf(
        given_config | {k: document[k] for k in ("bos_token_id", "eos_token_id")}
    )
    ours = config.build(0, load(tmp_path / "theirs", 0))
    tokens = torch.randint(
        0, config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(number)
    )
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "table",
    [
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0},
    ],
    ids=["llama3", "yarn"],
)
def test_rope_positions_of_published_sizes_equal_transformers(table: dict[str, Any]) -> None:
    """Small heads have no frequency between the stretched and the unchanged ones."""
    table = table | {"original_max_position_embeddings": 8192}
    given_config = random_config(0) | {
        "head_dim": 128,
        "max_position_embeddings": 65536,
        "rope_parameters": table,
    }
    their_config = transformers.AutoConfig.for_model(**given_config)
    init = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[table["rope_type"]]
    frequencies, loudness = init(their_config, torch.device("cpu"))
    angles = torch.outer(torch.arange(300.0), frequencies).repeat(1, 2)
    cosine, sine = scaled_rotary(LlamaConfig.from_hf(given_config), 128, 300, torch.device("cpu"))
    torch.testing.assert_close(cosine, angles.cos() * loudness, rtol=0, atol=1e-4)
    torch.testing.assert_close(sine, angles.sin() * loudness, rtol=0, atol=1e-4)


@pytest.mark.parametrize("number", range(0, CASES, 3))
def test_llama_kin_tier_equals_its_exported_checkpoint(number: int, tmp_path: Path) -> None:
    config = LlamaConfig.from_hf(random_config(number))
    weights = random_weights(config, number)
    write_checkpoint(tmp_path / "m", weights, config, tier=0, companions={})
    export_tiers(tmp_path / "m", [1, 2])
    tokens = torch.randint(
        0, config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(number)
    )
    for tier in (1, 2):
        tier_model = config.build(tier, load(tmp_path / "m", tier, "universal"))
        exported = load(tmp_path / f"m-tier{tier}", tier)
        assert torch.equal(tier_model(tokens), config.build(tier, exported)(tokens))
        assert {
            name: tuple(tensor.shape) for name, tensor in exported.items()
        } == config.parameter_shapes(tier)


@pytest.mark.parametrize("number", NUMBERS)
def test_schema_roundtrips_and_omits_defaults(number: int) -> None:
    config = LlamaConfig.from_hf(random_config(number))
    schema = state_schema(config.to_hf(), 2)
    document = schema.document()
    again = state_of_inputs(StateInputs(document["model"], document["widths"]))
    assert again.document() == document
    assert document["model"]["model_type"] == "llama"
    plain = state_schema(
        {**random_config(0), "attention_bias": False, "mlp_bias": False}, 2
    ).document()["model"]
    assert not [
        key for key in plain if (key.startswith("rope_") and key != "rope_theta") or "bias" in key
    ]


def test_equal_shapes_with_other_functions_differ_in_schema() -> None:
    shape = {
        **random_config(0),
        "attention_bias": False,
        "mlp_bias": False,
        "num_key_value_heads": 2,
    }
    shape |= {"sliding_window": None, "tie_word_embeddings": False}
    tables = [random_config(number)["rope_parameters"] for number in range(0, CASES, 4)]
    documents = {
        json.dumps(state_schema({**shape, "rope_parameters": table}, 2).document())
        for table in tables
    }
    documents |= {
        json.dumps(state_schema({**shape, "model_type": family}, 2).document())
        for family in FAMILIES
    }
    assert len(documents) == len(tables) + len(FAMILIES) - 1


def test_biases_and_norms_begin_without_effect() -> None:
    config = LlamaConfig.from_hf({**random_config(0), "attention_bias": True, "mlp_bias": True})
    started = init_weights(config, 1)
    assert all(not tensor.any() for name, tensor in started.items() if name.endswith(".bias"))
    llama_config = LlamaConfig.from_hf(random_config(3))
    assert all(
        torch.all(tensor == 1)
        for name, tensor in init_weights(llama_config, 1).items()
        if "norm" in name
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window 4096"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window True"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"]}, "layer_types"),
        (
            {"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0]}},
            "of type 'longrope'",
        ),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "has no low_freq_factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "rope_parameters.factor 0.5"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "rope_parameters.factor '2'"),
        ({"attention_bias": "yes"}, "attention_bias 'yes'"),
        ({"mlp_bias": 1}, "mlp_bias 1"),
    ],
)
def test_llama_kin_unsupported_config_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    plain = {**random_config(0), "rope_parameters": None} | change
    with pytest.raises(ModelConfigError, match=says):
        config_of(plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_llama_kin_config_has_no_attribute_aliases(family: str) -> None:
    assert transformers.AutoConfig.for_model(family).attribute_map == {}


def test_mistral_without_window_key_uses_transformers_default() -> None:
    fields = random_config(1)
    del fields["sliding_window"]
    with pytest.raises(ModelConfigError, match="sliding_window 4096"):
        config_of(fields)


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
)
KEYS = sorted(
    random_config(0).keys()
    | {"sliding_window", "use_sliding_window", "layer_types", "rope_scaling"}
)
TABLES = st.dictionaries(
    st.sampled_from(
        [
            "rope_type",
            "factor",
            "rope_theta",
            "original_max_position_embeddings",
            "low_freq_factor",
            "type",
        ]
    ),
    ANYTHING | st.sampled_from(["yarn", "llama3", "linear", "dynamic"]),
)


@given(
    st.integers(0, CASES - 1), st.dictionaries(st.sampled_from(KEYS), ANYTHING | TABLES, max_size=4)
)
def test_llama_kin_config_values_are_read_or_refused(number: int, change: dict[str, Any]) -> None:
    try:
        config = config_of(random_config(number) | change)
    except ModelConfigError as error:
        assert error.message.startswith("config.json")  # noqa: PT017
        return
    assert config_of(config.to_hf()) == config


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("fields", [{}, {"num_key_value_heads": None}], ids=["absent", "null"])
def test_key_heads_absent_or_null_equal_transformers(family: str, fields: dict[str, Any]) -> None:
    sizes = {
        "hidden_size": 256,
        "num_attention_heads": 64,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
    }
    theirs = transformers.AutoConfig.for_model(family, **sizes, **fields)
    config = config_of(
        {"model_type": family, "vocab_size": 33, "sliding_window": None, **sizes, **fields}
    )
    assert config.model_dump()["num_key_value_heads"] == theirs.num_key_value_heads
