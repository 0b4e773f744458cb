"""Ideas of training methods that a run has no setting for, as replacements of client code.

`with_idea` replaces attributes of the client within a context. Replicas are bit-identical after an
apply, as tests show, so one replica applies here and the others copy it. Floating point suffices
here; an idea that wins must be built exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from aftermath.lab.multi_replica import MultiReplicaTrainer, Results
from aftermath.model.levels import Segment, is_table, prefix
from aftermath.model.segments import view
from aftermath.optim import blocks, compiled_proof, sparseloco_apply
from aftermath.optim.blocks import Blocks
from aftermath.optim.codec import decode_level
from aftermath.optim.distro_step import GradientStep
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.inner_steps import InnerSteps
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.lattice import LARGEST, SMALLEST, quantise
from aftermath.optim.layout import Group, LevelLayout, Part, level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.outer_muon import OuterMuon
from aftermath.optim.sparseloco_apply import MeanApply
from aftermath.optim.transform import cells, inverse
from aftermath.replica.passes import Passes
from aftermath.replica.replica import Replica
from aftermath.rules.sparseloco import SparseLoCo

_ALTERNATIONS = 3
"""Number of alternating steps to find a matrix's largest singular vectors. More hardly change the
result.
"""


@contextmanager
def instead(owner: object, name: str, new: object) -> Iterator[None]:
    """Replace an attribute within the context."""
    plain = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, plain)


@contextmanager
def with_idea(idea: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[None]:
    """Apply an idea within the context. Raises KeyError for an unknown idea."""
    with ExitStack() as stack:
        stack.enter_context(
            instead(compiled_proof, "unfit", lambda: "ideas replace the compiled operations")
        )
        stack.enter_context(instead(MultiReplicaTrainer, "_apply", _applied_once))
        for name, value in idea.items():
            for replacement in IDEAS[name](value, settings):
                stack.enter_context(instead(*replacement))
        yield


Replacement = tuple[object, str, object]
"""An object, the attribute to replace, and its replacement."""


def _applied_once(self: MultiReplicaTrainer, step: int, results: Results) -> None:
    """Apply like `MultiReplicaTrainer._apply`, with one member's apply for all."""
    votes = {
        level: [decode_level(payload, self._schema.results, level) for payload in payloads]
        for level, payloads in results.items()
    }
    whole = min(self.replicas, key=lambda replica: replica.tier)
    whole.apply({level: votes[level] for level in whole.levels}, self._rate(step))
    _copy(self, whole)


@torch.no_grad()
def _copy(together: MultiReplicaTrainer, whole: Replica) -> None:
    for replica in together.replicas:
        for name, tensor in replica.params.items():
            tensor.copy_(whole.params[name][prefix(tensor.shape)])


def _apply_of(settings: Mapping[str, Any]) -> type[MeanApply]:
    return OuterMuon if settings.get("orthogonal_lr") else MeanApply


Move = Callable[[MeanApply, Tensor, Part, Tensor, float], None]


def momentum(beta: float, settings: Mapping[str, Any]) -> list[Replacement]:
    """Apply Nesterov momentum to the mean u: m <- beta m + (1 - beta) u; the update is (1 - beta) u
    + beta m.
    """
    owner = _apply_of(settings)
    plain: Move = owner._move

    def move(self: MeanApply, tensor: Tensor, part: Part, blocks: Tensor, lr: float) -> None:
        kept: dict[Segment, Tensor] = self.__dict__.setdefault("_idea", {})
        own = kept.setdefault(part.segment, torch.zeros_like(blocks)).lerp_(blocks, 1 - beta)
        plain(self, tensor, part, blocks.lerp(own, beta), lr)

    return [(owner, "_move", move)]


def level_rates(rates: Sequence[float], settings: Mapping[str, Any]) -> list[Replacement]:
    """Multiply the update by a factor for each level."""
    owner = _apply_of(settings)
    plain: Move = owner._move

    def move(self: MeanApply, tensor: Tensor, part: Part, blocks: Tensor, lr: float) -> None:
        factor = rates[part.segment.level]
        plain(self, tensor, part, blocks * factor, lr * factor)
        if isinstance(self, OuterMuon):  # tensors batched by shape would get the wrong factor
            self._turn(lr * factor)

    return [(owner, "_move", move)]


def weights(of_members: Sequence[int], settings: Mapping[str, Any]) -> list[Replacement]:
    """Count each member's result that many times in the mean."""
    tiers = [int(tier) for tier in settings["tiers"].split(",")]
    plain = sparseloco_apply.changes

    def changes(
        votes: Sequence[Votes], level: int, agreed: SparseLoCo, most: int
    ) -> tuple[Tensor, Tensor]:
        holders = [weight for weight, tier in zip(of_members, tiers, strict=True) if tier <= level]
        counted = [vote for vote, weight in zip(votes, holders, strict=True) for _ in range(weight)]
        return plain(counted, level, agreed, most)

    return [(sparseloco_apply, "changes", changes)]


def topk_by_level(kept: Sequence[int], settings: Mapping[str, Any]) -> list[Replacement]:
    """Set how many values per block a result keeps, by level."""
    del settings
    plain = vars(blocks)["cut"]

    def cut(segments: Sequence[Segment], **said: Any) -> tuple[Blocks, ...]:
        return tuple(
            replace(one, topk=min(kept[one.segment.level], one.size))
            for one in plain(segments, **said)
        )

    return [(blocks, "cut", cut)]


def whole_forward(wanted: bool, settings: Mapping[str, Any]) -> list[Replacement]:
    """Run the whole model in small members, but train only their slice (backward masking).

    The forward pass includes all hidden units.
    """
    del wanted, settings
    plain = Replica._backward
    wholes: dict[int, Replica] = {}

    def backward(self: Replica, passes: Passes, sequences: Tensor, cancelled: Any) -> float:
        if self.tier == 0:
            wholes[id(self.schema)] = self
            return float(plain(self, passes, sequences, cancelled))
        # the first member has tier 0 and has restored its shared weights
        whole = wholes[id(self.schema)]
        shared = {name: tensor.detach().clone() for name, tensor in whole.params.items()}
        with torch.no_grad():
            for name, tensor in self.params.items():
                whole.params[name][prefix(tensor.shape)] = tensor
        loss = plain(whole, whole.passes, sequences, cancelled)
        with torch.no_grad():
            for name, tensor in whole.params.items():
                if name in self.params:
                    assert tensor.grad is not None
                    self.params[name].grad = tensor.grad[prefix(self.params[name].shape)].clone()
                tensor.copy_(shared[name])
        whole.model.zero_grad(set_to_none=True)
        return float(loss)

    return [(Replica, "_backward", backward)]


def as_smaller(tiers: Sequence[int], settings: Mapping[str, Any]) -> list[Replacement]:
    """Train a large member as the given tier at each inner step: it runs only that tier's slice."""
    del settings
    plain = Replica._backward
    members: dict[int, Replica] = {}
    done = 0

    def together(self: MultiReplicaTrainer, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        members.update({replica.tier: replica for replica in self.replicas})

    def backward(self: Replica, passes: Passes, sequences: Tensor, cancelled: Any) -> float:
        nonlocal done
        tier = 0
        if self.tier == 0:
            tier, done = tiers[done % len(tiers)], done + 1
        if not tier:
            return float(plain(self, passes, sequences, cancelled))
        small = members[tier]
        shared = {name: tensor.detach().clone() for name, tensor in small.params.items()}
        with torch.no_grad():
            for name, tensor in small.params.items():
                tensor.copy_(self.params[name][prefix(tensor.shape)])
        loss = plain(small, small.passes, sequences, cancelled)
        with torch.no_grad():
            for name, tensor in self.params.items():
                tensor.grad = torch.zeros_like(tensor)
                own = small.params[name]
                assert own.grad is not None
                tensor.grad[prefix(own.shape)] = own.grad
                own.copy_(shared[name])
        small.model.zero_grad(set_to_none=True)
        return float(loss)

    begin = vars(MultiReplicaTrainer)["__init__"]
    return [(MultiReplicaTrainer, "__init__", together), (Replica, "_backward", backward)]


def rms(wanted: bool, settings: Mapping[str, Any]) -> list[Replacement]:
    """Scale DisTrO's gradients to a root mean square of 1 in every tensor."""
    del wanted, settings
    plain = GradientStep.make

    def make(self: GradientStep, *given: Any) -> PseudoGradient:
        made = plain(self, *given)
        even = {
            name: tensor / tensor.square().mean().sqrt().clamp(min=1e-12)
            for name, tensor in made.tensors.items()
        }
        return PseudoGradient(even, made.factor, made.loss)

    return [(GradientStep, "make", make)]


def dct(wanted: bool, settings: Mapping[str, Any]) -> list[Replacement]:
    """Send the strongest DCT coefficients of a block in SparseLoCo's results, as DisTrO does,
    instead of values.
    """
    del wanted
    owner = _apply_of(settings)
    begin = vars(ErrorFeedback)["__init__"]
    plain = owner._move

    def transformed(self: ErrorFeedback, *given: Any) -> None:
        begin(self, *given)
        self._transformed = True

    def move(self: MeanApply, tensor: Tensor, part: Part, blocks: Tensor, lr: float) -> None:
        plain(self, tensor, part, inverse(blocks), lr)

    return [(ErrorFeedback, "__init__", transformed), (owner, "_move", move)]


def uncut(wanted: bool, settings: Mapping[str, Any]) -> list[Replacement]:
    """Do not limit values: DCT coefficients can exceed the limit for plain values."""
    del wanted, settings
    return [(sparseloco_apply, "most_of", lambda *_: int(LARGEST))]


def step_of(batch: int, settings: Mapping[str, Any]) -> list[Replacement]:
    """Take inner steps of a fixed number of sequences, so a smaller share has fewer of them."""
    del settings
    plain = vars(InnerSteps)["make"]

    def make(self: InnerSteps, sequences: Tensor, *given: Any) -> Any:
        agreed = self._settings
        assert isinstance(agreed, SparseLoCo)
        self._settings = replace(agreed, inner_steps=max(1, len(sequences) // batch))
        try:
            return plain(self, sequences, *given)
        finally:
            self._settings = agreed

    return [(InnerSteps, "make", make)]


def forget(rounds: int, settings: Mapping[str, Any]) -> list[Replacement]:
    """Reset moments and residuals every `rounds` rounds."""
    del settings
    plain = vars(InnerSteps)["make"]
    made = vars(ErrorFeedback)["compress"]

    def due(self: InnerSteps | ErrorFeedback) -> bool:
        done = self.__dict__.setdefault("_idea_rounds", 0)
        self.__dict__["_idea_rounds"] = done + 1
        return bool(done and done % rounds == 0)

    def make(self: InnerSteps, *given: Any) -> PseudoGradient:
        if due(self):
            self.reset()
        found: PseudoGradient = plain(self, *given)
        return found

    def compress(self: ErrorFeedback, pseudo: PseudoGradient) -> dict[int, bytes]:
        if due(self):
            self.reset()
        found: dict[int, bytes] = made(self, pseudo)
        return found

    return [(InnerSteps, "make", make), (ErrorFeedback, "compress", compress)]


# --- results of low rank


def low_rank(rank: int, settings: Mapping[str, Any]) -> list[Replacement]:
    """Send each block of a hidden matrix as a product of two low-rank matrices with 2 bits per
    value.

    Tables and vectors are sent as without the idea. Members pass the product, because no format has
    room for the two factors.
    """
    bits = int(settings.get("value_bits", "2"))

    def compress(self: ErrorFeedback, made: PseudoGradient) -> dict[int, list[Tensor]]:
        sent: dict[int, list[Tensor]] = self.__dict__.setdefault("_idea", {})
        with torch.no_grad():
            for level, groups in sent.items():
                for residual, own in zip(self._residuals[level], groups, strict=True):
                    residual.sub_(own)
            self._previous = {}
            self._decay()
            for part, residual in self.residual():
                for number, place in cells(view(made.tensors, part.segment), residual, part.blocks):
                    place.add_(number, alpha=made.factor)
            for level, layout in self._layouts.items():
                sent[level] = [
                    _of_rank(residual, rank, bits)
                    if _is_hidden(layout, index)
                    else _dense(self, group, residual)
                    for index, (group, residual) in enumerate(
                        zip(layout.groups, self._residuals[level], strict=True)
                    )
                ]
        return sent

    def apply(
        self: MultiReplicaTrainer, step: int, results: Mapping[int, Sequence[list[Tensor]]]
    ) -> None:
        whole = min(self.replicas, key=lambda replica: replica.tier)
        rate = self._rate(step)
        made = whole.optimizer._apply
        assert isinstance(made, MeanApply)
        most = sparseloco_apply.most_of(made._settings, rate) * SMALLEST
        with torch.no_grad():
            for level, members in results.items():
                for part in level_layout(self._schema.results, level).parts:
                    mean = sum(own[part.group].clamp(-most, most) for own in members) / len(members)
                    assert isinstance(mean, Tensor)
                    made._move(
                        view(whole.params, part.segment),
                        part,
                        part.of(mean * made._settings.outer_lr),
                        rate,
                    )
            if isinstance(made, OuterMuon):
                made._turn(rate)
        _copy(self, whole)

    return [(ErrorFeedback, "compress", compress), (MultiReplicaTrainer, "_apply", apply)]


def _is_hidden(layout: LevelLayout, group: int) -> bool:
    """Return whether a group's blocks belong to hidden matrices. None of them shares a group with a
    table here.
    """
    return layout.groups[group].height > 1 and not any(
        is_table(part.segment.name) for part in layout.parts if part.group == group
    )


def _dense(feedback: ErrorFeedback, group: Group, residual: Tensor) -> Tensor:
    indices, values = feedback._chosen(residual, group.topk)
    sent = torch.zeros_like(residual).flatten(1)
    sent.scatter_add_(1, indices.masked_fill(values == 0, 0), values)
    return sent.view_as(residual)


def _of_rank(blocks: Tensor, rank: int, bits: int) -> Tensor:
    """Return the product [n, h, w] of two matrices with `rank` columns that alternation finds
    nearest to the blocks. Both factors are on the lattice.
    """
    right = torch.randn(
        blocks.shape[0], blocks.shape[2], rank, generator=torch.Generator().manual_seed(0)
    )
    for _ in range(_ALTERNATIONS):
        left = torch.linalg.qr(blocks @ right).Q
        right = blocks.mT @ left
    left = _on_lattice(left, bits)
    gram = left.mT @ left + 1e-6 * torch.eye(rank)
    return left @ _on_lattice(blocks.mT @ left @ torch.linalg.inv(gram), bits).mT


def _on_lattice(factor: Tensor, bits: int) -> Tensor:
    columns = factor.mT.flatten(0, 1)
    return quantise(columns.contiguous(), bits).view(factor.shape[0], factor.shape[2], -1).mT


IDEAS: dict[str, Callable[[Any, Mapping[str, Any]], list[Replacement]]] = {
    "momentum": momentum,
    "level_rates": level_rates,
    "weights": weights,
    "topk_by_level": topk_by_level,
    "whole_forward": whole_forward,
    "as_smaller": as_smaller,
    "rms": rms,
    "dct": dct,
    "uncut": uncut,
    "step_of": step_of,
    "forget": forget,
    "low_rank": low_rank,
}
"""The ideas by their name in an arm's table. Each takes its value and the settings of
`train-local`.
"""
