"""Test that stacked inner steps change each member's parameters and moments like its own steps."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from aftermath.optim.gradient_clip import NonFiniteGradient
from aftermath.optim.inner_steps import InnerSteps
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.stacked_inner import StackedSteps
from aftermath.rules.sparseloco import SparseLoCo

MEMBERS = 3
SHAPES = {"embed.weight": (7, 6), "layer.up.weight": (5, 6), "layer.norm.weight": (5,)}
LR = 0.03


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def loss_of(params: Mapping[str, Tensor], sequences: Tensor) -> Tensor:
    """Return a loss of sequences int64 [n, 4], with gradients of full rank."""
    hidden = params["embed.weight"][sequences] @ params["layer.up.weight"].T
    out = torch.tanh(hidden) * params["layer.norm.weight"]
    return (out - 0.5 * sequences.unsqueeze(-1)).square().mean()


def params() -> dict[str, Tensor]:
    return {
        name: draw(*shape, seed=number).requires_grad_()
        for number, (name, shape) in enumerate(SHAPES.items())
    }


def steps(shared: dict[str, Tensor], settings: SparseLoCo, member: int) -> InnerSteps:
    """Return a member's steps. Its previous result adds to the embedding."""

    def ahead(rate: float) -> None:
        with torch.no_grad():
            shared["embed.weight"].add_(rate * (member + 1))

    return InnerSteps(shared, settings, ahead)


def stacked_backward(params: Mapping[str, Tensor], sequences: Tensor) -> Tensor:
    losses = torch.stack(
        [
            loss_of({name: tensor[member] for name, tensor in params.items()}, own)
            for member, own in enumerate(sequences)
        ]
    )
    losses.sum().backward()
    return losses.detach()


@pytest.mark.parametrize("inner_optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_stacked_steps_equal_steps_of_each_member(inner_optimizer: str, clip: float | None) -> None:
    """Make two rounds of three steps with unequal parts. The second one looks ahead."""
    settings = SparseLoCo(
        inner_steps=3,
        inner_optimizer=inner_optimizer,  # type: ignore[arg-type]
        clip=clip,
        weight_decay=0.1,
    )
    shared = params()
    before = {name: tensor.detach().clone() for name, tensor in shared.items()}
    in_stack = [steps(shared, settings, member) for member in range(MEMBERS)]
    alone = [steps(shared, settings, member) for member in range(MEMBERS)]
    stack = StackedSteps(in_stack)

    def backward(sequences: Tensor) -> float:
        loss = loss_of(shared, sequences)
        loss.backward()
        return float(loss.detach())

    for number, travelling in enumerate(([False] * MEMBERS, [True, False, True])):
        sequences = torch.randint(
            0, 7, (MEMBERS, 8, 4), generator=torch.Generator().manual_seed(number)
        )
        gradients = stack.make(sequences, stacked_backward, LR, 0.1, travelling)
        assert all(torch.equal(shared[name], tensor) for name, tensor in before.items())
        for member, gradient in enumerate(gradients):
            assert isinstance(gradient, PseudoGradient)
            expected = alone[member].make(
                sequences[member], backward, LR, 0.1, travelling=travelling[member]
            )
            assert gradient.factor == expected.factor
            assert gradient.loss == pytest.approx(expected.loss, rel=1e-5)
            assert gradient.losses == pytest.approx(expected.losses, rel=1e-5)
            assert gradient.tensors.keys() == expected.tensors.keys()
            for name, tensor in expected.tensors.items():
                torch.testing.assert_close(gradient.tensors[name], tensor, rtol=1e-4, atol=2e-6)
            states = (in_stack[member].state(), alone[member].state())
            assert states[0].keys() == states[1].keys()
            for name, tensor in states[1].items():
                torch.testing.assert_close(states[0][name], tensor, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_member_with_infinite_gradient_fails_alone(clip: float | None) -> None:
    """The gradient of the second member's second step is infinite."""
    settings = SparseLoCo(inner_steps=2, inner_optimizer="muon", clip=clip)
    shared = params()
    members = [steps(shared, settings, member) for member in range(MEMBERS)]
    calls: list[Tensor] = []

    def backward(params: Mapping[str, Tensor], sequences: Tensor) -> Tensor:
        calls.append(sequences)
        losses = stacked_backward(params, sequences)
        gradient = params["layer.norm.weight"].grad
        assert gradient is not None
        if len(calls) == 2:
            gradient[1] = float("inf")
        return losses

    sequences = torch.zeros(MEMBERS, 4, 4, dtype=torch.int64)
    gradients = StackedSteps(members).make(sequences, backward, LR, LR, [False] * MEMBERS)
    assert [isinstance(one, PseudoGradient) for one in gradients] == [True, False, True]
    assert isinstance(gradients[1], NonFiniteGradient)
    assert "a gradient of inner step 2 is not finite" in gradients[1].message
    assert [bool(member.state()) for member in members] == [True, False, True]
