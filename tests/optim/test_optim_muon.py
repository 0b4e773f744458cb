"""Muon: its steps against the formulas, and its training."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from aftermath.model.arch.llama import Llama
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.optim.float_polar import polar_express
from aftermath.optim.muon import Muon, MuonSettings, hidden_matrices

NAMES = {"model.embed_tokens.weight": (9, 4), "model.norm.weight": (4,), "layer.up.weight": (8, 4)}


def tensors(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in NAMES.items()}


def stepped(
    params: dict[str, Tensor], grads: list[dict[str, Tensor]], lr: float, settings: MuonSettings
) -> None:
    optimizer = Muon(params, lr, settings)
    for gradient in grads:
        for name, tensor in params.items():
            tensor.grad = gradient[name]
        optimizer.step()


def test_only_hidden_matrices_are_made_orthogonal():
    assert hidden_matrices(tensors() | {"lm_head.weight": torch.zeros(9, 4)}) == ["layer.up.weight"]


@pytest.mark.parametrize("nesterov", [True, False])
def test_matrix_steps_by_the_polar_factor_of_its_momentum(nesterov):
    params = tensors()
    before = tensors()["layer.up.weight"].double()
    grads = [tensors(seed) for seed in (1, 2)]
    stepped(params, grads, 0.01, MuonSettings(momentum=0.9, nesterov=nesterov, weight_decay=0.1))
    momentum = torch.zeros(8, 4, dtype=torch.float64)
    expected = before
    for gradient in grads:
        g = gradient["layer.up.weight"].double()
        momentum = 0.9 * momentum + 0.1 * g
        direction = 0.9 * momentum + 0.1 * g if nesterov else momentum
        expected = expected * (1 - 0.01 * 0.1) - 0.01 * 2**0.5 * polar_express(direction)
    assert torch.allclose(params["layer.up.weight"].double(), expected, atol=1e-5)


def test_other_parameters_step_like_adamw():
    params = tensors()
    settings = MuonSettings(rest_rate=0.5, weight_decay=0.1)
    grads = [tensors(seed) for seed in (1, 2, 3)]
    stepped(params, grads, 0.02, settings)
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        other = tensors()[name].requires_grad_()
        adamw = torch.optim.AdamW(
            [other], lr=0.01, betas=settings.betas, eps=settings.epsilon, weight_decay=0.1
        )
        for gradient in grads:
            other.grad = gradient[name]
            adamw.step()
        assert torch.allclose(params[name], other, atol=1e-6)


def test_stacked_matrices_step_like_separate_ones() -> None:
    stack = torch.randn(2, 3, 8, 4)
    gradients = torch.randn(2, 3, 8, 4)
    params = {"experts.gate": stack.clone()}
    # filters are not hidden matrices
    assert hidden_matrices(params | {"conv.weight": torch.ones(3, 1, 4)}) == ["experts.gate"]
    stepped(params, [{"experts.gate": gradients}], 0.1, MuonSettings())
    for place in itertools.product(range(2), range(3)):
        alone = {"w": stack[place].clone()}
        stepped(alone, [{"w": gradients[place]}], 0.1, MuonSettings())
        torch.testing.assert_close(params["experts.gate"][place], alone["w"])


def test_muon_reaches_the_minimum_of_a_quadratic():
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(24, 16, generator=generator)
    scales = torch.logspace(-2, 0, 16)
    params = {"w.weight": torch.zeros(24, 16, requires_grad=True)}
    optimizer = Muon(params, 0.1)
    for step in range(300):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 - step / 300)
        loss = ((params["w.weight"] - target) * scales).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1e-3 * (target * scales).square().sum()


@pytest.mark.slow
def test_muon_trains_a_tiny_model_faster_than_adamw():
    config = LlamaConfig.from_hf(
        {
            "model_type": "llama",
            "vocab_size": 32,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 32,
        }
    )
    steps = torch.tensor([1, 3, 7, 11])

    def batch(generator: torch.Generator) -> Tensor:
        """Return sequences in which every token is the one before plus a constant step."""
        start = torch.randint(32, (16, 1), generator=generator)
        return (
            start + steps[torch.randint(4, (16, 1), generator=generator)] * torch.arange(32)
        ) % 32

    def trained(muon: bool) -> float:
        generator = torch.Generator().manual_seed(0)
        shapes = config.parameter_shapes().items()
        weights = {
            n: torch.ones(s) if len(s) == 1 else torch.randn(s, generator=generator) * 0.05
            for n, s in shapes
        }
        model = Llama.of(config, 0, weights)
        params = dict(model.named_parameters())
        optimizer: torch.optim.Optimizer = (
            Muon(params, 0.02) if muon else torch.optim.AdamW(params.values(), lr=2e-3)
        )
        for _ in range(60):
            optimizer.zero_grad()
            model.loss(batch(generator)).backward()
            optimizer.step()
        return model.loss(batch(torch.Generator().manual_seed(1))).item()

    muon = trained(True)
    adamw = trained(False)
    assert muon < 1.0 < torch.log(torch.tensor(32.0))
    assert muon < adamw


def test_muon_without_parameters_is_refused():
    with pytest.raises(ValueError, match="empty parameter list"):
        Muon({}, 0.1)


def test_steps_of_many_tensors_equal_separate_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in bf16 change a step by one percent."""
    shapes = {
        "model.layers.0.self_attn.q_proj.weight": (32, 32),
        "model.layers.0.mlp.up_proj.weight": (64, 32),
    }
    shapes |= {"model.layers.1.self_attn.q_proj.weight": (32, 32), "model.norm.weight": (32,)}
    results = []
    for together in (False, True):
        monkeypatch.setattr("aftermath.optim.muon.at_once", lambda _, together=together: together)
        draws = torch.Generator().manual_seed(1)
        params = {name: torch.randn(shape, generator=draws) for name, shape in shapes.items()}
        optimizer = Muon(params, 0.02, MuonSettings(weight_decay=0.1))
        for _ in range(3):
            for tensor in params.values():
                tensor.grad = torch.randn(tensor.shape, generator=draws)
            optimizer.step()
        results.append((params, [sorted(optimizer.state[tensor]) for tensor in params.values()]))
    assert results[0][1] == results[1][1]
    for name, tensor in results[0][0].items():
        assert torch.allclose(results[1][0][name], tensor, atol=2e-3), name
    assert torch.equal(results[1][0]["model.norm.weight"], results[0][0]["model.norm.weight"])
