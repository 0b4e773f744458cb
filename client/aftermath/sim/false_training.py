"""Members that train their shares in another way than the run demands.

Their replays of other shares stay honest, and their weights stay those of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aftermath.replica.replica import Replica

Cheat = Callable[[Replica, Tensor], Tensor]
"""Changes a replica or returns other sequences than those of the share."""


def skip_half(replica: Replica, sequences: Tensor) -> Tensor:
    """Return the first half of the sequences."""
    del replica
    return sequences[: len(sequences) // 2]


def train_other_data(replica: Replica, sequences: Tensor) -> Tensor:
    """Return sequences whose tokens are shifted."""
    del replica
    return sequences.roll(1, dims=1)


def train_other_weights(replica: Replica, sequences: Tensor) -> Tensor:
    """Train at weights that differ by 1 %, as stale ones do."""
    with torch.no_grad():
        for parameter in replica.params.values():
            parameter *= 1.01
    return sequences


def corrupt(replica: Replica, cheat: Cheat, wanted: Callable[[], bool] = lambda: True) -> None:
    """Make a replica train its shares in another way whenever `wanted` returns true."""
    honest = replica.train

    def train(sequences: Tensor, *arguments: Any, **options: Any) -> Any:
        if not wanted():
            return honest(sequences, *arguments, **options)
        before = {name: tensor.detach().clone() for name, tensor in replica.params.items()}
        try:
            return honest(cheat(replica, sequences), *arguments, **options)
        finally:
            with torch.no_grad():
                for name, tensor in before.items():
                    replica.params[name].copy_(tensor)

    replica.train = train  # type: ignore[method-assign]
