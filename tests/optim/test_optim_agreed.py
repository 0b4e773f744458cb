"""The schema from a Model account: every key of a config file reaches its setting."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, get_args

import pytest

from aftermath.config.read import optimizer_of
from aftermath.config.training import (
    ADAMW,
    DISTRO,
    SPARSELOCO,
    UNSAID,
    OptimizerChoice,
    SparseLoCoSettings,
)
from aftermath.model.schema import SchemaError
from aftermath.optim.agreed import settings_of
from aftermath.optim.distro import Distro
from aftermath.optim.schema import SETTINGS
from aftermath.optim.sparseloco import SparseLoCo
from aftermath.rules import sparseloco, state
from aftermath.rules.optimizers import EXCHANGED, OPTIMIZERS
from aftermath.rules.state import OptimizerKind


def test_config_defaults_equal_the_optimizer_defaults() -> None:
    assert settings_of(optimizer_of(SPARSELOCO)) == SparseLoCo()


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ({"inner_steps": 9}, {"inner_steps": 9}),
        ({"inner_optimizer": "muon"}, {"inner_optimizer": "muon"}),
        ({"outer_lr": 0.75}, {"outer_lr": 0.75}),
        ({"divisor": "all"}, {"divisor": "all"}),
        ({"divisor": "root"}, {"divisor": "root"}),
        ({"value_bits": 1}, {"bits": 1}),
        ({"compression_decay": 0.5}, {"decay": 0.5}),
        ({"compression_chunk": 32}, {"chunk": 32}),
        ({"compression_topk": 8}, {"topk": 8, "topk_embeddings": 8}),
        ({"compression_topk_embeddings": 64}, {"topk_embeddings": 64}),
        ({"weight_decay": 0.1}, {"weight_decay": 0.1}),
        ({"clip_grad_norm": 0.5}, {"clip": 0.5}),
        ({"clip_grad_norm": 0.0}, {"clip": None}),
    ],
    ids=str,
)
def test_each_sparseloco_key_sets_one_setting(said: dict[str, Any], means: dict[str, Any]) -> None:
    found = settings_of(optimizer_of(SparseLoCoSettings(**said)))
    assert asdict(found) == asdict(SparseLoCo()) | means


def test_distro_keys_set_the_distro_settings() -> None:
    found = settings_of(optimizer_of(DISTRO))
    assert isinstance(found, Distro)
    assert (found.topk, found.topk_embeddings, found.chunk, found.quantize_1bit) == (8, 8, 64, True)
    assert (found.decay, found.weight_decay, found.clip) == (0.999, 0.0, 1.0)


def test_every_optimizer_has_its_config_name() -> None:
    assert OPTIMIZERS.keys() == set(OptimizerKind) - {OptimizerKind.NONE}
    tables = OptimizerChoice.variants()
    assert [known.table for known in OPTIMIZERS.values()] == list(tables)
    for kind, known in OPTIMIZERS.items():
        unsaid = optimizer_of(UNSAID[known.option])
        assert unsaid.kind is kind
        assert isinstance(UNSAID[known.option], tables[known.table])
        assert set(known.used) <= {field.name for field in fields(unsaid)}


def test_optimizer_without_results_has_no_schema() -> None:
    assert (
        EXCHANGED.keys()
        == set(OptimizerKind) - {OptimizerKind.NONE, OptimizerKind.ADAMW}
        == SETTINGS.keys()
    )
    with pytest.raises(SchemaError, match="no results with an optimizer of kind adamw") as told:
        settings_of(optimizer_of(ADAMW))
    assert "[model.LLM.optimizer.SparseLoCo]" in told.value.fix


def test_optimizer_fields_match_files_and_schemas() -> None:
    for words, numbers in (
        (sparseloco.InnerOptimizerName, state.InnerOptimizerKind),
        (sparseloco.DivisorName, state.Divisor),
    ):
        assert list(get_args(words)) == [number.name.lower() for number in numbers]
