"""The optimizer of one replica: the private step, compressor and apply step of a schema.

`apply` raises while a share is being trained, because the parameters then differ from the shared
ones. `restore` restores the whole state or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from aftermath.base.merkle import Tree
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.inner_optimizer import InnerOptimizer, MakeInner
from aftermath.optim.interfaces import (
    Apply,
    Backward,
    BadState,
    Compressor,
    Measured,
    PrivateStep,
    PseudoGradient,
)
from aftermath.optim.layout import level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.moe_bias import Balances
from aftermath.optim.moments import kind_of
from aftermath.optim.parts import ReplicaParts, parts_of
from aftermath.optim.result_format import ResultFormat
from aftermath.optim.schema import Schema
from aftermath.optim.state_checks import kind_of_state
from aftermath.optim.state_merkle import StateOutline, outline

T = TypeVar("T")
MakeResult = Callable[[ResultFormat, int, Mapping[str, Tensor], float, Balances], Compressor]
"""Builds the compressor, for example `ErrorFeedback`."""
_PRIVATE = "private."
_RESULT = "result."


@dataclass(frozen=True)
class Trained:
    """One member's result of a round."""

    payloads: dict[int, bytes]
    """Payload per held level."""
    loss: float
    losses: tuple[float, ...]
    """Mean loss of each inner step."""
    tokens: int
    seconds: float
    encode_seconds: float
    measured: dict[int, Measured] | None = None
    """Metrics per held level, if requested."""
    measure_seconds: float = 0.0

    @property
    def tokens_per_sec(self) -> float:
        return self.tokens / max(self.seconds, 1e-6)


class Engine:
    """Trains a replica and applies results. `params` are its fp32 tensors.

    `stopwatch` returns seconds.
    """

    def __init__(
        self,
        schema: Schema,
        tier: int,
        params: Mapping[str, Tensor],
        stopwatch: Callable[[], float] = lambda: 0.0,
        result: MakeResult = ErrorFeedback,
        inner: MakeInner = InnerOptimizer,
        momentum: dict[str, Tensor] | None = None,
    ) -> None:
        """Raise SchemaError or SegmentError unless `params` are a replica of tier `tier`.

        Without `momentum`, the outer momentum is zero.
        """
        self._params = params
        self._stopwatch = stopwatch
        self._training = False
        self._levels = range(tier, schema.results.levels)
        self.momentum = _zero_momentum(schema, tier, params) if momentum is None else momentum
        """The tensors that the apply keeps between rounds, equal on all replicas. Often none."""
        self._step, self._result, self._apply = _parts(
            schema, tier, params, self.momentum, result=result, inner=inner
        )

    def train(
        self,
        sequences: Tensor,
        backward: Backward,
        lr: float,
        ahead_lr: float,
        measured: bool = False,
        travelling: bool = False,
    ) -> Trained:
        """Train on sequences int64 [n, seq_len] and encode the result, with unchanged parameters.

        `ahead_lr` is the learning rate of the previous step. `travelling` is true if the result of
        that step is not applied yet. `measured` adds metrics to the result. Raises
        NonFiniteGradient for a gradient or loss, SegmentError for a parameter without a gradient,
        and what `backward` raises. The replica is then unchanged.
        """
        started = self._stopwatch()
        self._forget_gradients()
        self._training = True
        try:
            gradient = self._step.make(sequences, backward, lr, ahead_lr, travelling)
            encoding = self._stopwatch()
            payloads = self.encode(gradient)
            encoded = self._stopwatch()
            metrics = self._result.measure(gradient) if measured else None
        finally:
            self._training = False
            self._forget_gradients()
        return Trained(
            payloads=payloads,
            loss=gradient.loss,
            losses=gradient.losses,
            tokens=len(sequences) * sequences.shape[-1],
            seconds=encoding - started,
            encode_seconds=encoded - encoding,
            measured=metrics,
            measure_seconds=self._stopwatch() - encoded if measured else 0.0,
        )

    @property
    def private_step(self) -> PrivateStep:
        """Return the step that makes pseudo-gradients."""
        return self._step

    def encode(self, gradient: PseudoGradient) -> dict[int, bytes]:
        """Add a pseudo-gradient of `private_step` to the residual. Return the payload per level."""
        return self._result.compress(gradient)

    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        """Apply one round: per level the votes of the accepted results, in any order.

        Every replica must call it once per applied round, with the same votes for the levels it
        holds. Raises ValueError for a level that is not held and for votes that no run can have
        accepted. The parameters are then unchanged.
        """
        if self._training:
            raise RuntimeError("cannot apply results while a share is being trained")
        if strange := sorted(results.keys() - set(self._levels)):
            raise ValueError(f"this replica does not hold levels {strange} of the results")
        self._apply.apply(results, lr)

    def reset(self) -> None:
        """Reset the private state."""
        self._step.reset()
        self._result.reset()

    def state(self) -> dict[str, Tensor]:
        """Return this replica's private state as named tensors, copied to the CPU.

        With equal parameters `restore` continues from it bit by bit.
        """
        return _joined(self._step.state(), self._result.state())

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state's tensors without a copy. They change only when a share is trained."""
        return _joined(self._step.state_tensors(), self._result.state_tensors())

    def tree(self) -> Tree:
        """Return the Merkle tree over the state's blocks. At least one share must be trained."""
        # in the order of tensor names
        return Tree([*self._step.digests(), *self._result.digests()])

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each state tensor. At least one share must be trained."""
        return _joined(self._step.sizes(), self._result.sizes())

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Raises BadState, and changes nothing, on a mismatch."""
        parts: dict[str, dict[str, Tensor]] = {_PRIVATE: {}, _RESULT: {}}
        for name, tensor in state.items():
            part, dot, rest = name.partition(".")
            if part + dot not in parts:
                raise BadState(f"the optimizer state has an unexpected tensor {name}")
            parts[part + dot][rest] = tensor
        before = self._step.state_tensors()
        self._step.restore(parts[_PRIVATE])
        try:
            self._result.restore(parts[_RESULT])
        except BadState:
            self._step.restore(before)
            raise

    def _forget_gradients(self) -> None:
        for tensor in self._params.values():
            tensor.grad = None


def _joined(private: Mapping[str, T], result: Mapping[str, T]) -> dict[str, T]:
    return {f"{_PRIVATE}{name}": of for name, of in private.items()} | {
        f"{_RESULT}{name}": of for name, of in result.items()
    }


def outline_of(schema: Schema, tier: int) -> StateOutline:
    """Return the outline of a tier-`tier` member's private state. Raises SchemaError."""
    return outline(_sizes_of(schema, tier))


def state_like(schema: Schema, tier: int) -> dict[str, Tensor]:
    """Return tensors without contents like those of a tier-`tier` member's private state."""
    shapes = schema.state.config.parameter_shapes(tier)
    layouts = {
        level: level_layout(schema.results, level) for level in range(tier, schema.results.levels)
    }
    tensors = {}
    for path in _sizes_of(schema, tier):
        part, _, name = path.partition(".")
        if f"{part}." == _PRIVATE:
            key, _, parameter = name.partition("/")
            shape, dtype = kind_of(key, tuple(shapes[parameter]))
        else:
            kind, level, group = name.split(".")
            shape, dtype = kind_of_state(kind, layouts[int(level)].groups[int(group)])
        tensors[path] = torch.empty(shape, dtype=dtype, device="meta")
    return tensors


def _sizes_of(schema: Schema, tier: int) -> dict[str, int]:
    shapes = schema.state.config.parameter_shapes(tier)
    params = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    return Engine(schema, tier, params).sizes()


def _zero_momentum(schema: Schema, tier: int, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return zeroed tensors of the outer momentum, on the device that its apply computes on."""
    if not schema.optimizer.outer_momentum:
        return {}
    from aftermath.optim.outer_momentum import momentum_device

    device = momentum_device(next(iter(params.values())).device)
    return {
        name: torch.zeros(shape, dtype=torch.int64, device=device)
        for name, shape in schema.shared.momentum_shapes(tier).items()
    }


def _parts(
    schema: Schema,
    tier: int,
    params: Mapping[str, Tensor],
    momentum: Mapping[str, Tensor],
    *,
    result: MakeResult,
    inner: MakeInner,
) -> tuple[PrivateStep, Compressor, Apply]:
    """Return the three parts of the schema's optimizer."""
    balances = schema.state.config.balances
    feedback = result(schema.results, tier, params, schema.optimizer.decay, balances)
    parts = parts_of(schema.optimizer)
    replica = ReplicaParts(schema.results, tier, params, balances, inner, momentum)
    apply = parts.apply(replica)
    return parts.step(replica, feedback, apply), feedback, apply
