"""Make the inner steps of several members at once.

Their parameters and moments are stacked, so every tensor is [members, ...] and its products are
batched. Numbers may round differently from those of `optim.inner_steps`, which trains one member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from aftermath.base.errors import AftermathError
from aftermath.optim.gradient_clip import (
    LARGEST_RESIDUAL,
    NonFiniteGradient,
    clip_members_unread,
    refuse_beyond,
)
from aftermath.optim.inner_optimizer import inner_optimizer, step_at
from aftermath.optim.inner_steps import InnerSteps, check_steps
from aftermath.optim.interfaces import BadState, PseudoGradient
from aftermath.optim.moments import (
    copies_of,
    moments,
    moments_of_member,
    put_back,
    stacked_moments,
)
from aftermath.optim.muon import hidden_matrices

StackedBackward = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""Adds gradients of stacked parameters to their `grad`. Returns the mean loss of each member.

The sequences are int64 [members, n, seq_len].
"""


class StackedSteps:
    """The inner steps of members with the same shared parameters and settings.

    Their models must not have balance vectors.
    """

    def __init__(self, members: Sequence[InnerSteps]) -> None:
        shared = members[0].params
        self._members = list(members)
        self._settings = members[0].settings
        self.params = {
            name: tensor.new_empty(len(members), *tensor.shape).requires_grad_()
            for name, tensor in shared.items()
        }
        # A stack of vectors has the shape of a matrix, so the members' own shapes decide.
        self._optimizer = inner_optimizer(self.params, self._settings, hidden_matrices(shared))

    def make(
        self,
        sequences: Tensor,
        backward: StackedBackward,
        lr: float,
        ahead_lr: float,
        travelling: Sequence[bool],
    ) -> list[PseudoGradient | AftermathError]:
        """Train shares int64 [members, n, seq_len]: see `PrivateStep.make`.

        Return an error for each member whose share failed. Its moments do not change. All moments
        must have seen equally many steps.
        """
        self._begin(ahead_lr, travelling)
        start = copies_of(dict(zip(self.params, self._tensors(), strict=True)))
        losses, sizes = self._train(sequences, backward, lr)
        differences = torch._foreach_sub(list(start.values()), self._tensors())
        changes = dict(zip(self.params, differences, strict=True))
        stacked = moments(self._optimizer, self.params)
        return [
            self._made(
                number,
                {name: tensor[number] for name, tensor in changes.items()},
                moments_of_member(stacked, number),
                losses=losses[number],
                sizes=sizes[number],
                counts=self._counts(sequences.shape[1]),
            )
            for number in range(len(self._members))
        ]

    @torch.no_grad()
    def _begin(self, ahead_lr: float, travelling: Sequence[bool]) -> None:
        """Copy the members' parameters and moments."""
        for number, (member, ahead) in enumerate(zip(self._members, travelling, strict=True)):
            own = member.params_ahead(ahead_lr) if ahead else member.params
            torch._foreach_copy_(
                [tensor[number] for tensor in self._tensors()], [own[name] for name in self.params]
            )
        of_members = [member.inner.state_tensors() for member in self._members]
        put_back(self._optimizer, self.params, stacked_moments(of_members))

    def _tensors(self) -> list[Tensor]:
        return [tensor.detach() for tensor in self.params.values()]

    def _counts(self, sequences: int) -> list[int]:
        """Return the number of sequences of each inner step, as `torch.tensor_split` cuts them."""
        steps = min(self._settings.inner_steps, sequences)
        return [len(part) for part in torch.empty(sequences).tensor_split(steps)]

    def _train(
        self, sequences: Tensor, backward: StackedBackward, lr: float
    ) -> tuple[list[list[float]], list[list[float]]]:
        """Make all inner steps. Return the losses and gradient sizes of each member's steps."""
        losses = []
        sizes = []
        for part in sequences.split(self._counts(sequences.shape[1]), dim=1):
            self._forget_gradients()
            losses.append(backward(self.params, part))
            grads = [tensor.grad for tensor in self.params.values() if tensor.grad is not None]
            sizes.append(clip_members_unread(grads, self._settings.clip))
            step_at(self._optimizer, lr)
        self._forget_gradients()
        # One read for all steps, because each read waits for a GPU.
        read = torch.stack((torch.stack(losses, 1), torch.stack(sizes, 1))).tolist()
        return read[0], read[1]

    def _forget_gradients(self) -> None:
        for tensor in self.params.values():
            tensor.grad = None

    def _made(
        self,
        number: int,
        changes: dict[str, Tensor],
        own_moments: Mapping[str, Tensor],
        *,
        losses: Sequence[float],
        sizes: Sequence[float],
        counts: Sequence[int],
    ) -> PseudoGradient | AftermathError:
        """Check a member's share, keep its moments and return its change."""
        try:
            check_steps(losses, sizes)
            refuse_beyond(changes, LARGEST_RESIDUAL)
            self._members[number].inner.restore(own_moments)
        except (NonFiniteGradient, BadState) as error:
            return error
        total = sum(loss * count for loss, count in zip(losses, counts, strict=True))
        return PseudoGradient(changes, 1.0, total / sum(counts), tuple(losses))
