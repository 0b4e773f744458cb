"""Train members of a tier at once, as one model with stacked weights.

A GPU computes eight small members in little more time than one. Members are stacked if they share
tensors, make inner steps and have equally many sequences. Their results are encoded one by one.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from aftermath.base.errors import AftermathError
from aftermath.lab.trainer import MemberResult, Rates
from aftermath.model.network import LanguageModel
from aftermath.optim.gradient_clip import NonFiniteGradient
from aftermath.optim.inner_steps import InnerSteps
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.moments import steps_of
from aftermath.optim.stacked_inner import StackedSteps
from aftermath.replica.memory import give_back
from aftermath.replica.passes import compiles, first_line
from aftermath.replica.replica import Replica

log = logging.getLogger(__name__)


class StackedMembers:
    """Trains the members that can be stacked. The others remain for the caller."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = list(replicas)
        self._stacks: dict[tuple[int, ...], _Stack] = {}
        self._enabled = True

    def train(
        self, shares: Sequence[Tensor], rates: Rates, travelling: Sequence[bool]
    ) -> dict[int, MemberResult | str]:
        """Train shares int64 [n, seq_len]. Return the result of each stacked member, or its error.

        If a pass fails or memory runs out, log the reason and stack nobody from then on.
        """
        results: dict[int, MemberResult | str] = {}
        groups = self._groups(shares) if self._enabled else []
        self._stacks = {group: stack for group, stack in self._stacks.items() if group in groups}
        for group in groups:
            tokens = torch.stack([shares[member] for member in group])
            gradients = self._made(group, tokens, rates, [travelling[member] for member in group])
            if gradients is None:
                self._enabled = False
                self._stacks = {}
                give_back(self._replicas[0].device)
                break
            results |= zip(group, map(self._result, group, gradients), strict=True)
        return results

    def _made(
        self, group: tuple[int, ...], tokens: Tensor, rates: Rates, travelling: Sequence[bool]
    ) -> list[PseudoGradient | AftermathError] | None:
        """Return the changes of a group's members, or None if they cannot be trained at once."""
        try:
            if group not in self._stacks:
                self._stacks[group] = _Stack([self._replicas[member] for member in group])
            return self._stacks[group].make(tokens, rates, travelling)
        except (RuntimeError, MemoryError) as error:
            # torch raises RuntimeError for operations that vmap cannot batch, for failed kernels
            # and if a GPU's memory runs out. The members are unchanged, because their moments are
            # written after all steps.
            log.warning("training members one after another: %s", first_line(error))
            return None

    def _groups(self, shares: Sequence[Tensor]) -> list[tuple[int, ...]]:
        """Return the members to stack, in groups of equal models, shares and numbers of steps."""
        alike: defaultdict[tuple[int, int, float], list[int]] = defaultdict(list)
        for member, (replica, share) in enumerate(zip(self._replicas, shares, strict=True)):
            step = replica.optimizer.private_step
            if replica.model.can_stack and isinstance(step, InnerSteps) and share.dim() == 2:
                steps = steps_of(step.inner.state_tensors())
                alike[id(replica.model), len(share), steps].append(member)
        return [tuple(members) for members in alike.values() if len(members) > 1]

    def _result(self, member: int, gradient: PseudoGradient | AftermathError) -> MemberResult | str:
        """Encode a member's change."""
        if isinstance(gradient, AftermathError):
            return gradient.message
        try:
            return MemberResult(self._replicas[member].optimizer.encode(gradient), gradient.loss)
        except NonFiniteGradient as error:
            return error.message


class _Stack:
    """The inner steps of one group, and their passes."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        members = [replica.optimizer.private_step for replica in replicas]
        self._steps = StackedSteps([step for step in members if isinstance(step, InnerSteps)])
        self._replica = replicas[0]
        self._passes = replicas[0].passes
        self._loss = _Loss(replicas[0].model)
        self._compiled = (
            torch.compile(self._losses, dynamic=False) if self._passes.arithmetic.compiled else None
        )
        self._shape: torch.Size | None = None
        """The shape of compiled passes: the first one."""

    def make(
        self, sequences: Tensor, rates: Rates, travelling: Sequence[bool]
    ) -> list[PseudoGradient | AftermathError]:
        placed = self._passes.upload(sequences)
        return self._steps.make(placed, self._backward, rates.step, rates.previous, travelling)

    def _backward(self, params: Mapping[str, Tensor], sequences: Tensor) -> Tensor:
        """Add the gradients of each member's mean loss, by micro-batches. Return the losses."""
        total = torch.zeros(len(sequences), device=sequences.device)
        for micro in sequences.split(self._replica.at_once, dim=1):  # [members, micro, seq_len]
            part = micro.shape[1] / sequences.shape[1]
            losses = self._pass(dict(params), micro) * part
            losses.sum().backward()
            total += losses.detach()
        return total

    def _pass(self, params: dict[str, Tensor], micro: Tensor) -> Tensor:
        """Return the loss of each member, with a gradient for the stacked parameters."""
        with self._passes.cast(), _quiet():
            if self._compiled is None:
                return self._losses(params, micro)
            if self._shape is None:
                compiled = self._compiled
                if not compiles(lambda: compiled(params, micro).sum(), list(params.values())):
                    self._compiled = None
                    return self._losses(params, micro)
                self._shape = micro.shape
            # Compile one shape only, so that a remainder does not wait for the compiler.
            return (self._compiled if micro.shape == self._shape else self._losses)(params, micro)

    def _losses(self, params: dict[str, Tensor], micro: Tensor) -> Tensor:
        def of_member(own: dict[str, Tensor], sequences: Tensor) -> Tensor:
            network_params = {f"network.{name}": tensor for name, tensor in own.items()}
            loss: Tensor = functional_call(self._loss, network_params, (sequences,))
            return loss

        losses: Tensor = vmap(of_member)(params, micro)
        return losses


class _Loss(nn.Module):
    """A network's loss as a `forward`, which is what `functional_call` calls."""

    def __init__(self, network: LanguageModel) -> None:
        super().__init__()
        self.network = network

    def forward(self, sequences: Tensor) -> Tensor:
        return self.network.loss(sequences)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warning that a CPU computes attention member by member."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield
