"""The interfaces of an optimizer's three parts. `optim.engine` combines them.

- A private step turns a member's share into a pseudo-gradient. It does not have to be exact.
- A compressor turns pseudo-gradients into results, and keeps the residual.
- An apply changes the parameters by all results, with equal bits on every replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from aftermath.base.errors import AftermathError
from aftermath.optim.layout import Part
from aftermath.optim.level_votes import Votes

Loss = float | Tensor
"""A number, or a tensor on a GPU that is not read yet, because a read waits for the GPU."""
Backward = Callable[[Tensor], Loss]
"""Adds the gradient of the mean loss over sequences int64 [n, seq_len] to the parameters' `grad`.

Returns the loss. It may raise to cancel the share.
"""


class BadState(AftermathError):
    """A saved state does not fit this optimizer."""


@dataclass(frozen=True)
class PseudoGradient:
    """The change that a member proposes: subtract `factor` times each tensor from the weights."""

    tensors: Mapping[str, Tensor]
    """Tensors named and shaped like the parameters, fp32."""
    factor: float
    loss: float
    """Mean loss over the share."""
    losses: tuple[float, ...] = ()
    """Mean loss of each inner step. Empty if it is unknown."""


@dataclass(frozen=True)
class Measured:
    """Metrics of one level of a result."""

    gradient_norm: float
    """Norm of the pseudo-gradient."""
    residual_norm: float
    """Norm of the residual left for later rounds."""
    carried: float
    """Fraction of the residual's energy (squared norm) that the result contains, 0 to 1."""


class Stateful(Protocol):
    """The private state of a replica."""

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state as named tensors. Tensors in this process are not copied.

        With equal parameters `restore` continues from them bit by bit. The next round may change
        them.
        """

    def state(self) -> dict[str, Tensor]:
        """Return copies of the state on the CPU."""

    def digests(self) -> list[bytes]:
        """Return the digests of the state's blocks (`optim.state_merkle`)."""

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each state tensor. At least one round must be trained."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore copies of what `state_tensors` returned.

        Raises BadState, and changes nothing, if it does not fit exactly.
        """

    def reset(self) -> None:
        """Reset the state."""


class PrivateStep(Stateful, Protocol):
    """Turns a share at the shared weights into a pseudo-gradient."""

    def make(
        self, sequences: Tensor, backward: Backward, lr: float, ahead_lr: float, travelling: bool
    ) -> PseudoGradient:
        """Train on sequences int64 [n, seq_len]. Restore the parameters exactly, also on an error.

        `ahead_lr` is the learning rate of the previous step. `travelling` is true if this member's
        result of that step is not applied yet. The returned tensors may be the parameters' `grad`,
        which the next step overwrites. Raises NonFiniteGradient, and what `backward` raises.
        """


class Compressor(Stateful, Protocol):
    """Turns pseudo-gradients into payloads."""

    def compress(self, gradient: PseudoGradient) -> dict[int, bytes]:
        """Return the result per held level.

        Raises NonFiniteGradient, which names the tensor, or SegmentError for a missing or misshapen
        one. The state is then unchanged.
        """

    def measure(self, gradient: PseudoGradient) -> dict[int, Measured]:
        """Return metrics per held level. The argument must be that of the last `compress`."""

    def directions(self) -> Iterator[tuple[Part, Tensor]]:
        """Yield the signs of the residual plus the previous result, per segment: [n, h, w]."""

    def go_ahead(self, params: Mapping[str, Tensor], rate: float) -> None:
        """Change parameters by -rate times the signs of `directions`."""

    def sent(self) -> dict[int, bytes]:
        """Return the last result per held level; empty before the first."""


class Apply(Protocol):
    """Changes the parameters by all members' results."""

    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        """Apply one round: per held level the votes of the accepted results, in any order.

        Raises ValueError, and changes nothing, for votes that no run can have accepted.
        """
