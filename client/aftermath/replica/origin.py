"""Where replicas come from: the durable checkpoint on disk or on the Hub.

Everything here is synchronous and slow: a member calls it on the replica's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from aftermath.base.allowed_locations import TRUSTING, RunAccess
from aftermath.model.architectures import config_of, is_type_of
from aftermath.model.checkpoint import find, load
from aftermath.model.config import ModelConfig
from aftermath.model.initial_weights import DUMMY_SEED, init_weights
from aftermath.model.json_documents import CheckpointError, Strategy
from aftermath.model.momentum_file import read_momentum, zero_momentum
from aftermath.model.run_checkpoint import load_hf_config, resolve
from aftermath.model.schema import same_model
from aftermath.optim.schema import Schema
from aftermath.replica.options import PLAIN, Arithmetic
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.rules.model import Checkpoint
from aftermath.rules.state import CheckpointKind

_MEASURE_SECONDS = 8.0  # for the passes only; creating the replica is extra
_SPREAD = 0.03


@dataclass(frozen=True)
class Origin:
    """Makes replicas of one tier."""

    schema: Schema
    tier: int
    strategy: Strategy
    device: torch.device
    pass_size: PassSize
    """Pass size of all replicas made here. Later replicas reuse the first one's measurement."""
    stopwatch: Callable[[], float]
    arithmetic: Arithmetic = PLAIN
    make: Callable[..., Replica] = Replica
    """Builds a replica, for example the class `Replica` itself."""
    access: RunAccess = TRUSTING

    def stand_in(self) -> Replica:
        """Return a replica for measurements before the weights are fetched."""
        return self.replica(self._weights_like_new())

    def measure_weight(self, replica: Replica, seq_len: int) -> int:
        """Return this machine's throughput with this tier, in sequences per minute."""
        return replica.measure_weight(seq_len, _MEASURE_SECONDS)

    def warm_up(self, seq_len: int, labels: bool) -> None:
        """Compile what training will run, if configured, before other members wait for this one."""
        if self.arithmetic.compiled:
            self.stand_in().warm_up(seq_len, labels)

    def _weights_like_new(self) -> dict[str, Tensor]:
        """Return random weights that are quick to draw. They only serve to time training."""
        weights = self._blank_weights()
        draws = torch.Generator().manual_seed(0)
        for name, tensor in weights.items():
            _ = (
                tensor.fill_(1.0)
                if "norm" in name
                else tensor.uniform_(-_SPREAD, _SPREAD, generator=draws)
            )
        return weights

    @property
    def config(self) -> ModelConfig:
        return self.schema.state.config

    def durable(self, checkpoint: Checkpoint, *, momentum: bool = True) -> dict[str, Tensor]:
        """Return the tier's weights from the durable checkpoint, or a run's initial ones.

        In a run with outer momentum, its tensors follow. They are zero without `momentum`, or if
        the checkpoint has none. Raises model.json_documents.CheckpointError.
        """
        shapes = self.schema.shared.momentum_shapes(self.tier)
        if checkpoint.kind is CheckpointKind.DUMMY:
            return init_weights(self.config, DUMMY_SEED, self.tier) | zero_momentum(shapes)
        if (
            checkpoint.kind is CheckpointKind.HUB
        ):  # check the claimed config before fetching weights
            self.read_config(checkpoint)
        momentum = momentum and bool(shapes)
        # only the full checkpoint has the momentum
        strategy = "universal" if momentum and self.strategy == "auto" else self.strategy
        directory = resolve(
            checkpoint, tier=self.tier, strategy=strategy, access=self.access, momentum=momentum
        )
        self._check(find(directory, self.tier, strategy).config, checkpoint)
        weights = load(directory, self.tier, strategy)
        if not momentum:
            return weights | zero_momentum(shapes)
        return weights | read_momentum(directory, self.config, shapes)

    def read_config(self, checkpoint: Checkpoint) -> None:
        """Fetch a Hub checkpoint's config.json. Raises CheckpointError if it is another model."""
        document = load_hf_config(checkpoint, access=self.access)
        if not is_type_of(document, self.config):  # before anything is built from the config
            raise _other_model(checkpoint)
        self._check(config_of(document), checkpoint)

    def _check(self, config: ModelConfig, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError for another model. An untrusted member may have named it."""
        if not same_model(config, self.config):
            raise _other_model(checkpoint)

    def blank(self) -> dict[str, Tensor]:
        """Return zeroed tensors of the tier, to be filled level by level."""
        shapes = self.schema.shared.momentum_shapes(self.tier)
        return self._blank_weights() | zero_momentum(shapes)

    def _blank_weights(self) -> dict[str, Tensor]:
        shapes = self.config.parameter_shapes(self.tier)
        return {name: torch.zeros(shape, dtype=torch.float32) for name, shape in shapes.items()}

    def replica(self, weights: dict[str, Tensor]) -> Replica:
        """Return a replica that starts from these weights with an empty optimizer state."""
        return self.make(
            self.schema,
            self.config,
            self.tier,
            weights,
            device=self.device,
            pass_size=self.pass_size,
            stopwatch=self.stopwatch,
            arithmetic=self.arithmetic,
        )


def _other_model(checkpoint: Checkpoint) -> CheckpointError:
    return CheckpointError(
        f"the config.json of {checkpoint.repo} describes another model than the run's",
        "Ask the run's owner to record another checkpoint with aftermath-solana checkpoint",
    )
