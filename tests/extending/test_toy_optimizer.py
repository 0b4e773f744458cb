"""An optimizer of another package: one class with its settings, which names its parts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from aftermath.base.errors import SchemaError
from aftermath.base.extensions import BadExtension
from aftermath.config.tables import Choice, extended
from aftermath.config.training import optimizer_table
from aftermath.optim.engine import Engine
from aftermath.optim.level_votes import Votes
from aftermath.optim.schema import Schema, build_schema
from aftermath.rules import optimizers as registry
from extending.registered import TESTS, install
from extending.toy_optimizer import Majority


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(install(tmp_path)))
    registry.optimizers.cache_clear()
    yield
    registry.optimizers.cache_clear()


def schema() -> Schema:
    model = {"model_type": "llama", "vocab_size": 40, "hidden_size": 8, "intermediate_size": 16}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    return build_schema(model | heads, 1, Majority(topk=4, topk_embeddings=4, chunk=8, scale=2.0))


@pytest.mark.usefixtures("registered")
def test_registered_optimizer_is_chosen_in_a_config() -> None:
    assert registry.configurable()["Majority"] is Majority
    choice = extended(Choice, {"Majority": optimizer_table(Majority)})
    table = choice.model_validate({"Majority": {"compression_topk": 7, "scale": 0.5}}).chosen
    assert table.settings == Majority(topk=7, topk_embeddings=7, scale=0.5)  # type: ignore[attr-defined]
    with pytest.raises(ValidationError, match="Extra inputs"):
        choice.model_validate({"Majority": {"outer_lr": 1.0}})
    assert "Majority needs scale" in registry.sentences()["ScaleOutOfRange"]
    assert [name for name, *_ in Majority.broken(Majority.defaults() | {"scale": 9.0})] == [
        "ScaleOutOfRange"
    ]


@pytest.mark.usefixtures("registered")
def test_schema_of_a_registered_optimizer_is_read_from_bytes() -> None:
    data = schema().to_json()
    assert b'"kind":"majority"' in data
    assert Schema.from_json(data) == schema()
    for old, new in ((b'"scale":"2.0"', b'"scale":"9.0"'), (b'"scale":"2.0"', b'"scale":2.0')):
        with pytest.raises(SchemaError):
            Schema.from_json(data.replace(old, new))


def test_majority_apply_equals_the_sign_of_the_sum_in_any_order() -> None:
    shapes = schema().state.config.parameter_shapes(0)
    votes = [
        Votes(0, torch.tensor(places), torch.tensor(signs, dtype=torch.int8))
        for places, signs in (([0, 3, 70], [1, -1, 1]), ([0, 70], [1, -1]), ([3, 5], [-1, -1]))
    ]
    replicas = []
    for order in (votes, votes[::-1]):
        params = {name: torch.zeros(shape) for name, shape in shapes.items()}
        Engine(schema(), 0, params).apply({0: order}, 0.125)
        replicas.append(params)
    for name, tensor in replicas[0].items():
        assert torch.equal(tensor, replicas[1][name])
    changes = torch.cat([tensor.flatten() for tensor in replicas[0].values()])
    assert sorted(changes[changes != 0].tolist()) == [-0.25, 0.25, 0.25]  # 70 is a tie


def test_config_of_a_registered_optimizer_is_read_without_torch(tmp_path: Path) -> None:
    entries = {registry.GROUP: "Majority = extending.toy_optimizer:Majority"}
    program = "import sys, aftermath.config.document; assert 'torch' not in sys.modules"
    paths = f"{install(tmp_path, entries)}:{TESTS}"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": paths}, check=True)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("Majority = extending.toy_optimizer:MajorityParts", "is not a subclass of Optimizer"),
        ("Vote = extending.toy_optimizer:Majority", "not its TABLE, Majority"),
        ("Distro = aftermath.rules.distro:Distro", "the name of a built-in one"),
    ],
)
def test_unusable_optimizer_is_refused_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, sentence: str
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path, {registry.GROUP: entry})))
    with pytest.raises(BadExtension, match=sentence) as caught:
        registry.optimizers.__wrapped__()
    assert "ninstall" in caught.value.fix
