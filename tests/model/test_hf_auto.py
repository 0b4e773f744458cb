"""Models of transformers as a run's model: equal function, tiers, and checkpoints in both
directions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from aftermath.model.arch import hf_auto_document
from aftermath.model.architectures import architecture_of, config_of
from aftermath.model.checkpoint import load, merged
from aftermath.model.config import ModelConfigError
from aftermath.model.export import export_tiers
from aftermath.model.json_documents import CheckpointError
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.model.schema import StateInputs, state_of_inputs, state_schema
from aftermath.rules.state import Architecture
from lab.lab_place import DISTRO, INNER, prepare, train

torch.set_num_threads(1)
transformers = pytest.importorskip("transformers")

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "olmo2": {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    | {"intermediate_size": 32},
    "opt": {
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 32,
    }
    | {"word_embed_proj_dim": 16, "max_position_embeddings": 64},
    "mixtral": {
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    | {"intermediate_size": 32, "num_key_value_heads": 1, "num_local_experts": 4},
    "qwen3_moe": {
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 8,
    }
    | {
        "num_key_value_heads": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
    },
    "gpt_oss": {
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 8,
    }
    | {
        "num_key_value_heads": 1,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 24,
    },
    "mamba": {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
    "gemma": {
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 8,
    }
    | {"intermediate_size": 32, "num_key_value_heads": 1},
}
DROPOUT = {"gpt2": {"resid_pdrop": 0.5, "embd_pdrop": 0.5}, "opt": {"dropout": 0.5}}


@pytest.fixture(params=MODELS)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """Return a model of transformers and its saved checkpoint."""
    name: str = request.param
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(name, **MODELS[name], **DROPOUT.get(name, {}))
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    if "experts" in " ".join(name for name, _ in theirs.named_parameters()):
        theirs.set_experts_implementation("eager")
    theirs.save_pretrained(tmp_path / "theirs")
    return theirs, tmp_path / "theirs"


def document(place: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((place / "config.json").read_text())
    return content


def test_hf_auto_equals_transformers_and_roundtrips(
    saved: tuple[Any, Path], tmp_path: Path
) -> None:
    theirs, place = saved
    config = config_of(document(place))
    assert architecture_of(document(place)) == Architecture.HF_AUTO
    params = load(place, 0)
    ours = config.build(0, params)
    ours.train()  # no dropout, which would draw unseeded
    tokens = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(2))
    assert torch.equal(ours(tokens), theirs(tokens).logits)
    ours.loss(tokens).backward()
    logits = theirs(tokens[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    our_gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert our_gradients.keys() == gradients.keys() == config.parameter_shapes().keys()
    for name, gradient in our_gradients.items():
        assert gradient is not None
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-5, atol=1e-6)
    assert all(
        parameter.data_ptr() == params[name].data_ptr()
        for name, parameter in ours.named_parameters()
    )
    write_checkpoint(tmp_path / "ours", params, config, tier=0, companions={})
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32
    ).eval()
    torch.testing.assert_close(again(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-6)
    assert {name: tensor.tolist() for name, tensor in again.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in theirs.state_dict().items()
    }


SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


@pytest.mark.parametrize(
    "changes",
    [
        {
            "model_type": "gemma2",
            "head_dim": 8,
            "final_logit_softcapping": None,
            "attn_logit_softcapping": None,
        },
        {"model_type": "gemma2", "head_dim": 8, "final_logit_softcapping": 0.5},
        {"model_type": "olmo2", "pad_token_id": 0},
        {"model_type": "olmo2", "pad_token_id": None},
        {"model_type": "olmo2"},
        {"model_type": "phi3", "pad_token_id": 0},
        {"model_type": "phi3", "pad_token_id": None},
    ],
    ids=str,
)
def test_hf_null_and_padding_equal_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    """Missing keys get transformers' defaults, and the padding token's embedding row is not
    trained.
    """
    written = SMALL | {"num_key_value_heads": 1} | changes
    (tmp_path / "config.json").write_text(json.dumps(written))
    torch.manual_seed(1)
    their_config = transformers.AutoConfig.from_pretrained(tmp_path, local_files_only=True)
    theirs = transformers.AutoModelForCausalLM.from_config(their_config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.3)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(written))
    tokens = torch.randint(0, 64, (2, 40), generator=torch.Generator().manual_seed(2))
    logits = theirs(tokens).logits
    torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    ).backward()
    first = config_of(document(tmp_path))
    for config in (first, config_of(first.to_hf())):
        ours = config.build(0, load(tmp_path, 0))
        torch.testing.assert_close(ours(tokens), logits, rtol=1e-5, atol=1e-6)
        ours.loss(tokens).backward()
        gradients = dict(ours.named_parameters())
        for name, parameter in theirs.named_parameters():
            torch.testing.assert_close(gradients[name].grad, parameter.grad, rtol=1e-4, atol=1e-6)


def test_hf_schema_survives_its_document(saved: tuple[Any, Path]) -> None:
    entries = document(saved[1])
    for tiers in range(1, config_of(entries).possible_tiers() + 1)[:3]:
        schema_document = state_schema(entries, tiers).document()
        again = state_of_inputs(StateInputs(schema_document["model"], schema_document["widths"]))
        assert again.document() == schema_document
        silent = entries | {"transformers_version": "1", "_name_or_path": "x", "use_cache": False}
        assert state_schema(silent, tiers).document() == schema_document
    lying = schema_document["model"] | {"intermediate_size": 8}
    with pytest.raises(ModelConfigError, match="intermediate_size 8 differs"):
        state_of_inputs(StateInputs(lying, schema_document["widths"]))
    for text in ("[", "[]", "[" * 60_000):
        with pytest.raises(ModelConfigError, match="not a JSON object"):
            state_of_inputs(
                StateInputs(
                    schema_document["model"] | {"document": text}, schema_document["widths"]
                )
            )


WHOLE = {
    "mixtral": "experts.gate_up_proj",
    "gpt_oss": "experts.gate_up_proj",
    "mamba": "mixer.A_log",
} | {
    "qwen3_moe": "none of its tensors has the width intermediate_size",
    "phi3": "mlp.gate_up_proj.weight",
    "bloom": "no feed-forward width that can be halved",
}


@pytest.mark.parametrize("name", WHOLE)
def test_hf_uncuttable_model_has_one_tier_and_reason(name: str) -> None:
    entries = {"model_type": name, "pad_token_id": None} | MODELS.get(
        name, SMALL | {"num_key_value_heads": 1}
    )
    config = config_of(entries)
    assert config.possible_tiers() == 1
    assert {segment.dim for segment in state_schema(entries, 1).segments} == {None}
    with pytest.raises(ModelConfigError, match=f"of type '{name}' has no tier 1: .*{WHOLE[name]}"):
        state_schema(entries, 2)


def test_hf_unbuildable_network_has_one_tier() -> None:
    config = config_of({"model_type": "gpt2"} | MODELS["gpt2"] | {"n_embd": 15})
    assert config.possible_tiers() == 1
    with pytest.raises(ModelConfigError, match="transformers cannot build it"):
        config.parameter_shapes()


# The key under which each type writes its width, or none.
CUT: dict[str, dict[str, Any]] = {
    **{name: MODELS[name] for name in ("gpt2", "olmo2", "opt", "gemma")},
    "gpt_neox": SMALL,
    "gptj": {
        "vocab_size": 64,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 64,
        "rotary_dim": 4,
    }
    | {"n_inner": None},
    "phi": SMALL,
    "starcoder2": SMALL | {"num_key_value_heads": 1},
    "nemotron": SMALL | {"num_key_value_heads": 1},
}


# One for each key of the width, and one without; the slow tests have the other architectures.
FAST_CUT = ("gpt2", "gptj", "opt", "starcoder2")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST_CUT else pytest.mark.slow) for name in CUT]
)
def test_tier_logits_equal_transformers_on_exported_tier(name: str, tmp_path: Path) -> None:
    """A tier is transformers' network with only the first hidden units of each feed-forward."""
    torch.manual_seed(1)
    their_config = transformers.AutoConfig.for_model(name, **CUT[name])
    theirs = transformers.AutoModelForCausalLM.from_config(their_config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.3)
    theirs.save_pretrained(tmp_path / "m")
    config = config_of(document(tmp_path / "m"))
    whole = load(tmp_path / "m", 0)
    assert config.possible_tiers() >= 4
    export_tiers(tmp_path / "m", [1, 2])
    tokens = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(2))
    logits = [config.build(0, whole)(tokens)]
    for tier in (1, 2):
        params = load(tmp_path / "m", tier, "universal")
        place = tmp_path / f"m-tier{tier}"
        assert config_of(document(place)) == config
        assert document(place)["matformer_tier"] == tier
        sliced = load(place, tier)
        width = config.intermediate_size >> tier
        cut = {key for key in params if params[key].shape != whole[key].shape}
        assert cut
        assert all(config.elastic_dim(key) is not None for key in cut)
        for key, tensor in params.items():
            assert torch.equal(tensor, sliced[key])
            dim = config.elastic_dim(key)
            assert torch.equal(
                tensor, whole[key] if dim is None else whole[key].narrow(dim, 0, width)
            )
        exported = transformers.AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32
        ).eval()
        logits.append(config.build(tier, params)(tokens))
        assert torch.equal(logits[-1], exported(tokens).logits)
        _, again = merged(tmp_path / "m", place)
        assert all(torch.equal(again[key], whole[key]) for key in whole)
        # the full model without the other units
        blind = {key: tensor.clone() for key, tensor in whole.items()}
        for key in cut:
            dim = config.elastic_dim(key)
            assert dim is not None
            blind[key].narrow(dim, width, config.intermediate_size - width).zero_()
        torch.testing.assert_close(config.build(0, blind)(tokens), logits[-1], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits[0], logits[1], atol=1e-2)
    wrong = document(tmp_path / "m-tier1") | {
        "matformer_base_intermediate_size": 128,
        "intermediate_size": 64,
    }
    with pytest.raises(
        ModelConfigError, match=r"is not matformer_base_intermediate_size 128 / 2\^1|disagree"
    ):
        config_of(wrong | {"ffn_dim": 8, "n_inner": 8, "intermediate_size": 8})


SIZES = (
    "matformer_tier",
    "matformer_base_intermediate_size",
    "intermediate_size",
    "n_inner",
    "n_embd",
)
ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([8, 16, 32, 64, 1, 2])
    | st.text(max_size=3)
)


@given(
    st.dictionaries(
        st.sampled_from(SIZES), ANYTHING | st.floats() | st.lists(st.integers(), max_size=2)
    )
)
def test_hf_config_sizes_are_read_or_refused(change: dict[str, Any]) -> None:
    try:
        config = config_of({"model_type": "gpt2"} | MODELS["gpt2"] | change)
        shapes = [config.parameter_shapes(tier) for tier in range(config.possible_tiers())]
    except ModelConfigError:
        return
    assert all(min(shape) > 0 for tier_shapes in shapes for shape in tier_shapes.values())
    assert config_of(config.to_hf(len(shapes) - 1)) == config


@pytest.mark.parametrize("saved", ["mixtral", "qwen3_moe"], indirect=True)
def test_hf_experts_are_stacked_from_single_tensors(
    saved: tuple[Any, Path], tmp_path: Path
) -> None:
    theirs, place = saved
    config = config_of(document(place))
    stacks = {name: shape for name, shape in config.parameter_shapes().items() if len(shape) == 3}
    assert len(stacks) == 4
    filed = load_file(place / "model.safetensors")
    params = load(place, 0)
    assert stacks.keys().isdisjoint(filed)
    assert all(torch.equal(params[name], tensor) for name, tensor in theirs.named_parameters())
    write_checkpoint(tmp_path / "ours", params, config, tier=0, companions={})
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    assert ours.keys() == filed.keys()
    assert all(torch.equal(ours[name], filed[name]) for name in filed)
    save_file(params, place / "model.safetensors")  # by module name
    assert all(torch.equal(load(place, 0)[name], params[name]) for name in params)
    listed = next(name for name in filed if ".experts.1." in name)
    for weights, says in (
        (
            {name: tensor for name, tensor in filed.items() if name != listed},
            r"lacks 1 tensor, first .*experts\.",
        ),
        (filed | {listed: filed[listed][1:]}, r"is F32 .*, but config\.json says"),
        (filed | params, "whole and in pieces"),
    ):
        save_file(
            {name: tensor.clone() for name, tensor in weights.items()}, place / "model.safetensors"
        )
        with pytest.raises(CheckpointError, match=says):
            load(place, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tiers", "optimizer"),
    [
        pytest.param("gpt2", "0,1,2", INNER, id="gpt2"),
        pytest.param("qwen3_moe", "0", DISTRO, id="qwen3_moe"),
        pytest.param("gpt2", "0,1,2", DISTRO, id="gpt2-distro"),
        pytest.param("opt", "0,1", DISTRO, id="opt"),
        pytest.param("qwen3_moe", "0", INNER, id="qwen3_moe-inner"),
    ],
)
def test_hf_members_train_with_equal_replicas(
    tmp_path: Path, name: str, tiers: str, optimizer: dict[str, Any]
) -> None:
    their_config = transformers.AutoConfig.for_model(name, **MODELS[name])
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(their_config).save_pretrained(tmp_path / name)
    prepare(tmp_path)
    options = optimizer | {
        "tiers": tiers,
        "members": max(2, len(tiers.split(","))),
        "total_batch": 6,
    }
    events = train(
        tmp_path, **options, model=tmp_path / name, steps=6, lr=0.003, out=tmp_path / "out"
    )
    losses = [event["loss"] for event in events if event["kind"] == "step"]
    assert losses[-1] < losses[0]
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "checkpoint")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"auto_map": {"AutoConfig": "x.y"}}, "auto_map is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        (
            {"matformer_tier": 1, "intermediate_size": 8},
            "n_inner 64 is not matformer_base_intermediate_size 16",
        ),
        (
            {"model_type": "bloom", "matformer_tier": 1, "intermediate_size": 8},
            "matformer_tier is 1, but",
        ),
        ({"model_type": "bert-like"}, "model_type 'bert-like' is not supported"),
        ({"model_type": "vit"}, "model_type 'vit' is not supported"),
        ({"model_type": "rwkv"}, "model_type rwkv is not supported: its weights change"),
        (
            {"model_type": "deepseek_v32"},
            "model_type deepseek_v32 is not supported: .* get no gradient",
        ),
        ({"n_embd": "many"}, "transformers rejects it"),
        ({"n_embd": 15}, "transformers cannot build it"),
        ({"hidden_size": 32}, "hidden_size 32 contradicts n_embd 16"),
        ({"num_hidden_layers": None}, "num_hidden_layers None contradicts n_layer 2"),
        ({"n_embd": float("nan")}, "config.json"),
    ],
)
def test_hf_config_refused_by_transformers_is_a_config_error(
    change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ModelConfigError, match=says):
        config_of({"model_type": "gpt2"} | MODELS["gpt2"] | change).parameter_shapes()


@pytest.mark.parametrize("name", ["musicgen", "blt"])
def test_hf_model_not_of_text_alone_is_refused(name: str) -> None:
    """The config has several text parts, or none with a width."""
    with pytest.raises(ModelConfigError, match=r"config\.json: "):
        config_of({"model_type": name, "vocab_size": 64})


@pytest.mark.parametrize(
    ("name", "bound", "most", "change", "says"),
    [
        ("gpt2", "_MODULES", 40, {"n_layer": 3}, "the model has more than 40 modules"),
        (
            "qwen3_moe",
            "_CUTS",
            39,
            {"num_experts": 5},
            "the model has more than 39 tensors in its files",
        ),
    ],
)
def test_hf_network_is_refused_only_beyond_bound(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    bound: str,
    most: int,
    change: dict[str, Any],
    says: str,
) -> None:
    monkeypatch.setattr(hf_auto_document, bound, most)
    file = {"model_type": name, "initializer_range": 0.03} | MODELS[name]
    config_of(file).pieces()
    with pytest.raises(ModelConfigError, match=says):
        config_of(file | change).pieces()
    module = torch.nn.ModuleList([torch.nn.Linear(1, 1)])
    assert len(module) == 1, "modules that others make afterwards are not counted"


def test_hf_model_without_transformers_names_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelConfigError, match=r"aftermath\[hf\]"):
        config_of({"model_type": "gpt2"} | MODELS["gpt2"])
