"""The vectors that even out how often experts are chosen: they move by counts, and not by gradients.

b_i <- b_i - rate * sign(load_i - mean load): an expert that was chosen too often is chosen less from then on.

Decided
- A network leaves in such a vector's `grad` how often each expert was chosen (`ModelConfig.balances`), in whole
  numbers. They add up as gradients do, over micro-batches and ranks, and are exact up to 2^24 choices of one expert in
  a share.
- Members send what they counted as they send gradients, in blocks of one number, which no transform and no top-k
  changes. So with DisTrO each member votes for every expert by the sign of its own share's error, and the run's exact
  apply moves the vector by the sign of the votes' mean; with SparseLoCo every inner step follows the rule, and the
  exact mean of how far members went is applied.
- The rate is the one that other vectors have at that step. Published: 0.001, beside a learning rate of 0.00022.
- Nothing else moves them: no weight decay, no moments. They count neither in the norm that gradients are clipped to
  nor in what is measured of them.

Sources: Wang et al., "Auxiliary-Loss-Free Load Balancing" (arXiv 2408.15664); DeepSeek-V3 (arXiv 2412.19437, 2.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an owner's commands make a run's schema, and torch takes seconds to load
    from torch import Tensor

Balances = Callable[[str], bool]
"""`ModelConfig.balances`."""


def nothing_balances(name: str) -> bool:
    """Of models without such vectors."""
    del name
    return False


def learnt(tensors: Mapping[str, Tensor], balances: Balances) -> dict[str, Tensor]:
    """Those that learn by gradients."""
    return {name: tensor for name, tensor in tensors.items() if not balances(name)}


def load_error(counts: Tensor) -> Tensor:
    """How far each expert's part of all choices is above the mean part, fp32 [E]; its sign is exact."""
    whole = counts.long()
    total = whole.sum()
    return (whole * len(whole) - total).float() / (total * len(whole)).clamp(min=1).float()


def balance(params: Mapping[str, Tensor], balances: Balances, rate: float) -> None:
    """Move these vectors by what their `grad` has counted."""
    for name, tensor in params.items():
        if balances(name) and tensor.grad is not None:
            tensor.detach().sub_(load_error(tensor.grad).sign_(), alpha=rate)
