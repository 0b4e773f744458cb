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

from aftermath.optim.interfaces import Loss
from aftermath.optim.schema import Schema
from aftermath.parallel.sharded import ShardedModel
from aftermath.parallel.sharded_feedback import ShardedFeedback
from aftermath.parallel.sharded_inner import ShardedInner
from aftermath.replica.passes import Passes
from aftermath.replica.replica import Cancelled, Replica, pass_settings
from aftermath.rules.announcements import PassSettings
from aftermath.rules.optimizer import Optimizer


class MultiDeviceReplica(Replica):
    """A replica whose gradients all ranks compute."""

    def __init__(
        self, network: ShardedModel, schema: Schema, *arguments: Any, **options: Any
    ) -> None:
        """Take the arguments of `Replica` after the network, which several replicas share."""
        _, tier = arguments[:2]
        schema_json = schema.to_json()

        def feedback(*_: Any) -> ShardedFeedback:
            return network.ranks.build(ShardedFeedback, schema_json, tier)

        def inner(params: Mapping[str, Tensor], _: Optimizer) -> ShardedInner:
            return network.ranks.build(ShardedInner, schema_json, tier, params=params)

        self._network = network
        super().__init__(schema, *arguments, **options, result=feedback, inner=inner)

    @property
    def at_once(self) -> int:
        """Return the number of sequences that all ranks train at the same time."""
        return self._pass_size.size * self._network.micro_batches_at_once

    @property
    def pass_settings(self) -> PassSettings:
        """Return what the passes of all ranks compute with."""
        # Judges replay on one device, which adds gradients in another order.
        return pass_settings(
            self.schema,
            self._pass_size.size,
            self._network.device,
            bf16=self._network.bf16,
            repeatable=False,
        )

    @property
    def can_be_judged(self) -> bool:
        """Return whether other machines can repeat shares of this replica."""
        return self.pass_settings.can_be_judged

    def _backward(self, passes: Passes, sequences: Tensor, cancelled: threading.Event) -> Loss:
        """Train a share on all ranks with passes of a fixed size. Raises Cancelled between
        micro-batches.
        """
        del passes  # the ranks have their own
        while self._pass_size.unknown:
            self._fit_on_all(sequences[:1])
        self._begin(sequences)
        micro_batches = -(-len(sequences) // self._pass_size.size)
        for first in range(0, micro_batches, self._network.micro_batches_at_once):
            if cancelled.is_set():
                raise Cancelled
            self._network.step(first)
        return self._network.finish(params=self.params)

    def _fit_on_all(self, sequence: Tensor) -> None:
        """Set the pass size to what fits on the rank with the least memory per sequence.

        The unknown pass size counts as one sequence.
        """
        self._begin(sequence)
        peaks, free = self._network.measure()
        tightest = min(range(len(free)), key=lambda rank: free[rank] / peaks[rank])
        self._pass_size.settle(int(peaks[tightest]), int(free[tightest]))

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
