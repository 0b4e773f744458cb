"""Position tables with all kinds of numbers: each is read like in transformers, or refused."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch

from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.arch.transformer import scaled_rotary
from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfigError

torch.set_num_threads(1)
LENGTH = 80
SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
PLAIN: dict[str, Any] = {
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": True,
}
KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
KEYS = (*PLAIN, "attention_factor", "mscale", "mscale_all_dim", "partial_rotary_factor")
VALUES: tuple[Any, ...] = (
    0,
    0.0,
    -1,
    -2.5,
    0.5,
    1,
    2,
    16,
    8192.0,
    math.nan,
    math.inf,
    -math.inf,
    True,
    False,
    None,
    "2",
    "",
    [],
)


def theirs(file: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return cosine and sine [T, K] of transformers, or None if it refuses the table."""
    transformers = pytest.importorskip("transformers")
    try:
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(
            transformers.AutoConfig.for_model(**file)
        )
        cosine, sine = rotary(torch.zeros(1, LENGTH, 1), torch.arange(LENGTH)[None])
    except (TypeError, ValueError, ArithmeticError):
        return None
    return cosine[0], sine[0]


# `rope_scaling` is read by the code that reads `rope_parameters`, so one kind is enough there.
TABLES = [
    *itertools.product(KINDS, ("rope_parameters", "outside the table")),
    ("yarn", "rope_scaling"),
]


@pytest.mark.parametrize(("kind", "where"), TABLES)
def test_rope_number_equals_transformers_or_is_refused(kind: str, where: str) -> None:
    outside = where == "outside the table"
    for key in ("original_max_position_embeddings",) if outside else KEYS:
        for value in VALUES:
            table = {
                "rope_type": kind,
                **PLAIN,
                **({"mscale": 0.7, "mscale_all_dim": 1.3} if "mscale" in key else {}),
            }
            file = SHAPE | (
                {"rope_parameters": table, key: value}
                if outside
                else {where: table | {key: value}, "rope_theta": 500.0}
            )
            try:
                config = config_of(file)
            except ModelConfigError as error:
                assert error.message.startswith("config.json: ")  # noqa: PT017
                continue
            assert isinstance(config, LlamaConfig)
            expected = theirs(file)
            if expected is None:
                assert value is None  # transformers fails on a null that has no effect here
                continue
            rotary = scaled_rotary(config, config.head_dim, LENGTH, torch.device("cpu"))
            for ours, other in zip(rotary, expected, strict=True):
                torch.testing.assert_close(
                    ours, other, rtol=0, atol=1e-4, msg=f"{kind} {key} {value}"
                )


@pytest.mark.parametrize("key", ["attention_factor", "beta_fast", "beta_slow"])
@pytest.mark.parametrize("value", [0, 0.0, -1.0, math.nan, math.inf, True, "1"])
def test_impossible_yarn_number_is_refused_with_bounds(key: str, value: object) -> None:
    with pytest.raises(ModelConfigError) as refused:
        config_of(SHAPE | {"rope_parameters": {"rope_type": "yarn", **PLAIN, key: value}})
    assert refused.value.message == f"config.json: rope_parameters.{key} {value!r} is not supported"
    assert refused.value.fix
    assert refused.value.fix.startswith("Use a number above 0 up to 1,000")


def test_rope_length_outside_table_overrides_inner_one() -> None:
    file = SHAPE | {
        "rope_parameters": {"rope_type": "yarn", **PLAIN},
        "original_max_position_embeddings": 32,
    }
    config = config_of(file)
    assert isinstance(config, LlamaConfig)
    assert config.rope_original_length == 32
    assert config_of(config.to_hf()) == config


def test_rope_null_truncate_means_false() -> None:
    file = SHAPE | {"rope_parameters": {"rope_type": "yarn", **PLAIN, "truncate": None}}
    config = config_of(file)
    assert isinstance(config, LlamaConfig)
    assert config.rope_truncate is False


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
@pytest.mark.parametrize("where", ["rope_parameters", "rope_scaling"])
def test_rope_table_without_original_length_uses_longest_text(kind: str, where: str) -> None:
    table = {"rope_type": kind, **PLAIN}
    del table["original_max_position_embeddings"]
    file = SHAPE | {where: table, "rope_theta": 500.0}
    config = config_of(file)
    assert isinstance(config, LlamaConfig)
    # transformers adds the length to the table that it is given
    expected = theirs(copy.deepcopy(file))
    assert expected is not None
    rotary = scaled_rotary(config, config.head_dim, LENGTH, torch.device("cpu"))
    for ours, other in zip(rotary, expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=1e-4)
    assert config_of(config.to_hf()) == config
    unsaid = {key: value for key, value in file.items() if key != "max_position_embeddings"}
    assert config_of(unsaid).model_dump()["rope_original_length"] == 2048
