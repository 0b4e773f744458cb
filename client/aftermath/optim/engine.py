"""The optimizer of one replica: a private step, a result and an apply, put together as the run's schema says.

Decided
- `apply` is refused while a share is being trained: the parameters are not the shared ones then.
- What is kept of an optimizer is taken over whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from aftermath.base.merkle import Tree
from aftermath.optim.balance import Balances
from aftermath.optim.codec import decode_level
from aftermath.optim.distro import Distro
from aftermath.optim.feedback import ErrorFeedback
from aftermath.optim.format import ResultFormat
from aftermath.optim.gradient import GradientStep
from aftermath.optim.inner import InnerSteps
from aftermath.optim.inner_optimizer import InnerOptimizer, MakeInner
from aftermath.optim.mean import MeanApply
from aftermath.optim.outer_muon import OuterMuon
from aftermath.optim.parts import Apply, Backward, BadState, Measured, PrivateStep, Result
from aftermath.optim.private_blocks import BlockSpan, StateOutline, outline
from aftermath.optim.schema import Schema
from aftermath.optim.sign import SignApply
from aftermath.optim.votes import Votes

T = TypeVar("T")
MakeResult = Callable[[ResultFormat, int, Mapping[str, Tensor], float, Balances], Result]
"""Makes the part that remembers what was not sent, as `ErrorFeedback` does."""
_PRIVATE, _RESULT = "private.", "result."


@dataclass(frozen=True)
class Trained:
    """What one member made of its share of a round."""

    payloads: dict[int, bytes]
    """Encoded result per level it holds."""
    loss: float
    tokens: int
    seconds: float
    encode_seconds: float
    measured: dict[int, Measured] | None = None
    """Per level it holds, if that was asked for."""
    measure_seconds: float = 0.0

    @property
    def tokens_per_sec(self) -> float:
        return self.tokens / max(self.seconds, 1e-6)


class Engine:
    """Trains and changes a replica. `params` are its own fp32 tensors; `stopwatch` gives seconds."""

    def __init__(
        self,
        schema: Schema,
        tier: int,
        params: Mapping[str, Tensor],
        stopwatch: Callable[[], float] = lambda: 0.0,
        result: MakeResult = ErrorFeedback,
        inner: MakeInner = InnerOptimizer,
    ) -> None:
        """Raises SchemaError or SegmentError if these are not the tensors of a tier-`tier` replica."""
        self._params, self._stopwatch, self._training = params, stopwatch, False
        self._levels = range(tier, schema.results.levels)
        self._step, self._result, self._apply = _parts(schema, tier, params, result, inner)

    def train(
        self,
        sequences: Tensor,
        backward: Backward,
        lr: float,
        ahead_lr: float,
        measured: bool = False,
        travelling: bool = False,
    ) -> Trained:
        """Train on sequences int64 [n, seq_len] and encode the result; the parameters stay as they were.

        `ahead_lr` is the learning rate of the step before, and `travelling` says that this replica's result of it is
        still to be applied; `measured` asks for figures, which change nothing. Raises NonFiniteGradient, also for a
        loss, SegmentError for a parameter without a gradient, and what `backward` does to give up; nothing is learnt
        then.
        """
        started = self._stopwatch()
        self._forget_gradients()
        self._training = True
        try:
            made = self._step.make(sequences, backward, lr, ahead_lr, travelling)
            encoding = self._stopwatch()
            payloads = self._result.compress(made)
            encoded = self._stopwatch()
            found = self._result.measure(made) if measured else None
        finally:
            self._training = False
            self._forget_gradients()
        trained, took = (
            (payloads, made.loss, len(sequences) * sequences.shape[-1]),
            (encoding - started, encoded - encoding),
        )
        return Trained(*trained, *took, found, self._stopwatch() - encoded if measured else 0.0)

    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        """Apply one round: per level the votes of the peers whose results the run accepted, in any order.

        Every replica must call it once for every applied round, with the same votes for the levels it holds. Raises
        ValueError, leaving the parameters as they were, for a level not held and for what no run can have accepted.
        """
        if self._training:
            raise RuntimeError("results cannot be applied while a share is trained")
        if strange := sorted(results.keys() - set(self._levels)):
            raise ValueError(f"results for levels {strange}, which are not held")
        self._apply.apply(results, lr)

    def reset(self) -> None:
        """Forget everything learnt from past rounds."""
        self._step.reset()
        self._result.reset()

    def state(self) -> dict[str, Tensor]:
        """What this replica alone knows, as named tensors on the CPU, which are copies.

        With equal parameters `restore` continues from them bit by bit.
        """
        return _joined(self._step.state(), self._result.state())

    def remembered(self) -> dict[str, Tensor]:
        """The same tensors where they are: the next share that is trained changes them, and nothing else does."""
        return _joined(self._step.remembered(), self._result.remembered())

    def tree(self) -> Tree:
        """The tree over the blocks of them, once a share was trained."""
        return Tree([*self._step.digests(), *self._result.digests()])  # in the order of their names

    def block(self, place: BlockSpan) -> bytes:
        """The bytes of a block of them, as they are now."""
        part, dot, name = place.name.partition(".")
        inside = place._replace(name=name)
        return (self._step if part + dot == _PRIVATE else self._result).block(inside)

    def sizes(self) -> dict[str, int]:
        """How many bytes each of them has, once a share was trained."""
        return _joined(self._step.sizes(), self._result.sizes())

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave. Raises BadState, leaving all as it was, unless it fits this replica exactly."""
        parts: dict[str, dict[str, Tensor]] = {_PRIVATE: {}, _RESULT: {}}
        for name, tensor in state.items():
            part, dot, rest = name.partition(".")
            if part + dot not in parts:
                raise BadState(f"an optimizer's state has too much of {name}")
            parts[part + dot][rest] = tensor
        before = self._step.remembered()
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
    """The private state of a tier-`tier` member of a run with this schema. Raises SchemaError."""
    shapes = schema.state.config.parameter_shapes(tier)
    params = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    return outline(Engine(schema, tier, params).sizes())


def _parts(
    schema: Schema, tier: int, params: Mapping[str, Tensor], result: MakeResult, inner: MakeInner
) -> tuple[PrivateStep, Result, Apply]:
    """What an optimizer of that kind is made of."""
    settings, results = schema.optimizer, schema.results
    balances = schema.state.config.balances
    feedback = result(results, tier, params, settings.decay, balances)
    if isinstance(settings, Distro):
        step = GradientStep(params, feedback.go_ahead, settings.clip, balances)
        return step, feedback, SignApply(results, tier, params, settings.weight_decay, balances)
    apply = (OuterMuon if settings.orthogonal_lr else MeanApply)(results, tier, params, settings)

    device = next(iter(params.values())).device

    def ahead(lr: float) -> None:
        sent = feedback.sent()
        apply.apply({level: [decode_level(data, results, level, device)] for level, data in sent.items()}, lr)

    return InnerSteps(params, settings, ahead, balances, inner), feedback, apply
