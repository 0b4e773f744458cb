"""The three parts that an optimizer is made of, as `optim.engine` puts them together.

Decided
- A **private step** turns a member's share into a pseudo-gradient. Nobody else sees it, so it needs no exactness.
- A **result** is what is sent of pseudo-gradients, and remembers what was not.
- An **apply** changes the parameters by everyone's results. It alone must give the same bits on every replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from aftermath.base.errors import AftermathError
from aftermath.optim.layout import Part
from aftermath.optim.private_blocks import BlockSpan
from aftermath.optim.votes import Votes

Loss = float | Tensor
"""A number, or a GPU's tensor of one that was not read yet: reading it waits for the GPU."""
Backward = Callable[[Tensor], Loss]
"""Adds the gradient of the mean loss over sequences int64 [n, seq_len] to the parameters' `grad`, and returns the loss.
It may raise in order to give up.
"""


class BadState(AftermathError):
    """What was kept of an optimizer is not the state of this one."""


@dataclass(frozen=True)
class PseudoGradient:
    """What a member would subtract from the shared weights: `factor` times each tensor."""

    tensors: Mapping[str, Tensor]
    """Named and shaped as the parameters, fp32."""
    factor: float
    loss: float
    """Mean over the share."""


@dataclass(frozen=True)
class Measured:
    """What one level of a result is to the residual it was taken from."""

    gradient_norm: float
    """Of the pseudo-gradient."""
    residual_norm: float
    """Of what is left for later rounds."""
    carried: float
    """The part of the residual's energy (its squared norm) that the result took along, 0 to 1."""


class Remembering(Protocol):
    """What a replica alone knows and needs in order to go on."""

    def remembered(self) -> dict[str, Tensor]:
        """As named tensors, where they are: copies only of what is in other processes. With equal parameters `restore`
        continues from them bit by bit.

        What may change in the next round is these themselves.
        """

    def state(self) -> dict[str, Tensor]:
        """Copies of what is remembered, on the CPU."""

    def digests(self) -> list[bytes]:
        """Of the blocks of what is remembered (`optim.private_blocks`)."""

    def block(self, place: BlockSpan) -> bytes:
        """A block of what is remembered."""

    def sizes(self) -> dict[str, int]:
        """How many bytes each of these has, once a round was trained."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over copies of what `remembered` gave.

        Raises BadState, leaving all as it was, unless it fits this replica exactly.
        """

    def reset(self) -> None:
        """Forget everything learnt from past rounds."""


class PrivateStep(Remembering, Protocol):
    """From the shared weights and a share to a pseudo-gradient."""

    def make(
        self, sequences: Tensor, backward: Backward, lr: float, ahead_lr: float, travelling: bool
    ) -> PseudoGradient:
        """Train on sequences int64 [n, seq_len]; the parameters are exactly what they were then, also on an error.

        `ahead_lr` is the rate of the step before, and `travelling` says that this member has a result of it which is
        still to be applied. The tensors may be the
        parameters' own `grad`, and are used up before the next step. Raises NonFiniteGradient, and what `backward`
        raises.
        """


class Result(Remembering, Protocol):
    """From pseudo-gradients to payloads."""

    def compress(self, made: PseudoGradient) -> dict[int, bytes]:
        """The result per held level.

        Raises NonFiniteGradient, naming the tensor, or SegmentError for a missing or misshapen one; what is remembered
        is untouched then.
        """

    def measure(self, made: PseudoGradient) -> dict[int, Measured]:
        """Per held level, what the last `compress`, which was of this pseudo-gradient, did. It changes nothing."""

    def directions(self) -> Iterator[tuple[Part, Tensor]]:
        """The signs of what was not sent yet, and what was sent last: blocks fp32 [n, h, w], segment by segment."""

    def go_ahead(self, params: Mapping[str, Tensor], rate: float) -> None:
        """Change parameters by -rate times these signs."""

    def sent(self) -> dict[int, bytes]:
        """The last result, per held level; nothing before the first."""


class Apply(Protocol):
    """What everyone's results change."""

    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        """Apply one round: per held level the votes of the peers whose results the run accepted, in any order.

        Raises ValueError, leaving the parameters as they were, for what no run can have accepted.
        """
