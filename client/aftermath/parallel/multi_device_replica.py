"""A replica that all ranks of a member train.

The first rank holds the shared weights in host memory and computes the exact apply on its CPU. Each
rank holds its part of the network while a share is trained, and always its part of the error
feedback and of the inner moments. For each gradient, weights go out and gradients come back.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from aftermath.base.text import counted
from aftermath.optim.interfaces import Loss
from aftermath.optim.schema import Schema
from aftermath.parallel.sharded import ShardedModel
from aftermath.parallel.sharded_feedback import ShardedFeedback
from aftermath.parallel.sharded_inner import ShardedInner
from aftermath.replica.memory import is_out_of_memory
from aftermath.replica.pass_size import OutOfMemory
from aftermath.replica.passes import Passes
from aftermath.replica.replica import Cancelled, Replica
from aftermath.rules.optimizer import Optimizer


class MultiDeviceReplica(Replica):
    """A replica whose gradients all ranks compute."""

    def __init__(self, network: ShardedModel, schema: Schema, *given: Any, **named: Any) -> None:
        """Take the arguments of `Replica` after the network, which several replicas share."""
        _, tier = given[:2]
        schema_json = schema.to_json()

        def feedback(*_: Any) -> ShardedFeedback:
            return network.ranks.build(ShardedFeedback, schema_json, tier)

        def inner(params: Mapping[str, Tensor], _: Optimizer) -> ShardedInner:
            return network.ranks.build(ShardedInner, schema_json, tier, params=params)

        self._network = network
        super().__init__(schema, *given, **named, result=feedback, inner=inner)

    @property
    def at_once(self) -> int:
        """Number of sequences that all ranks train at the same time."""
        return self._pass_size.size * self._network.width

    def _backward(self, passes: Passes, sequences: Tensor, cancelled: threading.Event) -> Loss:
        """Call `accumulate` on all ranks. If one runs out of memory, begin the share again with
        smaller passes.
        """
        del passes  # the ranks have their own
        try:
            while self._pass_size.unknown:
                self._fit_on_all(sequences[:1])
            while (loss := self._share(sequences, cancelled)) is None:
                if not self._pass_size.shrink():
                    raise OutOfMemory(
                        "one of this member's devices has too little memory for its part of the model with one "
                        "sequence per pass",
                        "Choose a smaller model (a higher --matformer-tier), or use more devices",
                    )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"this member's first device has too little memory for its part of tier {self.tier} with "
                f"{counted(self._pass_size.size, 'sequence')} at once",
                "Lower --micro-batch-size, pass --activation-checkpointing on, or choose a higher --matformer-tier",
            ) from error
        return loss

    def _share(self, sequences: Tensor, cancelled: threading.Event) -> float | None:
        """Train a share with the current pass size. Return None, and add nothing, if a rank ran out
        of memory. Raises Cancelled between micro-batches.
        """
        self._begin(sequences)
        steps = range(0, -(-len(sequences) // self._pass_size.size), self._network.width)
        for first in steps:
            if cancelled.is_set():
                raise Cancelled
            self._network.step(first)
        return self._network.finish(len(steps), params=self.params)

    def _fit_on_all(self, sequence: Tensor) -> None:
        """Set the pass size to what fits on the rank with the least memory per sequence.

        The unknown pass size counts as one sequence.
        """
        self._begin(sequence)
        peaks, free = self._network.measure()
        self._pass_size.settle(
            *min(zip(map(int, peaks), map(int, free), strict=True), key=lambda of: of[1] / of[0])
        )

    def _begin(self, sequences: Tensor) -> None:
        """Send the share and the weights to all ranks."""
        size = self._pass_size
        self._network.begin(
            tuple(sequences.shape),
            size.size,
            size.recompute,
            sequences=sequences,
            weights=self.params,
        )
