"""The state schema: levels of a model's tensors, and refusal of models that cannot be cut."""

from typing import Any

import pytest

from aftermath.base.canonical_json import canonical
from aftermath.base.errors import SchemaError
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfigError, WidthNotDivisible, stored_tier
from aftermath.model.schema import StateSchema, state_schema

HF: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def schema(hf: dict[str, Any] | None = None, tiers: int = 3) -> StateSchema:
    return state_schema(HF | (hf or {}), tiers)


def test_schema_levels_are_smallest_prefix_then_strips() -> None:
    built = schema()
    assert built.widths == (512, 256, 128)
    ranges = {
        level: {(s.start, s.stop) for s in built.of_level(level) if s.dim is not None}
        for level in range(built.levels)
    }
    assert ranges == {2: {(0, 128)}, 1: {(128, 256)}, 0: {(256, 512)}}
    assert {s.level for s in built.segments if s.dim is None} == {2}
    down = next(s for s in built.of_level(0) if s.name.endswith("0.mlp.down_proj.weight"))
    assert (down.dim, down.start, down.stop, down.shape) == (1, 256, 512, (128, 256))
    assert down.numel == 128 * 256


def test_schema_segments_are_in_canonical_order() -> None:
    order = [(-s.level, s.name) for s in schema().segments]
    assert order == sorted(order)
    assert [s for s in schema().segments if s.level >= 1] == list(schema().held_by(1))


@pytest.mark.parametrize(
    ("width", "tiers", "nearest"), [(510, 3, "508 or 512"), (3, 3, "4"), (1001, 2, "1000 or 1002")]
)
def test_schema_indivisible_width_names_nearest(width: int, tiers: int, nearest: str) -> None:
    with pytest.raises(
        WidthNotDivisible,
        match=f"{width} is not divisible[\\s\\S]*nearest valid width: {nearest}",
    ):
        schema({"intermediate_size": width}, tiers=tiers)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"intermediate_size": 512}, (0, 512)),
        ({"intermediate_size": 128, "matformer_tier": 2}, (2, 512)),
        ({"intermediate_size": 256, "matformer_base_intermediate_size": 512}, (1, 512)),
        (
            {
                "intermediate_size": 256,
                "matformer_tier": 1,
                "matformer_base_intermediate_size": 512,
            },
            (1, 512),
        ),
    ],
)
def test_schema_stored_tier_is_inferred(keys: dict[str, Any], expected: tuple[int, int]) -> None:
    assert stored_tier(keys) == expected
    assert LlamaConfig.from_hf(HF | keys).intermediate_size == 512


@pytest.mark.parametrize(
    "keys",
    [
        {"intermediate_size": 512, "matformer_tier": 2, "matformer_base_intermediate_size": 512},
        {"intermediate_size": 600, "matformer_base_intermediate_size": 1000},
        {"intermediate_size": 512, "matformer_base_intermediate_size": 256},
        {"intermediate_size": 512, "matformer_tier": -1},
        {"intermediate_size": 512, "matformer_tier": 64},
        {"intermediate_size": 512, "matformer_tier": "1"},
        {"intermediate_size": 512.0},
        {"intermediate_size": None},
        {"intermediate_size": None, "matformer_tier": 1},
        {"hidden_size": 130},
        {"num_key_value_heads": 3},
        {"num_attention_heads": 0},
        {"vocab_size": None},
        {"head_dim": 33},
        {"rms_norm_eps": float("nan")},
        {"hidden_act": "gelu"},
        {"attention_bias": "yes"},
        {"mlp_bias": 2},
        {"model_type": "mistral"},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    ],
)
def test_contradictory_or_foreign_config_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ModelConfigError, match=r"config\.json: \w"):
        config_of(HF | keys)


def test_newer_rope_parameters_are_read() -> None:
    newer = LlamaConfig.from_hf(
        HF | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    )
    assert newer.rope_theta == 5e5


def test_tied_embeddings_are_one_tensor() -> None:
    tied = schema({"tie_word_embeddings": True})
    assert "lm_head.weight" not in {s.name for s in tied.segments}
    assert tied.document() != schema().document()


@pytest.mark.parametrize("tiers", [0, 9])
def test_schema_number_of_tiers_is_checked(tiers: int) -> None:
    with pytest.raises(SchemaError, match="1 to 8 tiers"):
        schema(tiers=tiers)


@pytest.mark.parametrize("level", [-1, 3])
def test_schema_missing_level_is_named(level: int) -> None:
    for method in (schema().of_level, schema().held_by, schema().parameters):
        with pytest.raises(
            SchemaError, match=f"level {level} is out of range\\nThis run has levels 0 to 2"
        ):
            method(level)


def test_canonical_document_is_ascii_with_sorted_keys() -> None:
    assert (
        canonical({"b": [1, 2], "ä": {"d": 1, "c": "é"}})
        == b'{"b":[1,2],"\\u00e4":{"c":"\\u00e9","d":1}}'
    )
