"""A member that trains only half of each share: the command `train` with another replica.

python cheating_member.py train OPTION...
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from aftermath.__main__ import main
from aftermath.optim.engine import Trained
from aftermath.replica.origin import Origin
from aftermath.replica.replica import Replica
from aftermath.train import assembly


class CheatingReplica(Replica):
    """A replica that trains the first half of its share, which takes half of the time."""

    def train(self, sequences: Tensor, *arguments: Any, **options: Any) -> Trained:
        """Train half of the sequences."""
        half = sequences[: -(-len(sequences) // 2)]
        return super().train(half, *arguments, **options)


if __name__ == "__main__":
    assembly.Origin = partial(Origin, make=CheatingReplica)  # type: ignore[assignment, attr-defined]
    main()
