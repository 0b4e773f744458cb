"""The parts of DisTrO (`rules.distro`).

DisTrO takes one gradient per share, sends the strongest DCT coefficients of the residual, and steps
by the sign of the mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aftermath.model.schema import StateSchema
from aftermath.optim.blocks import blocks_of
from aftermath.optim.parts import OptimizerParts, ReplicaParts
from aftermath.optim.result_format import ResultFormat, Transform, Values
from aftermath.rules.distro import Distro

if TYPE_CHECKING:
    from aftermath.optim.interfaces import Apply, Compressor, PrivateStep


class DistroParts(OptimizerParts[Distro]):
    """Builds a gradient step and an apply by signs."""

    def results(self, state: StateSchema) -> ResultFormat:
        """Return the format: DCT coefficients, as signs or as fp32 numbers."""
        values = Values.SIGN if self.settings.quantize_1bit else Values.FLOAT
        return ResultFormat(blocks_of(state, self.settings), state.levels, Transform.DCT, values)

    def apply(self, replica: ReplicaParts) -> Apply:
        """Return the apply by signs of the mean."""
        from aftermath.optim.distro_apply import SignApply

        decay = self.settings.weight_decay
        return SignApply(replica.results, replica.tier, replica.params, decay, replica.balances)

    def step(self, replica: ReplicaParts, feedback: Compressor, apply: Apply) -> PrivateStep:
        """Return the gradient step at weights that the residual looks ahead to."""
        from aftermath.optim.distro_step import GradientStep

        clip = self.settings.clip
        return GradientStep(replica.params, feedback.go_ahead, clip, replica.balances)
