"""The apply of SparseLoCo: x <- x - rate * (sum of the values) / divisor, exactly.

Kernels count votes that are packed on a GPU (`optim.packed_dense`, `optim.packed_sparse`). The CPU
counts other votes, dense (`optim.dense_votes`) or not. All votes are checked before the first
parameter changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from aftermath.kernels.runtime import run_parallel
from aftermath.model.levels import Segment
from aftermath.model.segments import view
from aftermath.optim import dense_votes, packed_dense, packed_sparse
from aftermath.optim.compiled_sparse import Counted, Task, usable
from aftermath.optim.lattice import LARGEST, SMALLEST
from aftermath.optim.layout import LevelLayout, Part, level_layout
from aftermath.optim.level_kernels import LevelTensors, tensors_of
from aftermath.optim.level_votes import DenseVotes, Votes
from aftermath.optim.packed_dense import PackedVotes
from aftermath.optim.packed_sparse import PackedEntries
from aftermath.optim.result_format import ResultFormat
from aftermath.optim.transform import subtract
from aftermath.optim.vote_count import check_votes, tally_multiples
from aftermath.rules.sparseloco import REACH, DivisorName, SparseLoCo

# Per coefficient: S is the sum over the accepted results of multiples of the lattice's smallest
# value 2^LEAST (`optim.lattice`), each clipped to a member's cap (`sparseloco.REACH`). c results
# sent the coefficient, n have its level, and d is one of c, n, sqrt(c n). u = fp32(S / d * (rate *
# 2^LEAST)), x <- x - u. A coefficient that no member sent does not change.
#
# Why the bits are equal everywhere:
# - |S| <= 256 * 3 * 2^43 < 2^53, so S is exact in int64 and float64, in any order.
# - The cap is an integer that Python computes from the learning rate, which all replicas share.
# - Python computes d once per count: c and n are integers, and a square root is correctly rounded.
# - u is a division, a multiplication and a rounding to fp32, and x gets one subtraction. Each is a
#   single IEEE operation on two tensors, or on a tensor and a number. No number is a divisor,
#   because a device may multiply by its reciprocal instead. rate * 2^LEAST is the same rate with
#   another exponent.
_AT_ONCE = 1 << 20  # coefficients divided at once
Change = Callable[[], None]
"""Changes parameters by votes that were checked before."""


class MeanApply:
    """Changes a replica's fp32 `params`, of tier `tier`, in place."""

    def __init__(
        self, results: ResultFormat, tier: int, params: Mapping[str, Tensor], settings: SparseLoCo
    ) -> None:
        self._params = params
        self._settings = settings
        self._results = results
        self._bits = results.values.lattice_bits
        self._compiled = not settings.orthogonal_lr and usable(params)
        self._layouts = {
            level: level_layout(results, level) for level in range(tier, results.levels)
        }
        self._device = view(params, self._layouts[tier].parts[0].segment).device

    @torch.no_grad()
    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        """Apply one round. `lr` was every member's rate. Raises ValueError for invalid votes."""
        most = most_of(self._settings, lr)
        results = {level: votes for level, votes in results.items() if votes}
        for level, votes in results.items():
            check_votes(votes, level, torch.int64)
        dense_by_level = dense_votes.votes_of(results)
        others = {level: votes for level, votes in results.items() if level not in dense_by_level}
        for change in (self._placed(others, most, lr), self._dense(dense_by_level, most, lr)):
            change()

    def _placed(self, results: Mapping[int, Sequence[Votes]], most: int, lr: float) -> Change:
        """Check votes with positions. Return the change that applies them."""
        if self._compiled:
            return self._compiled_change(results, most)
        if packed_votes := packed_sparse.votes_on(results, self._device):
            return self._change_packed(packed_votes, most)
        decided = {
            level: changes(votes, level, self._settings, most) for level, votes in results.items()
        }

        def change() -> None:
            for level, means in decided.items():
                for part, blocks in placed(self._layouts[level], *means, self._device):
                    self._move(view(self._params, part.segment), part, blocks, lr)

        return change

    def _compiled_change(self, results: Mapping[int, Sequence[Votes]], most: int) -> Change:
        """Count votes with compiled kernels. Return the change that applies them."""
        counted = {level: Counted(votes, self._layouts[level]) for level, votes in results.items()}

        def change() -> None:
            tasks: list[Task] = []
            for level, votes in results.items():
                divisors = _divisors(self._settings.divisor, len(votes))
                tasks += counted[level].mean(
                    self._params, most, divisors, self._settings.outer_lr * SMALLEST
                )
            run_parallel(tasks)

        return change

    def _dense(self, results: Mapping[int, Sequence[DenseVotes]], most: int, lr: float) -> Change:
        """Check dense votes. Return the change that applies them."""
        rate = self._settings.outer_lr * SMALLEST
        by = self._settings.divisor
        on_device = {
            level: packed_votes
            for level, votes in results.items()
            if (packed_votes := self._packed(votes))
        }
        decided = {
            level: dense_votes.means(
                votes, self._layouts[level], most, _divisors(by, len(votes)), rate, self._device
            )
            for level, votes in results.items()
            if level not in on_device
        }

        def change() -> None:
            for level, votes in on_device.items():
                table = self._table(self._layouts[level])
                packed_dense.count(votes, table, self._bits, most, _divisors(by, len(votes)), rate)
            for level, groups in decided.items():
                for part in self._layouts[level].parts:
                    self._move(
                        view(self._params, part.segment), part, part.of(groups[part.group]), lr
                    )

        return change

    def _packed(self, votes: Sequence[DenseVotes]) -> list[PackedVotes]:
        """Return the votes if all of them are packed on the model's device, else an empty list."""
        packed_votes = [
            vote
            for vote in votes
            if isinstance(vote, PackedVotes) and vote.payload.device == self._device
        ]
        return packed_votes if len(packed_votes) == len(votes) else []

    def _table(self, layout: LevelLayout) -> LevelTensors:
        """Return the table of the tensors that packed votes of a level change."""
        return LevelTensors(layout, tensors_of(layout, self._params))

    def _change_packed(self, results: Mapping[int, Sequence[PackedEntries]], most: int) -> Change:
        """Return the change by sparse votes that are packed on the model's device."""

        def change() -> None:
            for level, votes in results.items():
                by = _divisors(self._settings.divisor, len(votes))
                rate = self._settings.outer_lr * SMALLEST
                table = self._table(self._layouts[level])
                packed_sparse.count(votes, table, self._results, most, by, rate)

        return change

    def _move(self, tensor: Tensor, part: Part, blocks: Tensor, lr: float) -> None:
        """Change a segment's `tensor` by the mean, given as blocks."""
        del lr  # the values include it
        subtract(tensor, blocks, part.blocks)

    def move_by(self, tensor: Tensor, segment: Segment, step: Tensor, lr: float) -> None:
        """Change a segment's `tensor` by a mean in its shape. `finish` must follow."""
        del segment, lr
        tensor.sub_(step)

    def finish(self, lr: float) -> None:
        """Finish the changes by `move_by`."""


def most_of(settings: SparseLoCo, lr: float) -> int:
    """Return the cap of one member's value, in multiples of the smallest lattice value.

    Raises ValueError for a negative or non-finite rate.
    """
    if not 0 <= lr < math.inf:
        raise ValueError(f"learning rate {lr} must be finite and at least 0")
    return int(min(REACH[settings.inner_optimizer] * settings.inner_steps * lr / SMALLEST, LARGEST))


def changes(
    votes: Sequence[Votes], level: int, settings: SparseLoCo, most: int
) -> tuple[Tensor, Tensor]:
    """Return the update to subtract: positions int64, and steps fp32 at these positions.

    The votes are of at least one peer, and each is clipped to `most`. Raises ValueError for votes
    of another level or kind, or of more than 256 peers.
    """
    check_votes(votes, level, torch.int64)
    positions, sums, counts = tally_multiples(votes, most)
    divisors = torch.tensor(_divisors(settings.divisor, len(votes)), dtype=torch.float64).to(
        sums.device
    )
    steps = torch.empty(len(sums), device=sums.device)
    for first in range(0, len(sums), _AT_ONCE):
        batch = slice(first, first + _AT_ONCE)
        steps[batch] = (
            sums[batch].double() / divisors[counts[batch].long()] * (settings.outer_lr * SMALLEST)
        )
    return positions, steps


def placed(
    layout: LevelLayout, positions: Tensor, steps: Tensor, device: torch.device
) -> Iterator[tuple[Part, Tensor]]:
    """Yield every segment of a level and its blocks fp32 [n, h, w] on `device`.

    The blocks hold the steps at their positions and zero elsewhere. Positions are distinct and
    ascend.
    """
    bases = torch.tensor([group.base for group in layout.groups]).to(positions.device)
    firsts = [*torch.searchsorted(positions, bases).tolist(), len(positions)]
    for index, group in enumerate(layout.groups):
        entries = slice(firsts[index], firsts[index + 1])
        blocks = steps[entries].to(device)
        if len(blocks) < group.blocks * group.block:
            group_steps, blocks = blocks, torch.zeros(group.blocks * group.block, device=device)
            blocks[(positions[entries] - group.base).to(device)] = group_steps
        blocks = blocks.view(group.blocks, group.height, group.width)
        for part in layout.parts:
            if part.group == index:
                yield part, part.of(blocks)


def _divisors(divisor: DivisorName, results: int) -> list[float]:
    """Return the divisor of a sum by the number of members that kept the coefficient.

    The entry for 0 members is never used.
    """
    counts = range(results + 1)
    match divisor:
        case "keepers":
            return [float(count) for count in counts]
        case "all":
            return [float(results) for _ in counts]
        case "root":
            return [math.sqrt(count * results) for count in counts]
