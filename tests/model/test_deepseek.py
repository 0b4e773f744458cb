"""DeepSeek V2 and V3: transformers' logits and gradients, checkpoints both ways, tiers, gates,
refusals.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from aftermath.model.arch.deepseek import _highest
from aftermath.model.arch.deepseek_config import DeepseekConfig
from aftermath.model.architectures import config_of
from aftermath.model.checkpoint import load
from aftermath.model.config import ModelConfigError, WidthNotDivisible
from aftermath.model.export import export_tiers
from aftermath.model.generate import generate
from aftermath.model.initial_weights import init_weights
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.model.schema import state_schema
from aftermath.optim.engine import Engine
from aftermath.optim.schema import Schema, build_schema
from aftermath.rules.distro import Distro

torch.set_num_threads(1)

HF: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.3,
}
V2 = HF | {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy"}
V3 = HF | {"model_type": "deepseek_v3"}
BOTH = pytest.mark.parametrize("file", [V2, V3], ids=["v2", "v3"])


def config(file: dict[str, Any], **changes: Any) -> DeepseekConfig:
    model_config = config_of(file | changes)
    assert isinstance(model_config, DeepseekConfig)
    return model_config


def weights(shape: DeepseekConfig, tier: int = 0) -> dict[str, Tensor]:
    """Return initial weights with a nonzero choice bias, so that the bias has an effect."""
    params = init_weights(shape, 7, tier)
    generator = torch.Generator().manual_seed(3)
    for name in sorted(params):
        if name.endswith("bias"):
            params[name] = torch.rand(params[name].shape, generator=generator) - 0.5
    return params


def tokens(batch: int = 3, length: int = 12, seed: int = 1) -> Tensor:
    return torch.randint(0, 48, (batch, length), generator=torch.Generator().manual_seed(seed))


def drawn(version: int, seed: int) -> dict[str, Any]:
    """Return a small random config.json."""
    dice = random.Random(100 * version + seed)
    groups = dice.choice((1, 2, 4))
    size = dice.choice((2, 3))
    heads = dice.choice((1, 2, 4))
    allowed = dice.randint(1, groups)
    file = (V2 if version == 2 else V3) | {
        "hidden_size": 8 * heads,
        "num_hidden_layers": dice.randint(1, 3),
        "num_attention_heads": heads,
        "q_lora_rank": dice.choice((None, 5, 12)),
        # even, because transformers' V2 needs that before a rotated part
        "kv_lora_rank": dice.choice((4, 8)),
        "qk_nope_head_dim": dice.choice((4, 8)),
        "qk_rope_head_dim": dice.choice((2, 6)),
        "v_head_dim": dice.choice((4, 9)),
        "n_group": groups,
        "topk_group": allowed,
        "n_routed_experts": groups * size,
        "num_experts_per_tok": dice.randint(2, allowed * size),
        "n_shared_experts": dice.randint(1, 3),
        "first_k_dense_replace": dice.randint(0, 2),
        "routed_scaling_factor": dice.choice((1.0, 2.5)),
        "rope_theta": dice.choice((10000.0, 500.0)),
        "tie_word_embeddings": dice.random() < 0.3,
    }
    if seed % 3 == 0:
        scales = dice.choice(
            ({}, {"mscale": 0.707, "mscale_all_dim": 0.707}, {"mscale": 1.0, "mscale_all_dim": 1.0})
        )
        table = {
            "type": "yarn",
            "factor": dice.choice((4, 40.0)),
            "original_max_position_embeddings": 8,
        }
        file |= {
            "rope_scaling": table | {"beta_fast": 32, "beta_slow": 1} | scales,
            "max_position_embeddings": 320,
        }
    if version == 2:
        return file | {"topk_method": dice.choice(("greedy", "group_limited_greedy"))}
    return file | {"norm_topk_prob": dice.random() < 0.5, "rope_interleave": dice.random() < 0.7}


def theirs(place: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        place, dtype=torch.float32, experts_implementation="eager"
    )


def theirs_choices(other: Any) -> dict[int, Tensor]:
    """Record the experts that transformers' V3 chooses in the next pass, per layer."""
    choices: dict[int, Tensor] = {}
    for number, layer in enumerate(other.model.layers):
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(
                lambda _, inputs, out, number=number: choices.update({number: out[2]})
            )
    return choices


# These draws have every kind of gate, group limit, query projection and position table; the slow
# tier adds the others.
FAST_DRAWS = {2: (4, 5, 12, 13, 14, 15), 3: (0, 3, 8, 11, 13, 18)}
DRAWS = [
    pytest.param(version, seed, marks=() if seed in fast else pytest.mark.slow)
    for version, fast in FAST_DRAWS.items()
    for seed in range(20)
]


@pytest.mark.parametrize(("version", "seed"), DRAWS)
def test_deepseek_equals_transformers_in_logits_and_gradients(
    version: int, seed: int, tmp_path: Path
) -> None:
    shape = config(drawn(version, seed))
    params = weights(shape)
    ids = tokens(2, 9)
    write_checkpoint(tmp_path / "ours", params, shape, tier=0, companions={})
    other = theirs(tmp_path / "ours")
    net = shape.build(0, params)
    torch.testing.assert_close(net(ids), other(ids).logits, rtol=1e-4, atol=1e-4)

    net.loss(ids).backward()
    chosen = theirs_choices(other)
    logits = other(ids[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    with (
        torch.no_grad()
    ):  # the file of gradients has the Hub's names, because experts are stacked only in memory
        for tensor in other.parameters():
            tensor.copy_(torch.zeros_like(tensor) if tensor.grad is None else tensor.grad)
    other.save_pretrained(tmp_path / "gradients")
    gradients = load(tmp_path / "gradients", 0)
    for name, tensor in net.named_parameters():
        assert tensor.grad is not None, name
        if name.endswith("bias"):
            layer = int(name.split(".")[2])
            assert torch.equal(
                tensor.grad, chosen[layer].flatten().bincount(minlength=len(tensor)).float()
            )
        else:
            torch.testing.assert_close(tensor.grad, gradients[name], rtol=1e-4, atol=1e-4, msg=name)

    again = theirs(tmp_path / "ours")
    again.save_pretrained(tmp_path / "theirs")
    read = load(tmp_path / "theirs", 0)
    assert read.keys() == params.keys()
    assert all(torch.equal(read[name], params[name]) for name in params)


@BOTH
@pytest.mark.parametrize("tier", [1, 2])
def test_deepseek_tier_equals_full_model_without_other_units(
    file: dict[str, Any], tier: int, tmp_path: Path
) -> None:
    shape = config(file)
    ids = tokens()
    full = weights(shape)
    tensors = weights(shape, tier)
    write_checkpoint(tmp_path / "tier", tensors, shape, tier=tier, companions={})
    torch.testing.assert_close(
        shape.build(tier, tensors)(ids), theirs(tmp_path / "tier")(ids).logits, rtol=1e-4, atol=1e-4
    )
    for name, tensor in full.items():
        assert torch.equal(
            tensors[name], tensor[tuple(slice(0, size) for size in tensors[name].shape)]
        ), name
        if name.endswith("down_proj.weight"):
            tensor[:, tensors[name].shape[1] :] = 0
    torch.testing.assert_close(
        shape.build(tier, tensors)(ids), shape.build(0, full)(ids), rtol=1e-5, atol=1e-5
    )
    assert config_of(json.loads((tmp_path / "tier" / "config.json").read_text())) == shape


@pytest.mark.parametrize(
    ("file", "hidden", "width", "dtype"),
    [
        pytest.param(V2, 32, 16, torch.float32, id="v2, rows become too narrow at tier 2"),
        pytest.param(V3, 20, 16, torch.bfloat16, id="v3, rows of the hidden size are too narrow"),
        pytest.param(V3, 32, 16, torch.float32, id="v3, fp32", marks=pytest.mark.slow),
        pytest.param(V3, 32, 8, torch.bfloat16, id="v3, bf16", marks=pytest.mark.slow),
        pytest.param(V2, 12, 8, torch.float32, id="v2, both narrow", marks=pytest.mark.slow),
        pytest.param(V2, 32, 16, torch.bfloat16, id="v2, bf16", marks=pytest.mark.slow),
    ],
)
def test_tier_with_narrow_experts_loads_in_transformers(
    file: dict[str, Any], hidden: int, width: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    """It loads without options in both precisions, although grouped products need wider rows."""
    from transformers import AutoModelForCausalLM

    shape = config(file, hidden_size=hidden, moe_intermediate_size=width)
    write_checkpoint(tmp_path / "m", weights(shape), shape, tier=0, companions={})
    places = [tmp_path / "m", *export_tiers(tmp_path / "m", [1, 2, 3]).tiers]
    for tier, place in enumerate(places):
        other = AutoModelForCausalLM.from_pretrained(place, dtype=dtype)
        whole = hidden % 8 == 0 and (width >> tier) % 8 == 0
        assert other.config._experts_implementation == ("grouped_mm" if whole else "eager")
        logits = other(tokens()).logits
        if dtype is torch.float32:
            ours = shape.build(tier, load(place, tier))(tokens())
            torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4)


TIERS: dict[str, list[dict[str, Any]]] = {
    "widths": [
        {"moe_intermediate_size": [9, 16]},
        {"moe_intermediate_size": [9, 3], "intermediate_size": 31},
    ],
    "layers": [{"layers": [0, 2]}, {"layers": [2], "moe_intermediate_size": 5}],
}


@pytest.mark.parametrize("tiers_name", TIERS)
@BOTH
def test_deepseek_named_tier_equals_cut_full_model(file: dict[str, Any], tiers_name: str) -> None:
    """A skipped layer adds nothing to the residual stream."""
    shape = config(file, matformer_tiers=TIERS[tiers_name])
    ids = tokens()
    for tier in (1, 2):
        full = weights(shape)
        tensors = {
            name: full[name][tuple(map(slice, size))].clone()
            for name, size in shape.parameter_shapes(tier).items()
        }
        for name, tensor in full.items():
            if name.endswith(("down_proj.weight", "o_proj.weight")):
                tensor[:, tensors[name].shape[1] if name in tensors else 0 :] = 0
        nets = shape.build(tier, tensors), shape.build(0, full)
        torch.testing.assert_close(nets[0](ids), nets[1](ids), rtol=1e-5, atol=1e-5)
        for net in nets:
            net(ids).square().sum().backward()
        gradients = {name: tensor.grad for name, tensor in nets[1].named_parameters()}
        for name, tensor in nets[0].named_parameters():
            theirs = gradients[name]
            assert tensor.grad is not None
            assert theirs is not None
            assert tensor.grad.any() or ".experts." in name or name.endswith("bias"), (
                f"{name} learns nothing"
            )
            part = theirs[tuple(map(slice, tensor.shape))]
            torch.testing.assert_close(tensor.grad, part, rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.parametrize("tier", [0, 2])
@BOTH
def test_deepseek_position_ignores_later_tokens(file: dict[str, Any], tier: int) -> None:
    shape = config(file, matformer_tiers=TIERS["layers"])
    net = shape.build(tier, weights(shape, tier))
    ids = tokens()
    for place in (1, 6, 11):
        changed = ids.clone()
        changed[:, place:] = (changed[:, place:] + 1) % 48
        before = net(ids)
        after = net(changed)
        torch.testing.assert_close(before[:, :place], after[:, :place], rtol=1e-5, atol=1e-5)
        assert not torch.allclose(before[:, place], after[:, place])


def test_equal_expert_scores_choose_lower_number() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert _highest(scores, 4).tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]


@BOTH
def test_unchosen_experts_have_zero_gradients(file: dict[str, Any]) -> None:
    shape = config(file)
    gradients = []
    for _ in range(2):
        net = shape.build(0, weights(shape))
        net.loss(tokens(1, 2)).backward()
        gradients.append({name: tensor.grad for name, tensor in net.named_parameters()})
    experts = [grad for name, grad in gradients[0].items() if ".experts." in name]
    assert all(grad is not None for grad in gradients[0].values())
    assert any(not grad.any() for grad in experts if grad is not None)
    assert any(grad.any() for grad in experts if grad is not None)
    assert all(
        torch.equal(grad, gradients[1][name])
        for name, grad in gradients[0].items()
        if grad is not None
    )


@pytest.mark.slow
@pytest.mark.parametrize(("file", "tier"), [(V2, 0), (V3, 2)], ids=["v2", "v3"])
def test_deepseek_overfitted_text_is_generated_again(file: dict[str, Any], tier: int) -> None:
    ids = torch.arange(12)[None] * 5 % 48
    shape = config(file, num_hidden_layers=2, initializer_range=0.02, eos_token_id=None)
    net = shape.build(tier, init_weights(shape, 7, tier))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    first = net.loss(ids).item()
    for _ in range(60):
        optimizer.zero_grad()
        loss = net.loss(ids)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3 < 3.5 < first
    assert generate(net, ids[0, :4].tolist(), new_tokens=8).ids == ids[0, 4:].tolist()


@BOTH
def test_schema_roundtrips_and_counts_parameters_of_tiers(file: dict[str, Any]) -> None:
    shape = config(file)
    schema = build_schema(file, 3, _distro())
    assert Schema.from_json(schema.to_json()).hash() == schema.hash()
    for tier in range(3):
        assert schema.state.parameters(tier) == sum(
            tensor.numel() for tensor in weights(shape, tier).values()
        )


@BOTH
def test_deepseek_round_moves_every_tensor(file: dict[str, Any]) -> None:
    from aftermath.optim.codec import decode_level

    shape = config(file)
    schema = build_schema(file, 3, _distro())
    params = weights(shape)
    before = weights(shape)
    net = shape.build(0, params)
    engine = Engine(schema, 0, dict(net.named_parameters()))

    def backward(sequences: Tensor) -> float:
        loss = net.loss(sequences)
        loss.backward()
        return loss.item()

    result = engine.train(tokens(), backward, 1e-2, 0.0)
    engine.apply(
        {k: [decode_level(sent, schema.results, k)] for k, sent in result.payloads.items()}, 1e-2
    )
    for name, tensor in net.named_parameters():
        assert not torch.equal(tensor, before[name]), name


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (V2 | {"norm_topk_prob": True}, "norm_topk_prob True is not supported"),
        (V2 | {"topk_method": "noaux_tc"}, "topk_method: "),
        (V3 | {"topk_method": "greedy"}, "topk_method 'greedy' is not supported"),
        (V3 | {"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        (V3 | {"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported"),
        (V3 | {"num_key_value_heads": 2}, "num_key_value_heads 2 is not supported"),
        (V3 | {"num_experts_per_tok": 1}, "norm_topk_prob needs num_experts_per_tok of at least 2"),
        (V3 | {"num_experts_per_tok": 5}, "num_experts_per_tok 5 is more than the 4"),
        (V3 | {"n_group": 3}, "n_routed_experts 8 is not a multiple of n_group 3"),
        (V3 | {"n_group": 8, "num_experts_per_tok": 2}, "n_group 8 is too high"),
        (V3 | {"topk_group": 5}, "topk_group 5 is more than n_group 4"),
        (V3 | {"qk_rope_head_dim": 3}, "qk_rope_head_dim 3 is odd"),
        (V3 | {"num_attention_heads": 5}, "hidden_size 32 is not a multiple of 5 heads"),
        (
            V3 | {"num_hidden_layers": 512, "n_routed_experts": 512},
            "512 layers with 512 experts each have more than 65536 experts",
        ),
        (V2 | {"head_dim": 6}, "head_dim 6 is not supported"),
        (V3 | {"head_dim": 6}, "head_dim 6 is not supported"),
        (V2 | {"num_experts": 4}, "num_experts 4 contradicts n_routed_experts 8"),
        (V2 | {"num_experts": None}, "num_experts None contradicts n_routed_experts 8"),
        (V3 | {"num_local_experts": 16}, "num_local_experts 16 contradicts n_routed_experts 8"),
        (
            V3 | {"num_mtp_layers": 2, "num_nextn_predict_layers": 1},
            "num_mtp_layers 2 contradicts num_nextn_predict_layers 1",
        ),
        (V3 | {"attention_bias": True}, "attention_bias True is not supported"),
        (
            V3 | {"rope_scaling": {"type": "linear", "factor": 40}},
            "positions of type 'linear' are not supported",
        ),
        (
            V3 | {"quantization_config": {"quant_method": "fp8"}},
            r"quantization_config \{'quant_method': 'fp8'\} is not supported",
        ),
        ({key: V3[key] for key in V3 if key != "q_lora_rank"}, "q_lora_rank is missing"),
        (V3 | {"q_lora_rank": (1 << 16) + 1}, "q_lora_rank"),
        (V3 | {"q_lora_rank": 0}, "q_lora_rank"),
    ],
)
def test_deepseek_config_with_unsupported_key_is_refused(
    keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelConfigError, match=message):
        config_of(keys)


@BOTH
def test_deepseek_aliases_of_transformers_pass_if_equal(file: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    document = file | {"num_nextn_predict_layers": 1}
    aliases = type(config(file)).ALIASES
    assert transformers.AutoConfig.for_model(file["model_type"]).attribute_map == aliases
    agreeing = document | {alias: document[key] for alias, key in aliases.items()}
    assert (
        config(agreeing, head_dim=file["qk_rope_head_dim"])
        == config(file)
        == config(file, head_dim=None)
    )


def test_indivisible_expert_width_is_refused() -> None:
    with pytest.raises(WidthNotDivisible, match="moe_intermediate_size 18 is not divisible by 4"):
        state_schema(V3 | {"moe_intermediate_size": 18}, 3)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=3,
)


@given(
    file=st.sampled_from([V2, V3]),
    key=st.sampled_from(sorted(config(V3).to_hf().keys() | config(V2).to_hf().keys())),
    value=ANYTHING,
)
def test_deepseek_config_values_raise_only_config_errors(
    file: dict[str, Any], key: str, value: Any
) -> None:
    try:
        config_of(file | {key: value})
    except ModelConfigError as error:
        refused = error.message
    else:
        return
    assert "config.json: " in refused


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


LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "v_head_dim": 128,
    "vocab_size": 102400,
}
"""The keys of DeepSeek-V2-Lite on the Hub that change its function or its shapes."""


def test_published_deepseek_config_is_cut_into_tiers() -> None:
    shape = config(LITE)
    assert shape.rope_type == "yarn"
    assert shape.attention_scale == pytest.approx(
        192**-0.5 * (0.0707 * 3.6888794541139363 + 1) ** 2
    )
    sizes = [sum(map(math.prod, shape.parameter_shapes(tier).values())) for tier in range(3)]
    assert sizes[0] == pytest.approx(15.7e9, rel=0.01)
    assert sizes == sorted(sizes, reverse=True)
    assert config_of(shape.to_hf()) == shape


@pytest.mark.parametrize("key", ["norm_topk_prob", "rope_interleave"])
def test_deepseek_null_flag_means_false(key: str) -> None:
    """transformers reads the key the same way, whatever its default."""
    assert getattr(config(V3, **{key: True}), key) is True
    assert getattr(config(V3, **{key: None}), key) is False
