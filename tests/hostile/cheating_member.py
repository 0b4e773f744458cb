"""A member of a run with audits that cheats: the command `train` with another replica or judge.

python cheating_member.py CHEAT train OPTION...
python cheating_member.py CHEAT client train OPTION...

CHEAT is a name in CHEATS. `lends` and `borrows` share results in the directory $LENT_RESULTS.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aftermath.__main__ import main as run_cluster_client
from aftermath.audit.comparison import AuditVerdict
from aftermath.audit.share_audit import Judgement
from aftermath.member.rounds.judge import AuditedResult, Judge
from aftermath.optim.engine import Trained
from aftermath.replica.origin import Origin
from aftermath.replica.replica import Replica
from aftermath.server.__main__ import main as run_server_client
from aftermath.train import assembly

_POLL_S = 0.05
_PATIENCE_S = 10.0  # for the friend's result
Lent = tuple[Trained, dict[str, Tensor]]
"""A result, and the private state after it."""


class HalfReplica(Replica):
    """Trains the first half of each sequence, which takes half of the time."""

    def train(self, sequences: Tensor, *arguments: Any, **options: Any) -> Trained:
        """Train half of the tokens. A share may have one sequence only."""
        half = sequences.shape[-1] // 2
        return super().train(sequences[..., :half].contiguous(), *arguments, **options)


class OtherDataReplica(Replica):
    """Trains its first share again and again."""

    _first: Tensor | None = None

    def train(self, sequences: Tensor, *arguments: Any, **options: Any) -> Trained:
        """Train the first share."""
        if self._first is None:
            self._first = sequences
        return super().train(self._first, *arguments, **options)


class _FriendReplica(Replica):
    """Names a round's file by its weights, so that both friends use the same file."""

    def _file(self) -> Path:
        # With overlap, two rounds may begin from equal weights.
        weights = b"".join(self.hashes().values()).hex()[:32]
        seen: Counter[str] = self.__dict__.setdefault("_rounds_with", Counter())
        seen[weights] += 1
        return Path(os.environ["LENT_RESULTS"]) / f"{weights}-{seen[weights]}.pt"


class LendingReplica(_FriendReplica):
    """Trains honestly, and gives its results and private states to a friend."""

    def train(self, sequences: Tensor, *arguments: Any, **options: Any) -> Trained:
        """Train, and write the result."""
        file = self._file()
        trained = super().train(sequences, *arguments, **options)
        written = file.with_suffix(".part")
        torch.save((trained, self.optimizer.state()), written)
        written.rename(file)
        return trained


class BorrowingReplica(_FriendReplica):
    """Sends its friend's results and commits to its friend's states."""

    def train(
        self,
        sequences: Tensor,
        lr: float,
        ahead_lr: float,
        cancelled: threading.Event,
        *arguments: Any,
        **options: Any,
    ) -> Trained:
        """Return the friend's result of the round. Train if there is none."""
        file = self._file()
        for _ in range(round(_PATIENCE_S / _POLL_S)):
            if file.exists():
                lent: Lent = torch.load(file, weights_only=False)
                self.optimizer.restore(lent[1])
                return replace(lent[0], tokens=sequences.numel())
            if cancelled.wait(_POLL_S):
                break
        return super().train(sequences, lr, ahead_lr, cancelled, *arguments, **options)


async def _accuse(
    self: Judge, result: AuditedResult, seed: int, lender: bytes | None = None
) -> Judgement:
    """Call every result false, without work."""
    del self, result, seed, lender
    return Judgement(AuditVerdict.MISMATCH, "it says so")


def _with(make: type[Replica]) -> None:
    assembly.Origin = partial(Origin, make=make)  # type: ignore[assignment, attr-defined]


def _accusing() -> None:
    Judge.judge = _accuse  # type: ignore[method-assign]


CHEATS: dict[str, Callable[[], None]] = {
    "half": partial(_with, HalfReplica),
    "other data": partial(_with, OtherDataReplica),
    "lends": partial(_with, LendingReplica),
    "borrows": partial(_with, BorrowingReplica),
    "accuses": _accusing,
}

if __name__ == "__main__":
    CHEATS[sys.argv.pop(1)]()
    if sys.argv[1] == "client":
        run_server_client()
    else:
        run_cluster_client()
