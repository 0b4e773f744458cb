"""NanoGPT against a second implementation, option by option: causality, gradients, tiers and
learning.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

from aftermath.model.arch.nanogpt_config import NanoGPTConfig
from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfigError
from aftermath.model.initial_weights import init_weights
from aftermath.model.network import LanguageModel
from aftermath.model.schema import state_schema
from aftermath.optim.schema import Schema, build_schema
from aftermath.rules.distro import Distro
from model.nanogpt_reference import HF, OPTIONS, config, restated, tokens, weights

torch.set_num_threads(1)


# Heads are untied for every option, because no option depends on tying.
FAST_TIED = {"plain", "all"}


@pytest.mark.parametrize(
    ("option", "tied"),
    [
        pytest.param(
            option, tied, marks=pytest.mark.slow if tied and option not in FAST_TIED else ()
        )
        for option in OPTIONS
        for tied in (False, True)
    ],
)
def test_nanogpt_logits_and_gradients_equal_restatement(option: str, tied: bool) -> None:
    _same_as_restated(config(option, tie_word_embeddings=tied))


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=pytest.mark.slow if number >= 6 else ()) for number in range(20)],
)
def test_nanogpt_random_models_equal_restatement(number: int) -> None:
    dice = random.Random(number)
    heads = dice.choice((1, 2, 4))
    layers = dice.randint(1, 5)
    _same_as_restated(
        config(
            "plain",
            num_attention_heads=heads,
            hidden_size=heads * dice.choice((4, 8)),
            intermediate_size=4 * dice.randint(2, 12),
            num_hidden_layers=layers,
            rope_theta=dice.choice((10000.0, 500.0)),
            relu_squared=dice.random() < 0.5,
            qk_norm=dice.random() < 0.5,
            logit_softcap=dice.choice((0.0, 2.0, 15.0)),
            value_embeddings=dice.randint(0, layers // 2),
            x0_residual=dice.random() < 0.5,
            unet_skips=dice.random() < 0.5,
            tie_word_embeddings=dice.random() < 0.5,
        )
    )


def _same_as_restated(shape: NanoGPTConfig) -> None:
    params = weights(shape)
    ids = tokens(1, 5)
    net = shape.build(0, {name: tensor.clone() for name, tensor in params.items()})
    logits = net(ids)[0]
    own = {name: tensor.clone().requires_grad_(True) for name, tensor in params.items()}
    expected = restated(own, shape, ids[0])
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-5)
    weigh = torch.randn(
        expected.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    (expected * weigh).sum().backward()
    (logits.double() * weigh).sum().backward()
    for name, tensor in net.named_parameters():
        assert tensor.grad is not None, name
        assert tensor.grad.abs().max() > 0, f"{name} learns nothing"
        torch.testing.assert_close(tensor.grad, own[name].grad, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("option", OPTIONS)
def test_nanogpt_position_ignores_later_tokens(option: str) -> None:
    shape = config(option)
    net = shape.build(0, weights(shape))
    ids = tokens()
    for place in (1, 6, 11):
        changed = ids.clone()
        changed[:, place:] = (changed[:, place:] + 1) % 48
        before = net(ids)
        after = net(changed)
        assert torch.equal(before[:, :place], after[:, :place])
        assert not torch.allclose(before[:, place], after[:, place])


@pytest.mark.parametrize("option", [name for name in OPTIONS if name != "plain"])
def test_nanogpt_every_option_changes_function(option: str) -> None:
    ids = tokens()
    plain = config("plain")
    shape = config(option)
    net = shape.build(0, weights(shape))
    other = plain.build(0, weights(plain))
    assert not torch.allclose(net(ids), other(ids), atol=1e-6)


def test_nanogpt_logits_stay_within_cap() -> None:
    shape = config("logit_softcap")
    params = weights(shape)
    params["lm_head.weight"] *= 1e4
    assert shape.build(0, params)(tokens()).abs().max() <= 3.0


def test_nanogpt_option_parameters_have_initial_values() -> None:
    params = init_weights(config(), 0)
    values = {
        name.rpartition(".")[2]: set(t.tolist()) for name, t in params.items() if "lambda" in name
    }
    assert values == {
        "residual_lambda": {1.0},
        "x0_lambda": {0.0},
        "value_lambda": {0.5},
        "skip_lambdas": {1.0},
    }


@pytest.mark.parametrize(("option", "tier"), [*itertools.product(OPTIONS, (1, 2))])
def test_nanogpt_tier_equals_full_model_without_other_units(option: str, tier: int) -> None:
    shape = config(option)
    full = weights(shape)
    tensors = weights(shape, tier)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, full[name][tuple(slice(0, size) for size in tensor.shape)]), name
    for name, tensor in full.items():
        if name.endswith("down_proj.weight"):
            tensor[:, shape.width(tier) :] = 0
    ids = tokens()
    torch.testing.assert_close(
        shape.build(tier, tensors)(ids), shape.build(0, full)(ids), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("option", OPTIONS)
def test_nanogpt_config_and_schema_roundtrip(option: str) -> None:
    shape = config(option)
    for tier in (0, 2):
        assert config_of(shape.to_hf(tier)) == shape
    schema = build_schema(shape.to_hf(), 3, _distro())
    assert Schema.from_json(schema.to_json()).hash() == schema.hash()
    assert shape.parameter_shapes().keys() == {segment.name for segment in schema.state.segments}


def test_nanogpt_every_option_is_part_of_schema() -> None:
    documents = [state_schema(config(option).to_hf(), 3).document() for option in OPTIONS]
    assert all(one != other for one, other in itertools.combinations(documents, 2))


@pytest.mark.slow
def test_nanogpt_overfits_text_at_every_tier() -> None:
    ids = tokens(1, 12)
    for tier in (0, 2):
        shape = config()
        net: LanguageModel = shape.build(tier, init_weights(shape, 7, tier))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        first = net.loss(ids).item()
        for _ in range(50):
            optimizer.zero_grad()
            loss = net.loss(ids)
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.3 < 3.5 < first


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"use_smear_gate": True}, "use_smear_gate is a key of another NanoGPT"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 differs from num_attention_heads"),
        ({"value_embeddings": 3}, "value_embeddings 3 is more than half of the 4 layers"),
        ({"logit_softcap": -1.0}, "logit_softcap: "),
        ({"relu_squared": 1}, "relu_squared: "),
        ({"logit_softcap": None}, "logit_softcap must not be null"),
        ({"x0_residuals": True}, r"'x0_residuals' \(value True\) is unknown"),
        ({"qk_norms": False}, r"'qk_norms' \(value False\) is unknown"),
        ({"model_type": "llama", "qk_norm": True}, "type nanogpt have the key qk_norm"),
        ({"hidden_act": "silu"}, "hidden_act 'silu' is not supported"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            "positions of type 'linear' are not supported",
        ),
        ({"sliding_window": 128}, "sliding_window 128 is not supported"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"num_attention_heads": 5}, "hidden_size 32 is not a multiple of 5"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
    ],
)
def test_nanogpt_config_with_unsupported_key_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        config_of(HF | keys)


@pytest.mark.parametrize(
    ("key", "value", "near"),
    [
        ("softcap", 0, "logit_softcap"),
        ("final_logit_softcapping", 30.0, "logit_softcap"),
        ("n_layer", 12, "num_hidden_layers"),
        ("n_head", 12, "num_attention_heads"),
        ("n_embd", 32, "hidden_size"),
        ("tie_weights", True, "tie_word_embeddings"),
        ("x0", True, "x0_residual"),
        ("value_embeds", 2, "value_embeddings"),
        ("norm_eps", 1e-6, "rms_norm_eps"),
    ],
)
def test_nanogpt_unknown_key_is_refused_with_nearest(key: str, value: object, near: str) -> None:
    with pytest.raises(ModelConfigError, match=f"{key}.* is unknown") as refused:
        config_of(HF | {key: value})
    assert refused.value.fix.startswith(f"Rename it to {near}")


def test_nanogpt_unknown_key_without_similar_is_refused() -> None:
    with pytest.raises(ModelConfigError, match=r"'zzz' \(value 1\) is unknown"):
        config_of(HF | {"zzz": 1})


def test_nanogpt_base_class_keys_are_accepted() -> None:
    """transformers writes the keys of its base class. Some files name absent features."""
    written = pytest.importorskip("transformers").PreTrainedConfig().to_dict()
    carried = written | {
        "torch_dtype": "bfloat16",
        "_name_or_path": "a/b",
        "eos_token_id": [1, 2],
        "use_cache": True,
    }
    nothing = {
        "attention_bias": False,
        "sliding_window": None,
        "use_smear_gate": False,
        "attention_dropout": 0.0,
    }
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    assert config_of(carried | nothing | rope | HF) == config_of(
        HF | {"eos_token_id": [1, 2], "rope_theta": 500.0}
    )


def _distro() -> Distro:
    return Distro(
        topk=8,
        topk_embeddings=8,
        chunk=16,
        quantize_1bit=True,
        decay=0.999,
        weight_decay=0.0,
        clip=1.0,
    )
