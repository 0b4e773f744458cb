"""Tied embeddings in every architecture: one tensor in the schema, a gradient of both uses,
checkpoints in both directions.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aftermath.model.architectures import config_of
from aftermath.model.checkpoint import load
from aftermath.model.config import ModelConfig
from aftermath.model.export import export_tiers
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.model.schema import StateInputs, state_of_inputs, state_schema
from replica.whole_round import MODELS

torch.set_num_threads(1)

EVERY = pytest.mark.parametrize("name", MODELS)
SEEDS = st.integers(0, 2**31)


def pair(name: str) -> tuple[ModelConfig, ModelConfig]:
    """Return the tied model, and the same model with an untied head."""
    if name.startswith("auto"):
        pytest.importorskip("transformers")
    tied, apart = (
        config_of(MODELS[name] | {"tie_word_embeddings": tied}) for tied in (True, False)
    )
    return tied, apart


def tiers(name: str) -> range:
    return range(1 if name.startswith("auto") else 3)


def weights(config: ModelConfig, tier: int, seed: int) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=source) * 0.2
        for name, shape in config.parameter_shapes(tier).items()
    }


def learnt(
    config: ModelConfig, tier: int, params: dict[str, Tensor], tokens: Tensor
) -> tuple[Tensor, dict[str, Any]]:
    """Return the logits, and the gradient of the loss by name."""
    model = config.build(tier, {name: tensor.clone() for name, tensor in params.items()})
    logits = model(tokens)
    model.loss(tokens).backward()
    assert {name for name, _ in model.named_parameters()} == params.keys()
    return logits, {name: tensor.grad for name, tensor in model.named_parameters()}


@EVERY
@settings(max_examples=max(3, settings().max_examples // 10))
@given(seed=SEEDS, data=st.data())
def test_tied_gradient_equals_sum_of_both_uses(name: str, seed: int, data: st.DataObject) -> None:
    """Compare with a model whose head is a copy of the embedding. Its two gradients add up to the
    tied one.
    """
    (tied, apart) = pair(name)
    tier = data.draw(st.sampled_from(tiers(name)), "tier")
    embedding, head = tied.tables()
    params = weights(tied, tier, seed)
    tokens = torch.randint(
        0, tied.vocab_size, (2, 10), generator=torch.Generator().manual_seed(seed)
    )
    logits, both = learnt(tied, tier, params, tokens)
    expected, each = learnt(apart, tier, params | {head: params[embedding]}, tokens)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
    assert each.keys() - both.keys() == {head}
    assert each[head].any()
    assert each[embedding].any()
    each[embedding] = each[embedding] + each.pop(head)
    for key, gradient in both.items():
        assert (gradient is None) == (each[key] is None)
        if gradient is not None:
            torch.testing.assert_close(gradient, each[key], rtol=1e-4, atol=1e-6)


@EVERY
def test_tied_schema_has_one_tensor(name: str) -> None:
    """This holds at every tier, also after the schema's document was read."""
    count = len(tiers(name))
    tied, apart = (state_schema(config.to_hf(), count) for config in pair(name))
    config = pair(name)[0]
    embedding, head = config.tables()
    shape = config.parameter_shapes()[embedding]
    assert {segment.name for segment in apart.segments} - {
        segment.name for segment in tied.segments
    } == {head}
    for tier in tiers(name):
        assert apart.parameters(tier) - tied.parameters(tier) == math.prod(shape)
    document = tied.document()
    assert (
        state_of_inputs(StateInputs(document["model"], document["widths"])).document() == document
    )
    assert document != apart.document()


@EVERY
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "apart"])
@settings(max_examples=max(1, settings().max_examples // 50))
@given(seed=SEEDS)
def test_tied_checkpoints_load_tied_and_untied(name: str, tied: bool, seed: int) -> None:
    """A saved model loads unchanged at every tier, and in transformers if it knows the model."""
    config = pair(name)[0 if tied else 1]
    params = weights(config, 0, seed)
    tokens = torch.randint(
        0, config.vocab_size, (2, 10), generator=torch.Generator().manual_seed(seed)
    )
    with tempfile.TemporaryDirectory() as root:
        place = Path(root) / "m"
        write_checkpoint(place, params, config, tier=0, companions={})
        assert same(load(place, 0), params)
        if smaller := list(tiers(name))[1:]:
            export_tiers(place, smaller)
        for tier in smaller:
            assert same(load(Path(root) / f"m-tier{tier}", tier), load(place, tier, "universal"))
        if name == "nanogpt":
            return
        theirs = pytest.importorskip("transformers").AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32
        )
        ours = config.build(0, {key: tensor.clone() for key, tensor in params.items()})
        torch.testing.assert_close(theirs.eval()(tokens).logits, ours(tokens), rtol=1e-3, atol=1e-4)
        theirs.save_pretrained(Path(root) / "theirs")
        assert same(load(Path(root) / "theirs", 0), params)


def same(tensors: dict[str, Tensor], params: dict[str, Tensor]) -> bool:
    return tensors.keys() == params.keys() and all(
        torch.equal(tensors[name], params[name]) for name in params
    )
