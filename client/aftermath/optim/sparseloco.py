"""The parts of SparseLoCo (`rules.sparseloco`).

SparseLoCo makes inner steps, sends the strongest changes in one or two bits each, and applies their
exact mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aftermath.model.schema import StateSchema
from aftermath.optim.blocks import blocks_of
from aftermath.optim.parts import OptimizerParts, ReplicaParts
from aftermath.optim.result_format import ResultFormat, Transform, Values
from aftermath.rules.sparseloco import SparseLoCo

if TYPE_CHECKING:
    from torch import Tensor

    from aftermath.optim.interfaces import Apply, Compressor, PrivateStep
    from aftermath.optim.level_votes import Votes
    from aftermath.optim.sparseloco_apply import MeanApply


class SparseLoCoParts(OptimizerParts[SparseLoCo]):
    """Builds inner steps and an apply by the mean, or by its polar factor."""

    def results(self, state: StateSchema) -> ResultFormat:
        """Return the format: changes on the lattice, of one or two bits."""
        values = Values.ONE_BIT if self.settings.bits == 1 else Values.TWO_BIT
        return ResultFormat(blocks_of(state, self.settings), state.levels, Transform.NONE, values)

    def apply(self, replica: ReplicaParts) -> Apply:
        """Return the apply by the mean, along its polar factor if `orthogonal_lr` is above 0.

        With `outer_momentum` it applies the momentum of the mean.
        """
        if not self.settings.outer_momentum:
            return self._mean(replica)
        from aftermath.optim.outer_momentum import MomentumApply

        return MomentumApply(
            replica.results,
            replica.tier,
            replica.params,
            replica.momentum,
            settings=self.settings,
            move=self._mean(replica),
        )

    def _mean(self, replica: ReplicaParts) -> MeanApply:
        """Return the apply without momentum."""
        from aftermath.optim.outer_muon import OuterMuon
        from aftermath.optim.sparseloco_apply import MeanApply

        kind = OuterMuon if self.settings.orthogonal_lr else MeanApply
        return kind(replica.results, replica.tier, replica.params, self.settings)

    def step(self, replica: ReplicaParts, feedback: Compressor, apply: Apply) -> PrivateStep:
        """Return the inner steps. They begin with the member's own unapplied result applied."""
        from aftermath.optim.codec import decode_level
        from aftermath.optim.inner_steps import InnerSteps

        device = next(iter(replica.params.values())).device
        # The member's own result must not change the shared momentum.
        own = self._mean(replica) if self.settings.outer_momentum else apply

        def ahead(lr: float) -> None:
            votes = {
                level: [decode_level(data, replica.results, level, device)]
                for level, data in feedback.sent().items()
            }
            own.apply(votes, lr)

        return InnerSteps(replica.params, self.settings, ahead, replica.balances, replica.inner)

    def counted(self, votes: Votes, lr: float) -> Tensor:
        """Return the values of votes, fp32 [n], each clipped to a member's cap at this rate."""
        from aftermath.optim.lattice import SMALLEST
        from aftermath.optim.sparseloco_apply import most_of

        most = most_of(self.settings, lr)
        return (votes.multiples().clamp_(-most, most).double() * SMALLEST).float()
