"""The member's own process as the first rank: all ranks train its replica.

The first rank holds the shared weights in host memory and computes the exact apply on its CPU. Each
rank holds its part of the network while a share is trained, and always its part of the error
feedback and of the inner moments. For each gradient, weights go out and gradients come back.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from aftermath.base.text import counted
from aftermath.model.config import ModelConfig
from aftermath.optim.interfaces import Loss
from aftermath.parallel.commands import BeginShare, BuildNetwork, Gather, Measure, TrainMicroBatches
from aftermath.parallel.group import Ranks
from aftermath.parallel.sharded import ShardedModel, any_out_of_memory
from aftermath.parallel.sharded_feedback import ShardedFeedback
from aftermath.parallel.sharded_inner import ShardedInner
from aftermath.replica.memory import is_out_of_memory
from aftermath.replica.options import PLAIN, Arithmetic
from aftermath.replica.pass_size import OutOfMemory, PassSize
from aftermath.replica.passes import Passes
from aftermath.replica.replica import Cancelled, Replica


class Leader:
    """Train shares on all ranks, this process included."""

    def __init__(
        self,
        ranks: Ranks,
        config: ModelConfig,
        tier: int,
        pass_size: PassSize,
        arithmetic: Arithmetic = PLAIN,
    ) -> None:
        """Build the network on all ranks. The others run `parallel.worker`."""
        self.ranks = ranks
        self._pass_size = pass_size
        ranks.send_command(BuildNetwork(config.to_hf(), tier, arithmetic.bf16))
        self._model = ShardedModel(config, tier, ranks.mesh, bf16=arithmetic.bf16)
        self._width = ranks.size // ranks.tensor

    @property
    def at_once(self) -> int:
        """Number of sequences that are trained at the same time."""
        return self._pass_size.size * self._width

    @property
    def held(self) -> int:
        """Number of parameters on this rank's device."""
        return self._model.held

    def accumulate(
        self, params: Mapping[str, Tensor], sequences: Tensor, cancelled: threading.Event
    ) -> float:
        """Add the gradient of the mean loss over `sequences` to `grad` of the weights. Return the
        loss.

        If a rank runs out of memory, all ranks begin the share again with smaller passes. Raises
        Cancelled between micro-batches, and OutOfMemory if passes cannot be smaller.
        """
        while self._pass_size.unknown:
            self._fit(params, sequences[:1])
        while (loss := self._share(params, sequences, cancelled)) is None:
            if not self._pass_size.shrink():
                raise OutOfMemory(
                    "one of this member's devices has too little memory for its part of the model, even with one "
                    "sequence per pass",
                    "Choose a higher --matformer-tier, or use more devices",
                )
        return loss

    def _share(
        self, params: Mapping[str, Tensor], sequences: Tensor, cancelled: threading.Event
    ) -> float | None:
        """Train a share with the current pass size. Return None, and add nothing, if a rank ran out
        of memory.
        """
        ranks = self.ranks
        micro = self._pass_size.size
        share = self._begin(params, sequences)
        steps = range(0, -(-len(share) // micro), self._width)
        for first in steps:
            if cancelled.is_set():
                raise Cancelled
            with ranks.turn:
                ranks.send_command(TrainMicroBatches(first))
                self._model.step(share, micro, first)
        with ranks.turn:
            ranks.send_command(Gather(len(steps)))
            losses = ranks.gather_figures(self._model.losses(len(steps)))
            if any_out_of_memory(losses):
                return None
            self._add(params)
        # in the order of the share
        return float(sum(losses[:-1, :: ranks.tensor].flatten().tolist()))

    def _begin(self, params: Mapping[str, Tensor], sequences: Tensor) -> Tensor:
        """Send the weights and the share to all ranks. Return the share."""
        size = self._pass_size
        with self.ranks.turn:
            self.ranks.send_command(BeginShare(tuple(sequences.shape), size.size, size.recompute))
            share = self.ranks.broadcast_sequences(sequences)
            self._model.begin(params, recompute=size.recompute)
        return share

    def _fit(self, params: Mapping[str, Tensor], sequence: Tensor) -> None:
        """Set the pass size to what fits on the rank with the least memory per sequence."""
        share = self._begin(params, sequence)
        with self.ranks.turn:
            self.ranks.send_command(Measure())
            peaks, free = self.ranks.gather_figures(
                self._model.measure(share, self.ranks.reserved)
            ).tolist()
        self._pass_size.settle(
            *min(zip(map(int, peaks), map(int, free), strict=True), key=lambda of: of[1] / of[0])
        )

    def _add(self, params: Mapping[str, Tensor]) -> None:
        for name, whole in self._model.gradients():
            parameter = params[name]
            gradient = whole.to(parameter.device)
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def multi_device_replicas(lead: Leader) -> Callable[..., Replica]:
    """Return a factory with the arguments of `Replica`, for replicas that these ranks train."""
    return functools.partial(MultiDeviceReplica, lead)


class MultiDeviceReplica(Replica):
    """A replica whose gradients all ranks compute."""

    def __init__(self, lead: Leader, *given: Any, **named: Any) -> None:
        """Take the arguments of `Replica`, the schema first, after the leader."""
        schema, _, tier = given[:3]
        result = functools.partial(ShardedFeedback, lead.ranks, schema)
        inner = functools.partial(ShardedInner, lead.ranks, schema, tier)
        super().__init__(*given, **named, result=result, inner=inner)
        self._lead = lead

    @property
    def at_once(self) -> int:
        """Number of sequences that all ranks train at the same time."""
        return self._lead.at_once

    def _backward(self, passes: Passes, sequences: Tensor, cancelled: threading.Event) -> Loss:
        del passes  # the ranks have their own
        try:
            return self._lead.accumulate(self.params, sequences, cancelled)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"this member's first device has too little memory for its part of tier {self.tier} with "
                f"{counted(self._pass_size.size, 'sequence')} at once",
                "Lower --micro-batch-size, pass --activation-checkpointing on, or choose a higher --matformer-tier",
            ) from error
