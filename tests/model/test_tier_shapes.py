"""Tiers with named layers, heads and widths: their tensors, function and files, and bad entries."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aftermath.model.architectures import config_of
from aftermath.model.checkpoint import load, load_config, merged, verified
from aftermath.model.config import ModelConfig, ModelConfigError
from aftermath.model.export import export_tiers
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import CheckpointError
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.model.schema import StateInputs, state_of_inputs, state_schema
from aftermath.model.segments import level_hash, view
from aftermath.model.tier_shapes import PARTS

torch.set_num_threads(1)

LLAMA = {
    "model_type": "llama",
    "vocab_size": 33,
    "hidden_size": 24,
    "intermediate_size": 12,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 4,
    "max_position_embeddings": 64,
}
NANOGPT = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"} | {
    "model_type": "nanogpt"
}
BOUND = NANOGPT | {
    "value_embeddings": 2,
    "unet_skips": True,
    "x0_residual": True,
    "num_hidden_layers": 5,
}
"""A NanoGPT with skips between layers and with token tables."""
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "vocab_size": 33,
    "hidden_size": 24,
    "intermediate_size": 12,
    "moe_intermediate_size": 10,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    "max_position_embeddings": 64,
}
V2 = {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy"}
KINDS: dict[str, list[dict[str, Any]]] = {
    "widths": [{"intermediate_size": 7}, {"intermediate_size": 3}],
    "a width for every layer": [
        {"intermediate_size": [12, 9, 5, 5]},
        {"intermediate_size": [8, 4, 4, 1]},
    ],
    "heads": [{"num_key_value_heads": 2}, {"num_key_value_heads": 1}],
    "layers": [{"layers": [0, 1, 3]}, {"layers": [3]}],
    "all at once": [
        {"layers": [0, 2, 3], "num_key_value_heads": [3, 2, 1]},
        {"layers": [0, 3], "intermediate_size": [12, 5]},
    ],
}


def random_tiers(chance: random.Random, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return two random entries, each smaller than the one before."""
    layers = config["num_hidden_layers"]
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    shapes = dict.fromkeys(range(layers), (config["intermediate_size"], heads))
    entries = []
    for number in range(2):
        kept_layers = sorted(
            chance.sample(sorted(shapes), chance.randint(max(1, len(shapes) - 1), len(shapes)))
        )
        shapes = {
            n: (chance.randint(20 - 9 * number, shapes[n][0] - 1), chance.randint(1, shapes[n][1]))
            for n in kept_layers
        }
        sizes = {
            "intermediate_size": [w for w, _ in shapes.values()],
            "num_key_value_heads": [h for _, h in shapes.values()],
        }
        entries.append({"layers": kept_layers} | sizes)
    return entries


def random_tiers_of_experts(chance: random.Random, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a tiered model with dense first layers. It keeps dense and expert layers, or only one
    kind.
    """
    dense = config["first_k_dense_replace"]
    whole = (config["intermediate_size"], config["moe_intermediate_size"])
    experts = {n: whole[n >= dense] for n in range(config["num_hidden_layers"])}
    entries = []
    for _ in range(2):
        kept_layers = sorted(
            chance.sample(sorted(experts), chance.randint(max(1, len(experts) - 1), len(experts)))
        )
        experts = {n: chance.randint(experts[n] // 2, experts[n] - 1) for n in kept_layers}
        sizes = {
            "intermediate_size": [w for n, w in experts.items() if n < dense],
            "moe_intermediate_size": [w for n, w in experts.items() if n >= dense],
        }
        entries.append(
            {"layers": kept_layers} | {part: size for part, size in sizes.items() if size}
        )
    return entries


def random_weights(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=source) * 0.3
        for name, shape in config.parameter_shapes().items()
    }


def files_of(number: int) -> dict[str, Any]:
    chance = random.Random(number)
    bases = [
        LLAMA,
        LLAMA | {"model_type": "qwen2"},
        LLAMA | {"model_type": "qwen3"},
        NANOGPT,
        BOUND,
        BOUND,
        DEEPSEEK,
        DEEPSEEK | V2,
    ]
    base = bases[number % len(bases)]
    base = base | {"intermediate_size": 60, "tie_word_embeddings": number % 3 == 0}
    drawn = random_tiers_of_experts if "moe_intermediate_size" in base else random_tiers
    return base | {"matformer_tiers": drawn(chance, base)}


# Every base occurs in the first eight. The slow tests draw other tiers of the same bases.
NUMBERS = pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=pytest.mark.slow if number >= 10 else ()) for number in range(24)],
)


@NUMBERS
def test_tier_equals_its_export_and_merges_back(number: int, tmp_path: Path) -> None:
    config = config_of(files_of(number))
    weights = random_weights(config, number)
    write_checkpoint(tmp_path / "m", weights, config, tier=0, companions={})
    export_tiers(tmp_path / "m", [1, 2])
    assert verified(tmp_path / "m").tiers == (1, 2)
    tokens = torch.randint(
        0, config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(number)
    )
    for tier in (1, 2):
        place = tmp_path / f"m-tier{tier}"
        assert load_config(place) == config
        cut = load(tmp_path / "m", tier, "universal")
        own = load(place, tier)
        assert {
            name: tuple(tensor.shape) for name, tensor in own.items()
        } == config.parameter_shapes(tier)
        assert all(torch.equal(own[name], cut[name]) for name in cut)
        assert torch.equal(config.build(tier, cut)(tokens), config.build(tier, own)(tokens))
        _, again = merged(tmp_path / "m", place)
        assert all(torch.equal(again[name], weights[name]) for name in weights)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", "heads"),
        ("llama", "layers"),
        ("llama", "widths"),
        ("qwen2", "heads"),
        ("qwen3", "heads"),
    ],
)
def test_tier_of_equal_layers_equals_transformers(family: str, kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = config_of(LLAMA | {"model_type": family, "matformer_tiers": KINDS[kind]})
    write_checkpoint(tmp_path / "m", random_weights(config, 5), config, tier=0, companions={})
    export_tiers(tmp_path / "m", [1, 2])
    tokens = torch.randint(
        0, config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(1)
    )
    for tier in (1, 2):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / f"m-tier{tier}"
        ).eval()
        ours = config.build(tier, load(tmp_path / f"m-tier{tier}", tier))
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "entries",
    [
        [{"moe_intermediate_size": 7}, {"moe_intermediate_size": 2, "intermediate_size": 5}],
        [{"layers": [0, 1, 3]}, {"layers": [1, 3]}],
        [{"layers": [2, 3], "moe_intermediate_size": 9}, {"layers": [3]}],
        [{"layers": [0, 1], "intermediate_size": 9}, {"layers": [0]}],
    ],
    ids=["widths", "layers", "experts alone", "dense layers alone"],
)
@pytest.mark.parametrize("file", [DEEPSEEK, DEEPSEEK | V2], ids=["v3", "v2"])
def test_deepseek_tier_equals_its_export_and_merges_back(
    file: dict[str, Any], entries: list[dict[str, Any]], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    config = config_of(file | {"matformer_tiers": entries})
    write_checkpoint(tmp_path / "m", random_weights(config, 5), config, tier=0, companions={})
    export_tiers(tmp_path / "m", [1, 2])
    tokens = torch.randint(
        0, config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(1)
    )
    for tier in (1, 2):
        place = tmp_path / f"m-tier{tier}"
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            place, experts_implementation="eager"
        ).eval()
        torch.testing.assert_close(
            config.build(tier, load(place, tier))(tokens),
            theirs(tokens).logits,
            rtol=1e-4,
            atol=1e-4,
        )


@NUMBERS
def test_levels_cover_each_number_once_at_every_tier(number: int) -> None:
    config = config_of(files_of(number))
    schema = state_schema(config.to_hf(), 3)
    document = schema.document()
    assert (
        state_of_inputs(StateInputs(document["model"], document["widths"])).document() == document
    )
    assert document["widths"] == sorted(set(document["widths"]), reverse=True)
    full = random_weights(config, number)
    coverage = {name: torch.zeros(tensor.shape) for name, tensor in full.items()}
    for segment in schema.segments:
        view(coverage, segment).add_(1)
    assert all(torch.all(times == 1) for times in coverage.values())
    for tier in range(3):
        tensors = {
            name: full[name][tuple(map(slice, shape))]
            for name, shape in config.parameter_shapes(tier).items()
        }
        assert sum(tensor.numel() for tensor in tensors.values()) == schema.parameters(tier)
        for level in range(tier, 3):
            assert level_hash(tensors, schema, level) == level_hash(full, schema, level)
        started = init_weights(config, 3, tier)
        whole = init_weights(config, 3)
        assert all(
            torch.equal(started[name], whole[name][tuple(map(slice, tensors[name].shape))])
            for name in tensors
        )


@pytest.mark.parametrize("kind", KINDS)
def test_equal_tiers_in_any_notation_are_equal(kind: str) -> None:
    config = config_of(LLAMA | {"matformer_tiers": KINDS[kind]})
    entries = config.to_hf()["matformer_tiers"]
    assert config_of(LLAMA | {"matformer_tiers": entries}) == config
    assert config.to_hf(1)["matformer_tiers"] == entries
    assert config.possible_tiers() == 3
    plain = state_schema(LLAMA, 3).document()
    assert "matformer_tiers" not in plain["model"]
    assert state_schema(config.to_hf(), 3).document() != plain


def test_tier_inherits_unnamed_sizes_from_tier_before() -> None:
    config = config_of(LLAMA | {"matformer_tiers": KINDS["all at once"]})
    last = config.to_hf(2)["matformer_tiers"][1]
    assert last == {"layers": [0, 3], "intermediate_size": [12, 5], "num_key_value_heads": [3, 1]}
    assert config.to_hf(2)["num_hidden_layers"] == 2
    assert config.to_hf(2)["num_attention_heads"] == 6
    assert config.to_hf(2)["matformer_base"]["num_hidden_layers"] == 4


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({}, None),
        ("two", r"matformer_tiers must be a list"),
        ([{}], r"matformer_tiers\[0\] must set one or more"),
        ([{"width": 3}], r"matformer_tiers\[0\]\.width is an unknown key"),
        ([{"intermediate_size": 13}], r"intermediate_size is 13; it must be from 1 to 12"),
        ([{"intermediate_size": 0}], "is 0; it must be from 1"),
        ([{"intermediate_size": 2.5}], "must be a whole number"),
        ([{"intermediate_size": [3, 3]}], "a list of 4"),
        ([{"layers": []}], r"matformer_tiers\[0\]\.layers must be a list"),
        ([{"layers": [1, 0]}], "in ascending order"),
        ([{"layers": [0, 4]}], "names layer 4, which the tier before it lacks"),
        ([{"layers": [0, 1, 2, 3]}], "must be smaller than the tier before it"),
        ([{"layers": [0, 1]}, {"layers": [0, 2]}], r"matformer_tiers\[1\]\.layers names layer 2"),
        ([{"intermediate_size": 5}, {"intermediate_size": 6}], "is 6; it must be from 1 to 5"),
        ([{"num_key_value_heads": True}], "must be a whole number"),
    ],
)
def test_invalid_tier_entry_is_named(entries: object, says: str | None) -> None:
    if says is None:
        assert config_of(LLAMA | {"matformer_tiers": entries}) == config_of(LLAMA)
        return
    with pytest.raises(ModelConfigError, match=says):
        config_of(LLAMA | {"matformer_tiers": entries})


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (LLAMA | {"matformer_tiers": [{"moe_intermediate_size": 1}]}, "cuts moe_intermediate_size"),
        (DEEPSEEK | {"matformer_tiers": [{"num_key_value_heads": 1}]}, "cuts num_key_value_heads"),
        (
            DEEPSEEK | {"matformer_tiers": [{"moe_intermediate_size": 11}]},
            "is 11; it must be from 1 to 10",
        ),
        (
            DEEPSEEK | {"matformer_tiers": [{"moe_intermediate_size": [9, 9, 9]}]},
            "a list of 2: one for .* has this size",
        ),
        (
            DEEPSEEK | {"matformer_tiers": [{"layers": [2, 3], "intermediate_size": 3}]},
            r"intermediate_size does not apply to any layer",
        ),
    ],
)
def test_uncuttable_tier_entry_is_named(file: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelConfigError, match=says):
        config_of(file)


def test_tier_beyond_last_entry_is_named(tmp_path: Path) -> None:
    config = config_of(LLAMA | {"matformer_tiers": KINDS["layers"]})
    write_checkpoint(tmp_path / "m", init_weights(config, 0), config, tier=0, companions={})
    with pytest.raises(ModelConfigError, match="no entry for tier 3"):
        state_schema(config.to_hf(), 4)
    with pytest.raises(ModelConfigError, match="no entry for tier 3"):
        export_tiers(tmp_path / "m", [3])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": 4}, "num_hidden_layers is 4, but 3 according to matformer_tiers"),
        ({"matformer_base": None}, "matformer_base must be a table"),
        ({"matformer_base": {"hidden_size": 3}}, "matformer_base must be a table"),
        ({"matformer_base_intermediate_size": None}, "matformer_base_intermediate_size is missing"),
    ],
)
def test_contradicting_tiers_file_is_refused(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    config = config_of(LLAMA | {"matformer_tiers": KINDS["layers"]})
    write_checkpoint(tmp_path / "m", init_weights(config, 0), config, tier=0, companions={})
    export_tiers(tmp_path / "m", [1])
    place = tmp_path / "m-tier1"
    document = json.loads((place / "config.json").read_text()) | change
    (place / "config.json").write_text(json.dumps(document))
    with pytest.raises((ModelConfigError, CheckpointError), match=says):
        load(place, 1)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 14) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(PARTS), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from([LLAMA, DEEPSEEK]), ANYTHING | st.lists(ANYTHING, max_size=3))
def test_tier_entries_raise_only_config_errors(file: dict[str, Any], entries: object) -> None:
    try:
        config = config_of(file | {"matformer_tiers": entries})
    except ModelConfigError:
        return
    tiers = config.possible_tiers()
    sizes = [state_schema(config.to_hf(), tiers).parameters(tier) for tier in range(tiers)]
    assert sizes == sorted(set(sizes), reverse=True)
