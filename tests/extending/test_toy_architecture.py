"""An architecture of another package: one config class with its network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aftermath.base.extensions import BadExtension, extensions
from aftermath.model import architectures
from aftermath.model.config import ModelConfig
from aftermath.model.initial_weights import init_weights
from aftermath.model.schema import state_schema
from extending.registered import install
from extending.toy_architecture import SMALL, AveragingConfig

GROUP = "aftermath.architectures"


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path)))
    added = extensions(GROUP, ModelConfig)  # type: ignore[type-abstract]
    monkeypatch.setattr(architectures, "_ADDED", added)
    monkeypatch.setattr(architectures, "_BY_TYPE", architectures._by_type())


@pytest.mark.usefixtures("registered")
def test_registered_architecture_is_found_by_its_type() -> None:
    assert architectures.architecture_of(SMALL) == "Averaging"
    assert architectures.is_of(SMALL, "Averaging")
    assert not architectures.is_of(SMALL, "HfAuto")
    assert architectures.presets()["averaging-tiny"] == SMALL
    assert state_schema(SMALL, 3).widths == (32, 16, 8)


@pytest.mark.usefixtures("registered")
def test_registered_architecture_cuts_its_network_into_tiers() -> None:
    config = architectures.config_of(SMALL)
    assert isinstance(config, AveragingConfig)
    whole = init_weights(config, seed=0)
    tokens = torch.arange(12).reshape(2, 6)
    for tier in (0, 2):
        network = config.build(tier, init_weights(config, seed=0, tier=tier))
        assert {name: tuple(one.shape) for name, one in network.named_parameters()} == (
            config.parameter_shapes(tier)
        )
        later = tokens.clone()
        later[:, 4:] += 100
        with torch.no_grad():
            assert torch.equal(network(tokens)[:, :4], network(later)[:, :4]), "no token sees later"
    assert torch.equal(network.get_parameter("model.up.weight"), whole["model.up.weight"][:8])


def test_model_type_of_built_in_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impostor(AveragingConfig):
        MODEL_TYPE = "llama"

    monkeypatch.setattr(architectures, "_ADDED", {"Impostor": Impostor})
    with pytest.raises(BadExtension, match="model_type llama, which HfLlama already has"):
        architectures._by_type()
