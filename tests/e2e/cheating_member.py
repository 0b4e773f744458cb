"""A member that trains half of each sequence: the client with another replica.

python cheating_member.py train OPTION...
python cheating_member.py client train OPTION...
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from torch import Tensor

from aftermath.__main__ import main as run_cluster_client
from aftermath.optim.engine import Trained
from aftermath.replica.origin import Origin
from aftermath.replica.replica import Replica
from aftermath.server.__main__ import main as run_server_client
from aftermath.train import assembly


class CheatingReplica(Replica):
    """A replica that trains the first half of each sequence, which takes half of the time."""

    def train(self, sequences: Tensor, *arguments: Any, **options: Any) -> Trained:
        """Train half of the tokens. A share may have one sequence only."""
        half = sequences.shape[-1] // 2
        return super().train(sequences[..., :half].contiguous(), *arguments, **options)


if __name__ == "__main__":
    assembly.Origin = partial(Origin, make=CheatingReplica)  # type: ignore[assignment, attr-defined]
    if sys.argv[1] == "client":
        run_server_client()
    else:
        run_cluster_client()
