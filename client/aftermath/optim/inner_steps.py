"""The private step that makes inner steps with the member's own optimizer.

The share is cut into `inner_steps` parts (fewer if it has fewer sequences), and AdamW or Muon makes
one step on each at the round's learning rate. The pseudo-gradient is the parameters before the
steps minus those after. The shared parameters are restored exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from aftermath.optim.gradient_clip import (
    LARGEST_RESIDUAL,
    NonFiniteGradient,
    clip_gradients,
    clip_unread,
    finite,
    refuse_beyond,
)
from aftermath.optim.inner_optimizer import (
    Inner,
    InnerOptimizer,
    MakeInner,
    rate_of_vectors,
)
from aftermath.optim.interfaces import Backward, PseudoGradient
from aftermath.optim.moe_bias import Balances, balance, learnt, nothing_balances
from aftermath.optim.moments import copies_of
from aftermath.rules.optimizer import Optimizer

_LARGEST_GRADIENT = 1e19  # the square of a larger one overflows fp32 and makes a moment infinite


class InnerSteps:
    """Makes pseudo-gradients of fp32 `params`.

    `ahead` applies the member's previous result at a rate.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        settings: Optimizer,
        ahead: Callable[[float], None],
        balances: Balances = nothing_balances,
        inner: MakeInner = InnerOptimizer,
    ) -> None:
        self._params = dict(params)
        self._settings = settings
        self._ahead = ahead
        self._learnt = learnt(params, balances)
        self._balances = balances
        self._inner = inner(self._learnt, settings)

    def make(
        self, sequences: Tensor, backward: Backward, lr: float, ahead_lr: float, travelling: bool
    ) -> PseudoGradient:
        """Train on the share part by part. Return the change of the parameters."""
        self._inner.begin()
        shared = self._copies()
        try:
            # Without this, the steps repeat the direction of the previous result (measured in
            # docs/experiments.md).
            if travelling:
                self._ahead(ahead_lr)
            start = self._copies() if travelling else shared
            parts = sequences.tensor_split(min(self._settings.inner_steps, len(sequences)))
            losses = self._train(parts, backward, lr)
            with torch.no_grad():
                changes = dict(zip(start, self._changes(list(start.values())), strict=True))
            refuse_beyond(changes, LARGEST_RESIDUAL)
        except BaseException:
            self._inner.undo()
            raise
        else:
            self._inner.end()
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._tensors(), list(shared.values()))
        total = sum(loss * len(part) for loss, part in zip(losses, parts, strict=True))
        return PseudoGradient(changes, 1.0, total / len(sequences), tuple(losses))

    @property
    def settings(self) -> Optimizer:
        """Return the settings of all steps."""
        return self._settings

    @property
    def inner(self) -> Inner:
        """Return the optimizer of the steps."""
        return self._inner

    @property
    def params(self) -> dict[str, Tensor]:
        """Return the shared parameters."""
        return dict(zip(self._params, self._tensors(), strict=True))

    def params_ahead(self, rate: float) -> dict[str, Tensor]:
        """Return copies of the parameters with this member's previous result applied at a rate."""
        shared = self._copies()
        try:
            self._ahead(rate)
            return self._copies()
        finally:
            torch._foreach_copy_(self._tensors(), list(shared.values()))

    def _tensors(self) -> list[Tensor]:
        return [tensor.detach() for tensor in self._params.values()]

    def _copies(self) -> dict[str, Tensor]:
        return copies_of(self.params)

    def _changes(self, start: list[Tensor]) -> list[Tensor]:
        """Return `start` minus the parameters."""
        return list(torch._foreach_sub(start, self._tensors()))

    def _train(self, parts: Sequence[Tensor], backward: Backward, lr: float) -> list[float]:
        """Make an inner step on each part. Return the mean loss of each."""
        if self._inner.takes_gradients_as_they_are and may_run_ahead(self._learnt.values()):
            return self._train_ahead(parts, backward, lr)
        losses = []
        for part in parts:
            self._forget_gradients()
            losses.append(finite(backward(part)))
            grads = self._gradients()
            clip = self._settings.clip
            factors = () if clip is None else clip_gradients(grads, clip)
            if clip is None or clip > _LARGEST_GRADIENT:  # else clipping has bounded them
                refuse_beyond(grads, _LARGEST_GRADIENT)
            self._inner.step(lr, factors)
            balance(self._params, self._balances, rate_of_vectors(lr, self._settings))
        return losses

    def _train_ahead(self, parts: Sequence[Tensor], backward: Backward, lr: float) -> list[float]:
        """Make all inner steps on a GPU, one step ahead of it. Return the mean loss of each.

        Losses and gradients are checked after the share. Until then, nothing is committed.
        """
        losses = list[Tensor]()
        sizes = list[Tensor]()
        event: torch.cuda.Event | None = None
        for part in parts:
            self._forget_gradients()
            loss = torch.as_tensor(backward(part), dtype=torch.float64)
            grads = list(self._gradients().values())
            losses.append(loss.to(grads[0].device))
            sizes.append(clip_unread(grads, self._settings.clip).double())
            self._inner.step(lr, ())
            balance(self._params, self._balances, rate_of_vectors(lr, self._settings))
            event = _one_behind(event, grads[0].device)
        read: list[list[float]] = torch.stack((torch.stack(losses), torch.stack(sizes))).tolist()
        check_steps(*read)
        return read[0]

    def _forget_gradients(self) -> None:
        for tensor in self._params.values():
            tensor.grad = None

    def _gradients(self) -> dict[str, Tensor]:
        return {
            name: tensor.grad for name, tensor in self._learnt.items() if tensor.grad is not None
        }

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the moments without copies. They persist over all rounds."""
        return self._inner.state_tensors()

    def state(self) -> dict[str, Tensor]:
        """Return copies of the moments."""
        return self._inner.state()

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each moment."""
        return self._inner.sizes()

    def digests(self) -> list[bytes]:
        """Return the digest of each block of the moments."""
        return self._inner.digests()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore the moments. Raises BadState, and changes nothing, on a mismatch."""
        self._inner.restore(state)

    def reset(self) -> None:
        """Forget the moments."""
        self._inner.reset()


def check_steps(losses: Sequence[float], sizes: Sequence[float]) -> None:
    """Raise NonFiniteGradient unless the loss and gradient of each inner step were finite.

    `sizes` has what `clip_unread` returned after each step.
    """
    for number, (loss, size) in enumerate(zip(losses, sizes, strict=True)):
        finite(loss)
        if not size <= _LARGEST_GRADIENT:
            raise NonFiniteGradient(
                f"a gradient of inner step {number + 1} is not finite or exceeds {_LARGEST_GRADIENT:.3g}",
                "Lower the learning rate if this happens again",
            )


def may_run_ahead(params: Iterable[Tensor]) -> bool:
    """Return whether inner steps can be queued on a GPU before earlier ones are done."""
    return torch.cuda.is_available() and all(tensor.device.type == "cuda" for tensor in params)


def _one_behind(before: torch.cuda.Event | None, device: torch.device) -> torch.cuda.Event | None:
    """Record an event after the newest step on the GPU, then wait for the step before it.

    The GPU's queue then has one step at most, so that a share can be cancelled quickly.
    """
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    if before is not None:
        before.synchronize()
    return event
