"""The interface of an optimizer: the format of its results, and the parts that a member runs.

Importing this module does not load PyTorch, because an owner needs only the format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aftermath.optim.moe_bias import Balances
from aftermath.rules.optimizer import Optimizer

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.model.schema import StateSchema
    from aftermath.optim.inner_optimizer import MakeInner
    from aftermath.optim.interfaces import Apply, Compressor, PrivateStep
    from aftermath.optim.level_votes import Votes
    from aftermath.optim.result_format import ResultFormat

S = TypeVar("S", bound=Optimizer)


@dataclass(frozen=True)
class ReplicaParts:
    """The inputs from which a replica builds its optimizer's parts."""

    results: ResultFormat
    tier: int
    params: Mapping[str, Tensor]
    """The fp32 tensors of the tier. An apply changes them in place."""
    balances: Balances
    """Whether a parameter balances experts (`optim.moe_bias`)."""
    inner: MakeInner
    """Builds the optimizer of inner steps, which several devices may share."""
    momentum: Mapping[str, Tensor] = field(default_factory=dict)
    """The int64 tensors of the outer momentum (`StateSchema.momentum_shapes`), if it is on."""


class OptimizerParts(ABC, Generic[S]):
    """Builds the parts that train and apply with these settings. `Optimizer.ENGINE` names a
    subclass.

    `optim.error_feedback` compresses the pseudo-gradients of every optimizer.
    """

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @abstractmethod
    def results(self, state: StateSchema) -> ResultFormat:
        """Return the format of results. Raises SchemaError if blocks would be too large."""

    @abstractmethod
    def apply(self, replica: ReplicaParts) -> Apply:
        """Return the step that applies all members' results, with equal bits on every replica."""

    @abstractmethod
    def step(self, replica: ReplicaParts, feedback: Compressor, apply: Apply) -> PrivateStep:
        """Return the step that turns a member's share into a pseudo-gradient."""

    def counted(self, votes: Votes, lr: float) -> Tensor:
        """Return the values of votes as the apply counts them at this rate: fp32 [n].

        By default, signs are +1 or -1, and floats count as sent.
        """
        del lr
        return votes.values.float()


def parts_of(optimizer: Optimizer) -> OptimizerParts[Any]:
    """Return the parts of an optimizer with which members exchange results."""
    parts: OptimizerParts[Any] = resolve_name(optimizer.ENGINE)(optimizer)
    return parts
