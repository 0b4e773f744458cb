"""The optimizer from a config file: every key reaches its setting."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from aftermath.base.errors import SchemaError
from aftermath.config.tables import Choice
from aftermath.config.training import OptimizerChoice, optimizer_table
from aftermath.optim.parts import OptimizerParts, parts_of
from aftermath.optim.run_schema import agreed_schema
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.optimizers import BUILT_IN, AdamWAlone, configurable, sentences
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.sim.setup import CONFIG


def read(optimizer: type[Optimizer], keys: dict[str, Any]) -> Optimizer:
    return optimizer_table(optimizer)(**keys).settings


def test_config_defaults_equal_the_optimizer_defaults() -> None:
    assert read(SparseLoCo, {}) == SparseLoCo()


@pytest.mark.parametrize(
    ("keys", "means"),
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
def test_each_sparseloco_key_sets_one_setting(keys: dict[str, Any], means: dict[str, Any]) -> None:
    settings = read(SparseLoCo, keys)
    assert asdict(settings) == asdict(SparseLoCo()) | means


def test_distro_keys_set_the_distro_settings() -> None:
    keys = {"compression_decay": 0.5, "compression_topk": 9, "compression_chunk": 32}
    off = {"clip": None, "weight_decay": 0.0, "quantize_1bit": False}
    expected = Distro(decay=0.5, topk=9, topk_embeddings=9, chunk=32, **off)  # type: ignore[arg-type]
    assert read(Distro, keys) == expected
    assert read(Distro, Distro.defaults()) == Distro()


@pytest.mark.parametrize("optimizer", BUILT_IN, ids=lambda one: one.TABLE)
def test_optimizer_class_is_complete(optimizer: type[Optimizer]) -> None:
    assert optimizer().usual_rate > 0
    for setting in optimizer.settings():
        assert setting.key.rule in sentences()
    assert list(optimizer.broken(optimizer.defaults())) == []
    assert set(optimizer.IN_FILE) <= {setting.name for setting in optimizer.settings()}
    assert list(optimizer().values()) == ["kind", *optimizer.defaults()]
    if optimizer.EXCHANGED:
        assert isinstance(parts_of(optimizer()), OptimizerParts)


def test_every_configurable_optimizer_has_its_table() -> None:
    assert issubclass(OptimizerChoice, Choice)
    assert (
        list(OptimizerChoice.variants())
        == list(configurable())
        == ["AdamW", "Distro", "SparseLoCo"]
    )


def test_optimizer_without_results_has_no_schema() -> None:
    with pytest.raises(SchemaError, match="members with AdamW exchange no results") as caught:
        agreed_schema(CONFIG.to_hf(), 1, AdamWAlone())
    assert "[model.LLM.optimizer.SparseLoCo]" in caught.value.fix
