"""An optimizer: results are top-k signs of the residual, and the majority decides a step's sign.

A config is read without PyTorch, so imports of `optim` are in the methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from aftermath.optim.parts import OptimizerParts, ReplicaParts
from aftermath.rules.optimizer import (
    Chunk,
    Clip,
    Compressed,
    Decay,
    SettingKey,
    TopK,
    TopKEmbeddings,
)

if TYPE_CHECKING:
    from aftermath.model.schema import StateSchema
    from aftermath.optim.interfaces import Apply, Compressor, PrivateStep
    from aftermath.optim.level_votes import Votes
    from aftermath.optim.result_format import ResultFormat


@dataclass(frozen=True)
class Majority(Compressed):
    """Majority: members vote on the sign of each number's step."""

    TABLE = "Majority"
    SUMMARY = "One step per round, by the majority of signs."
    ENGINE = "extending.toy_optimizer:MajorityParts"
    SENTENCES: ClassVar[Mapping[str, str]] = {
        "ScaleOutOfRange": "Majority needs scale above 0 and at most 8."
    }

    clip: Clip = 1.0
    decay: Decay = 0.9
    chunk: Chunk = 64
    topk: TopK = 256
    topk_embeddings: TopKEmbeddings = 256
    scale: Annotated[
        float,
        SettingKey(
            "scale",
            "Size of a step in learning rates.",
            "learning rates",
            above=0,
            most=8,
            rule="ScaleOutOfRange",
        ),
    ] = 1.0


class MajorityParts(OptimizerParts[Majority]):
    """Builds DisTrO's gradient step and an apply by the majority."""

    def results(self, state: StateSchema) -> ResultFormat:
        from aftermath.optim.blocks import blocks_of
        from aftermath.optim.result_format import ResultFormat, Transform, Values

        return ResultFormat(
            blocks_of(state, self.settings), state.levels, Transform.NONE, Values.SIGN
        )

    def apply(self, replica: ReplicaParts) -> Apply:
        return MajorityApply(replica, self.settings.scale)

    def step(self, replica: ReplicaParts, feedback: Compressor, apply: Apply) -> PrivateStep:
        from aftermath.optim.distro_step import GradientStep

        clip = self.settings.clip
        return GradientStep(replica.params, feedback.go_ahead, clip, replica.balances)


class MajorityApply:
    """x <- x - scale * lr * sign(sum of the votes). A sum of at most 256 signs is exact."""

    def __init__(self, replica: ReplicaParts, scale: float) -> None:
        self._replica = replica
        self._scale = scale

    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        import torch

        from aftermath.model.segments import view
        from aftermath.optim.layout import level_layout
        from aftermath.optim.rounding import to_fp32
        from aftermath.optim.sparseloco_apply import placed
        from aftermath.optim.transform import subtract
        from aftermath.optim.vote_count import check_votes, tally

        for level, votes in results.items():  # all of them before the first change
            check_votes(votes, level, torch.int8)
        rate = to_fp32(lr * self._scale)
        for level, votes in ((level, votes) for level, votes in results.items() if votes):
            places = torch.cat([vote.positions for vote in votes])
            positions, sums, _ = tally(places, torch.cat([vote.values for vote in votes]).long())
            layout = level_layout(self._replica.results, level)
            first = view(self._replica.params, layout.parts[0].segment)
            steps = sums.sign().float() * rate
            with torch.no_grad():
                for part, blocks in placed(layout, positions, steps, first.device):
                    subtract(view(self._replica.params, part.segment), blocks, part.blocks)
