"""Assign the sequences of a step to members, and choose the results that are rejected.

As on chain, a batch is cut in order and in proportion to weights. The share of a rejected result
returns to the backlog and is trained before new data. The seed decides which results are rejected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from aftermath.lab.recipe import Recipe
from aftermath.rules.assignment import cut


class DataSplit:
    """Assigns the sequences of each step, and returns rejected ones to a backlog."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._fresh = 0
        self._again: list[tuple[int, list[int]]] = []  # (earliest step, sequences to train again)

    def shares(self, step: int) -> list[list[int]]:
        """Return the sequences that each member trains in a step."""
        size = self._recipe.batch_size(self._fresh)
        due = [index for since, indices in self._again if since <= step for index in indices]
        later = [(since, indices) for since, indices in self._again if since > step]
        redone = due[:size]
        rest = due[size:]
        self._again = [(step, rest)] * bool(rest) + later
        batch = redone + list(range(self._fresh, self._fresh + size - len(redone)))
        self._fresh += size - len(redone)
        return [batch[share.start : share.stop] for share in cut(size, list(self._recipe.shares))]

    def accepted(self, step: int, member: int) -> bool:
        """Return whether the run accepts a member's result of a step."""
        drawn = hashlib.sha256(f"reject {self._recipe.seed} {step} {member}".encode()).digest()
        return int.from_bytes(drawn[:8], "little") % 100 >= self._recipe.reject

    def requeue(self, step: int, sequences: Sequence[int]) -> None:
        """Queue the sequences of a rejected result, to be trained again."""
        if sequences:
            self._again.append((step + 1 + self._recipe.overlap, list(sequences)))

    def state(self) -> tuple[int, list[tuple[int, list[int]]]]:
        """Return the number of new sequences used, and the queue of (earliest step, sequences)."""
        return self._fresh, list(self._again)

    def restore(self, fresh: int, again: Sequence[tuple[int, list[int]]]) -> None:
        """Continue from what `state` returned."""
        self._fresh = fresh
        self._again = [(since, list(indices)) for since, indices in again]
