"""Muon for hidden matrices, AdamW for all other parameters.

Sources: Jordan et al., "Muon" (2024); Loshchilov and Hutter, "Decoupled weight decay" (arXiv
1711.05101). torch's Muon has only the quintic iteration; this one uses the Polar Express.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

import torch
from torch import Tensor

from aftermath.model.levels import is_hidden_matrix
from aftermath.optim import eager_adamw
from aftermath.optim.float_polar import SMALLEST, STEPS, polar_express
from aftermath.rules.optimizer import Optimizer

logger = logging.getLogger(__name__)
_NEAR = 0.05  # largest difference of entries of about 0.1
_AT_ONCE = 1 << 26  # numbers of matrices orthogonalised together


def at_once(device: torch.device) -> bool:
    """Return whether steps handle many tensors together: on a GPU with bf16."""
    return device.type == "cuda" and torch.cuda.is_available() and _turns_in_bf16(device)


@lru_cache(maxsize=8)
def _turns_in_bf16(device: torch.device) -> bool:
    """Return whether bf16 products on the device give polar factors."""
    matrices = torch.randn(2, 48, 80, generator=torch.Generator().manual_seed(1))
    try:
        turned = polar_express(matrices.to(device), precision=torch.bfloat16).cpu()
    except RuntimeError as error:  # a GPU without bf16
        logger.warning(
            "Muon updates tensors one by one on %s: %s", device, str(error).splitlines()[0]
        )
        return False
    return bool((turned - polar_express(matrices)).abs().max() < _NEAR)


@dataclass(frozen=True)
class MuonSettings:
    """Settings of the hidden matrices, and of all other parameters."""

    momentum: float = 0.95
    nesterov: bool = True
    steps: int = STEPS
    smallest: float = SMALLEST
    weight_decay: float = 0.0
    rest_rate: float = 0.1
    """AdamW's learning rate as a fraction of Muon's."""
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8


def muon_of(params: Mapping[str, Tensor], settings: Optimizer) -> torch.optim.Optimizer:
    """Return Muon of these parameters, with the settings of this module. Each step sets its
    rate.
    """
    del settings
    return Muon(params, 0.0, MuonSettings())


def hidden_matrices(params: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors that Muon orthogonalises, in order."""
    # Embeddings and the head have matrix shapes, but their rows are tokens, and a step sees only a
    # few tokens. In a stack (experts), each matrix is a hidden matrix.
    return sorted(name for name, tensor in params.items() if is_hidden_matrix(name, tensor.shape))


def vector_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the learning rate of an optimizer's vectors."""
    rate: float = optimizer.param_groups[0]["lr"]
    return rate * optimizer.settings.rest_rate if isinstance(optimizer, Muon) else rate


class Muon(torch.optim.Optimizer):
    """Muon for hidden matrices and AdamW for the rest, as one optimizer with one learning rate.

    `param_groups` has the matrices first, then the rest. A schedule sets `lr` of both to the same
    number.
    """

    add_param_group = eager_adamw.add_param_group

    def __init__(
        self,
        params: Mapping[str, Tensor],
        lr: float,
        settings: MuonSettings | None = None,
        hidden: Sequence[str] | None = None,
    ) -> None:
        """Raise ValueError if there is nothing to learn.

        `hidden` names the hidden matrices. By default they are chosen by name and shape.
        """
        chosen = hidden_matrices(params) if hidden is None else hidden
        self.settings = settings or MuonSettings()
        matrices = [params[name] for name in chosen]
        rest = [params[name] for name in sorted(params.keys() - set(chosen))]
        groups: Iterable[dict[str, Any]] = [
            {"params": matrices, "orthogonal": True},
            {"params": rest},
        ]
        super().__init__(
            [group for group in groups if group["params"]], {"lr": lr, "orthogonal": False}
        )

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make one step from the gradients present."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            stepped = [
                (tensor, tensor.grad) for tensor in group["params"] if tensor.grad is not None
            ]
            if stepped and at_once(stepped[0][0].device):
                together = self._orthogonal_together if group["orthogonal"] else self._adam_together
                together(
                    [tensor for tensor, _ in stepped],
                    [gradient for _, gradient in stepped],
                    group["lr"],
                )
                continue
            change = self._orthogonal if group["orthogonal"] else self._adam
            for tensor, gradient in stepped:
                change(tensor, gradient, group["lr"])
        return loss

    def _orthogonal(self, tensor: Tensor, gradient: Tensor, lr: float) -> None:
        """Step a hidden matrix along the polar factor of its momentum.

        m <- beta m + (1 - beta) g, x <- x (1 - lr wd) - lr sqrt(max(1, rows / columns)) polar(m).
        An orthogonal step has the same size for every gradient. With the scale, a tall matrix
        changes its output as much as a square one.
        """
        settings = self.settings
        state = self.state[tensor]
        if not state:
            state["momentum"] = torch.zeros_like(tensor)
        momentum = state["momentum"].lerp_(gradient, 1 - settings.momentum)
        direction = gradient.lerp(momentum, settings.momentum) if settings.nesterov else momentum
        step = polar_express(direction, steps=settings.steps, smallest=settings.smallest)
        rows, columns = tensor.shape[-2:]
        tensor.mul_(1 - lr * settings.weight_decay)
        tensor.add_(step, alpha=-lr * max(1.0, rows / columns) ** 0.5)

    def _adam(self, tensor: Tensor, gradient: Tensor, lr: float) -> None:
        """Make an AdamW step at `rest_rate` times the rate."""
        settings = self.settings
        state = self.state[tensor]
        if not state:
            state.update(count=0, first=torch.zeros_like(tensor), second=torch.zeros_like(tensor))
        state["count"] += 1
        rate = lr * settings.rest_rate
        beta1, beta2 = settings.betas
        first = state["first"].lerp_(gradient, 1 - beta1)
        second = state["second"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        spread = (second / (1 - beta2 ** state["count"])).sqrt_().add_(settings.epsilon)
        tensor.mul_(1 - rate * settings.weight_decay)
        tensor.addcdiv_(first, spread, value=-rate / (1 - beta1 ** state["count"]))

    def _orthogonal_together(
        self, tensors: list[Tensor], gradients: list[Tensor], lr: float
    ) -> None:
        """Step many tensors in few launches, with bf16 products: inner steps need not be exact."""
        settings = self.settings
        for tensor in tensors:
            if not self.state[tensor]:
                self.state[tensor]["momentum"] = torch.zeros_like(tensor)
        momenta = [self.state[tensor]["momentum"] for tensor in tensors]
        torch._foreach_lerp_(momenta, gradients, 1 - settings.momentum)
        directions = (
            torch._foreach_lerp(gradients, momenta, settings.momentum)
            if settings.nesterov
            else momenta
        )
        if settings.weight_decay:
            torch._foreach_mul_(tensors, 1 - lr * settings.weight_decay)
        alike: defaultdict[torch.Size, list[int]] = defaultdict(list)
        for number, tensor in enumerate(tensors):
            alike[tensor.shape].append(number)
        for shape, numbers in alike.items():
            rate = lr * max(1.0, shape[-2] / shape[-1]) ** 0.5
            step = max(1, _AT_ONCE // shape.numel())
            for some in (numbers[first : first + step] for first in range(0, len(numbers), step)):
                matrices = torch.stack([directions[number] for number in some])
                turned = polar_express(
                    matrices,
                    steps=settings.steps,
                    smallest=settings.smallest,
                    precision=torch.bfloat16,
                )
                torch._foreach_add_(
                    [tensors[number] for number in some], list(turned.unbind()), alpha=-rate
                )

    def _adam_together(self, tensors: list[Tensor], gradients: list[Tensor], lr: float) -> None:
        """Make AdamW steps of many tensors in few launches."""
        settings = self.settings
        states = [self.state[tensor] for tensor in tensors]
        for tensor, state in zip(tensors, states, strict=True):
            if not state:
                state.update(
                    count=0, first=torch.zeros_like(tensor), second=torch.zeros_like(tensor)
                )
            state["count"] += 1
        rate = lr * settings.rest_rate
        beta1, beta2 = settings.betas
        first = [state["first"] for state in states]
        second = [state["second"] for state in states]
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        spread = torch._foreach_div(second, [1 - beta2 ** state["count"] for state in states])
        torch._foreach_sqrt_(spread)
        torch._foreach_add_(spread, settings.epsilon)
        if settings.weight_decay:
            torch._foreach_mul_(tensors, 1 - rate * settings.weight_decay)
        torch._foreach_addcdiv_(
            tensors, first, spread, [-rate / (1 - beta1 ** state["count"]) for state in states]
        )
