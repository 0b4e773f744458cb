"""The weights from which recent rounds were trained, for replays of their shares."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from aftermath.model.levels import prefix
from aftermath.replica.mapped_tensors import mapped_if_large


class StartWeights:
    """Copies of a replica's parameters, by the height of the round that began with them.

    If all copies together exceed `mapped_tensors.MEMORY`, they are in files in `directory`.
    """

    # Outer momentum is not kept: no share is trained with it.

    def __init__(self, directory: Path | None, copies: int) -> None:
        """`copies`: maximum number that the caller keeps at a time."""
        self._directory = directory
        self._copies = copies
        self._by_height: dict[int, Mapping[str, Tensor]] = {}

    def keep(self, height: int, params: Mapping[str, Tensor]) -> None:
        """Copy the parameters at the start of a round. Raises as `mapped_if_large` does."""
        copied = {name: tensor.detach().to("cpu", copy=True) for name, tensor in params.items()}
        self._by_height[height] = mapped_if_large(copied, self._copies, self._directory)

    def of(self, height: int, shapes: Mapping[str, Sequence[int]]) -> Mapping[str, Tensor] | None:
        """Return the parameters at the start of a round, or None if they are not kept.

        `shapes` are those of the same or a smaller tier, whose parameters are prefixes.
        """
        params = self._by_height.get(height)
        if params is None:
            return None
        return {name: params[name][prefix(shape)] for name, shape in shapes.items()}

    def retain(self, heights: Collection[int]) -> None:
        """Drop all other rounds."""
        for height in self._by_height.keys() - set(heights):
            del self._by_height[height]
