"""Bias vectors that balance the load of experts (MoE). Counts update them, not gradients.

b_i <- b_i - rate * sign(load_i - mean load), so an expert that is chosen too often is chosen less.
Sources: Wang et al., "Auxiliary-Loss-Free Load Balancing" (arXiv 2408.15664); DeepSeek-V3 (arXiv
2412.19437, 2.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # owner commands build a schema without torch, which takes seconds to load
    from torch import Tensor

# In the vector's `grad`, the network counts how often it chose each expert. Counts are summed over
# micro-batches and ranks like gradients, and fp32 holds up to 2^24 choices per expert and share.
#
# Members send load errors like gradients, in blocks of one number, which the transform and top-k
# do not change. With DisTrO a member votes with the sign of its share's error, and the exact apply
# moves the vector by the sign of the mean vote. With SparseLoCo every inner step applies the rule,
# and the apply subtracts the exact mean of the changes.
#
# The rate is that of other vectors at the step (published: 0.001, for a learning rate of 0.00022).
# No weight decay or moment touches these vectors, and they do not count in gradient norms or
# metrics.
Balances = Callable[[str], bool]
"""Predicate for the names of balance vectors (`ModelConfig.balances`)."""


def nothing_balances(name: str) -> bool:
    """Return False: the model has no balance vectors."""
    del name
    return False


def learnt(tensors: Mapping[str, Tensor], balances: Balances) -> dict[str, Tensor]:
    """Return the tensors that are trained by gradients, which are all but balance vectors."""
    return {name: tensor for name, tensor in tensors.items() if not balances(name)}


def load_error(counts: Tensor) -> Tensor:
    """Return each expert's share of all choices minus the mean share, fp32 [experts].

    The sign is exact, because the difference is computed in integers.
    """
    whole = counts.long()
    total = whole.sum()
    return (whole * len(whole) - total).float() / (total * len(whole)).clamp(min=1).float()


def balance(params: Mapping[str, Tensor], balances: Balances, rate: float) -> None:
    """Subtract rate * sign(load error) from each balance vector. Counts are in its `grad`."""
    for name, tensor in params.items():
        if balances(name) and tensor.grad is not None:
            tensor.detach().sub_(load_error(tensor.grad).sign_(), alpha=rate)
