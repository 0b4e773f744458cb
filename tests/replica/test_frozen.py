"""A copy of a model's weights: it computes like the model, and its passes can be interrupted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.model.network import LanguageModel
from aftermath.replica.frozen import Interrupted, frozen_copy
from replica.whole_round import MODELS

IDS = torch.arange(8)[None]


def network(name: str, **options: Any) -> LanguageModel:
    if name.startswith("auto"):
        pytest.importorskip("transformers")
    config = config_of(MODELS[name] | options)
    return config.build(0, init_weights(config, 1))


@pytest.mark.parametrize(("name", "tied"), [*((name, False) for name in MODELS), ("llama", True)])
def test_frozen_copy_keeps_outputs_of_its_model(name: str, tied: bool) -> None:
    model = network(name, tie_word_embeddings=tied)
    with torch.no_grad():
        before = model(IDS)
        copied = frozen_copy(model, lambda: True)
        assert copied is not None
        for tensor in model.parameters():
            tensor.add_(1.0)
        assert torch.equal(copied(IDS), before)
        assert not torch.equal(model(IDS), before)
    assert {name: tensor.shape for name, tensor in copied.named_parameters()} == {
        name: tensor.shape for name, tensor in model.named_parameters()
    }


@pytest.mark.parametrize("name", MODELS)
def test_interrupted_pass_ends_at_next_module(name: str) -> None:
    left = 0
    copied = frozen_copy(network(name), lambda: left >= 0)
    assert copied is not None
    called: list[nn.Module] = []

    def see(module: nn.Module, _: object) -> None:
        nonlocal left
        called.append(module)
        left -= 1

    hook = register_module_forward_pre_hook(see)
    try:
        left = 100_000
        copied(IDS)
        whole = len(called)
        assert whole > 8
        called.clear()
        left = 5
        with pytest.raises(Interrupted):
            copied(IDS)
    finally:
        hook.remove()
    assert len(called) == 6 < whole


def test_interrupted_copy_returns_none() -> None:
    count = 0

    def twice() -> bool:
        nonlocal count
        count += 1
        return count <= 2

    assert frozen_copy(network("llama"), twice) is None
    assert count == 3
