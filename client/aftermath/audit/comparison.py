"""Compare what a member has committed to with a replay of its share.

Exact checks: the blocks belong to the committed state, the encoder chooses its entries from its
residual, and the payloads encode these entries. The residual and the moments after the share are
compared within bounds. A comparison needs all moments and at least one block of the residual. A
claim just above a bound has no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from aftermath.audit.claim import (
    INDICES,
    MOMENTS,
    RESIDUAL,
    RESULT,
    VALUES,
    Claim,
    KnownState,
    known_state,
    outline_of_state,
)
from aftermath.audit.replay import Replay
from aftermath.optim.blocks import UNUSED
from aftermath.optim.codec import BadPayload, decode_level, encode_groups
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.inner_optimizer import EPSILON
from aftermath.optim.interfaces import BadState, PseudoGradient
from aftermath.optim.layout import Group, LevelLayout, level_layout
from aftermath.optim.moments import SECONDS
from aftermath.optim.result_format import ResultFormat, Transform
from aftermath.optim.schema import Schema
from aftermath.optim.state_checks import check_state
from aftermath.optim.transform import forward
from aftermath.rules.announcements import PassSettings


class Bounds(NamedTuple):
    """Maximum distances of a result that matches its replay."""

    residual: float
    moments: float
    adam_steps: float

    def scaled(self, factor: float) -> Bounds:
        """Return these bounds times `factor`."""
        return Bounds(*(factor * bound for bound in self))


FP32_BOUNDS = Bounds(2e-3, 2e-3, 0.01)
"""The bounds if passes and steps multiply in fp32, for inner optimizers other than Muon."""
# From benchmarks/measured/spread.json (30 inner steps, fp32 passes): the largest honest distance is
# 1.3e-4 (a CPU and an H200), and the smallest of an attack 0.044 (one skipped step). The bound is
# near their geometric mean, 2.4e-3. Honest distances of moments are as large as those of the
# residual (benchmarks/measured/audits.json). By extrapolation, one skipped step of 330 has no
# verdict, and one of 660 matches.
#
# The bounds of AdamW's steps are from tiny models on one CPU (8 and 30 inner steps, vocabularies of
# 64 to 2,048 tokens, even or Zipf). Honest judges use other micro-batches and thread counts. The
# attacker gives the smallest moments chosen signs, within 0.9 of the bound of the moments:
#             largest honest   smallest attack
#   fp32      0.0018           0.074
#   Muon      0.00024          0.45
#   bf16      0.049            0.98             honest in the same passes: 0
#   both      0.11             1.5              honest in the same passes: 0
# Rounding moved one more fp32 share by 0.012, and its moments by 25 bounds: judges abstain there.
MUON_BOUNDS = Bounds(0.01, 0.05, 0.05)
"""The bounds with Muon in fp32, replayed in the same passes on the same kind of device."""
# The orthogonalization of Muon amplifies rounding. In 768 replays of a tiny model's 30 inner steps,
# other micro-batches gave honest distances up to 0.011 (moments: 0.048). In 272, another thread
# count gave up to 0.0041 (0.021). The smallest distance of one skipped step was 0.033.
BF16_BOUNDS = Bounds(0.02, 0.02, 0.2)
"""The bounds with bf16 products, replayed in the same passes on the same kind of device."""
MUON_BF16_BOUNDS = Bounds(0.2, 0.2, 0.3)
"""BF16_BOUNDS with Muon as the inner optimizer."""
# Between bf16 and fp32 an honest distance reaches 0.033 (spread.json), and in bf16 another
# micro-batch size alone reaches 0.0083, with Muon 0.11 (audits.json). On a CPU, two replays in the
# same passes are bit-identical (spread-bf16.json). Two GPUs of one kind were never compared. If
# their kernels add in different orders, expect distances like those between micro-batch sizes. The
# bounds are above those of micro-batch sizes, and below those of half-skipped work.


def bounds_of(passes: PassSettings, schema: Schema) -> Bounds:
    """Return the maximum distances of a result that matches its replay."""
    if schema.optimizer.inner_optimizer == "muon":
        return MUON_BOUNDS if passes.is_fp32 else MUON_BF16_BOUNDS
    return FP32_BOUNDS if passes.is_fp32 else BF16_BOUNDS


MISMATCH_FACTOR = 2.0
"""A claim is false only above this many bounds. Between one and this many, it has no verdict."""
# Two honest machines measure distances that differ by less than one bound. So if one of them
# accuses, no other acquits, and nobody can split a jury with a result at the edge of a bound.


class AuditVerdict(Enum):
    """Whether a claim matches the replay of its share."""

    MATCH = "match"
    MISMATCH = "mismatch"


@dataclass(frozen=True)
class Distances:
    """How far a claimed state is from the replayed one."""

    whole: float
    """Norm of the difference of all compared residual blocks, over the pseudo-gradient's norm in
    them. Both residuals come from the same earlier one, so this is the distance of the
    pseudo-gradients.
    """
    median: float
    """Median over the blocks of each block's own distance."""
    moments: float
    """Norm of the difference of the moments, over the norm of their change in the share.

    The largest over the kinds of moments. 0 without moments.
    """
    adam_steps: float
    """Norm of the difference of the steps that AdamW would make, over the norm of their change in
    the share. 0 without moments.
    """


@dataclass(frozen=True)
class Comparison:
    """The outcome of an audit. `verdict` is None if the claim is just above a bound."""

    verdict: AuditVerdict | None
    reason: str
    """The failed check, with its figure. For a match, the distances and the bound."""
    distances: Distances | None
    """None if the claimed state could not be read."""


def compare(replay: Replay, claim: Claim, bounds: Bounds = FP32_BOUNDS) -> Comparison:
    """Compare a claim with the replay of its share, which began with the same private state.

    Raises ValueError if the claim lacks a block of the moments, or has no whole block of the
    residual with its entries. Then the auditor has not fetched enough.
    """
    false_block = claim.false_block(outline_of_state(replay.state))
    if false_block is not None:
        return _mismatch(
            f"block {false_block} is not part of the private state that the member committed to"
        )
    results = replay.share.schema.results
    state = known_state(replay.state, claim.blocks)
    layouts = {level: level_layout(results, level) for level in replay.payloads}
    audited = _audited_blocks(state, layouts)
    _forget_other_blocks(state, audited)
    try:
        tensors = {
            name.removeprefix(RESULT): tensor
            for name, tensor in state.tensors.items()
            if name.startswith(RESULT)
        }
        check_state(layouts, tensors, results.values.lattice_bits)
    except BadState as error:
        return _mismatch(f"the encoder cannot produce this private state: {error.message}")
    distances = Distances(
        *_residual_distances(replay, state, audited),
        _moments(replay, state),
        _adam_steps(replay, state),
    )

    def fault_beyond(factor: float) -> str | None:
        return (
            _wrong_entries(replay, state, audited, factor)
            or _wrong_payload(replay, claim, state, audited)
            or _wrong_counts(replay, state)
            or _too_far(distances, bounds, factor)
        )

    doubt = fault_beyond(1.0)
    if doubt:
        fault = fault_beyond(MISMATCH_FACTOR)
        if fault:
            return _mismatch(fault, distances)
        return Comparison(None, f"too close to call: {doubt}", distances)
    return Comparison(
        AuditVerdict.MATCH,
        f"the distance of the residual is {distances.whole:.2g} (bound {bounds.residual:.2g}), "
        f"that of the moments {distances.moments:.2g} (bound {bounds.moments:.2g}), "
        f"and that of AdamW's steps {distances.adam_steps:.2g} (bound {bounds.adam_steps:.2g})",
        distances,
    )


def _mismatch(reason: str, distances: Distances | None = None) -> Comparison:
    return Comparison(AuditVerdict.MISMATCH, reason, distances)


AuditedBlocks = dict[int, list[Tensor]]
"""The audited blocks of the residual: per level, bool [blocks] of each group."""


def _audited_blocks(state: KnownState, layouts: Mapping[int, LevelLayout]) -> AuditedBlocks:
    """Return the blocks of the residual that are known with their entries. Raises ValueError."""
    for name in state.tensors:
        if not name.startswith(RESULT) and not state.whole(name):
            raise ValueError(f"an audit needs all moments, but {name} has unknown blocks")
    audited = {
        level: [
            torch.stack(
                [state.rows(f"{kind}{level}.{group}") for kind in (RESIDUAL, INDICES, VALUES)]
            ).all(0)
            for group in range(len(layout.groups))
        ]
        for level, layout in layouts.items()
    }
    if not any(bool(rows.any()) for groups in audited.values() for rows in groups):
        raise ValueError("an audit needs a whole block of the residual with its entries")
    return audited


def _forget_other_blocks(state: KnownState, audited: AuditedBlocks) -> None:
    """Set the residual of other blocks to zero and their entries to unused, in place."""
    # At the end of the fetched bytes, a block's indices may be known but not its values.
    for level, groups in audited.items():
        for number, rows in enumerate(groups):
            for kind, filler in ((RESIDUAL, 0), (INDICES, UNUSED), (VALUES, 0)):
                state.tensors[f"{kind}{level}.{number}"][~rows] = filler


# --- exact checks


def _wrong_entries(
    replay: Replay, state: KnownState, audited: AuditedBlocks, factor: float
) -> str | None:
    """Return a fault if the encoder chooses other entries from the claimed residual.

    Coefficients of a transform may differ by `factor` times the largest rounding error.
    """
    results = replay.share.schema.results
    chosen = None
    if results.transform is Transform.NONE:
        chosen = _chosen(replay, state)
    for level, groups in audited.items():
        for number, rows in enumerate(groups):
            where = f"{level}.{number}"
            residual, indices, values = (
                state.tensors[f"{kind}{where}"][rows] for kind in (RESIDUAL, INDICES, VALUES)
            )
            if chosen is None:
                group = level_layout(results, level).groups[number]
                wrong = _not_strongest(residual, indices, values, group, factor)
            else:
                wrong = (indices != chosen[f"indices.{where}"][rows]).any(1)
                wrong |= (values != chosen[f"values.{where}"][rows]).any(1)
            if count := int(wrong.sum()):
                return (
                    f"level {level}: the entries of {count} of {int(rows.sum())} audited blocks "
                    "differ from what the encoder chooses from the residual"
                )
    return None


def _chosen(replay: Replay, state: KnownState) -> dict[str, Tensor]:
    """Return the entries that the encoder chooses from the claimed residual, by their names."""
    share = replay.share
    shapes = share.config.parameter_shapes(share.tier)
    zeros = {name: torch.zeros(shape) for name, shape in shapes.items()}
    # Without decay and with a zero pseudo-gradient, the encoder only chooses.
    feedback = ErrorFeedback(share.schema.results, share.tier, zeros, decay=1.0)
    feedback.restore(
        {
            name.removeprefix(RESULT): tensor
            for name, tensor in state.tensors.items()
            if name.startswith(RESIDUAL)
        }
    )
    feedback.choose(PseudoGradient(zeros, 1.0, 0.0))
    return feedback.state_tensors()


def _not_strongest(
    residual: Tensor, indices: Tensor, values: Tensor, group: Group, factor: float
) -> Tensor:
    """Return which blocks have entries other than the strongest coefficients, bool [blocks]."""
    # Devices round the transform differently, so coefficients are compared within the largest
    # rounding error: 2^-24 of the block's norm per term of the two products, and as much for the
    # transform's basis.
    coefficients = forward(residual).flatten(1)
    terms = group.height + group.width
    rounding = coefficients.norm(dim=1) * terms * 2.0**-23 * factor
    used = indices != UNUSED
    places = indices.masked_fill(~used, 0)
    differences = (coefficients.gather(1, places) - values).masked_fill_(~used, 0).abs()
    sent = torch.zeros_like(coefficients).scatter_add_(1, places, used.float())
    strongest_unsent = coefficients.masked_fill(sent > 0, 0).abs().amax(1)
    weakest_sent = values.abs().amin(1)  # 0 if an entry is unused
    misordered: Tensor = strongest_unsent > weakest_sent + 2 * rounding
    return misordered.logical_or(differences.amax(1) > rounding)


def _wrong_payload(
    replay: Replay, claim: Claim, state: KnownState, audited: AuditedBlocks
) -> str | None:
    """Return a fault if a payload is not the encoding of the claimed state's entries."""
    results = replay.share.schema.results
    for level, groups in audited.items():
        entries = [
            (state.tensors[f"{INDICES}{level}.{group}"], state.tensors[f"{VALUES}{level}.{group}"])
            for group in range(len(groups))
        ]
        if level not in claim.payloads:
            return f"level {level} has no payload"
        try:
            sent = _votes(claim.payloads[level], results, level, groups)
        except BadPayload as error:
            return f"the payload of level {level} is not valid: {error.message}"
        expected = _votes(encode_groups(results, level, entries), results, level, groups)
        if not all(map(torch.equal, sent, expected)):
            return f"the payload of level {level} does not encode the entries of the private state"
    return None


def _votes(
    payload: bytes, results: ResultFormat, level: int, groups: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return positions and values of a payload's votes in the audited blocks. Raises BadPayload."""
    votes = decode_level(payload, results, level)
    values = votes.multiples() if votes.kind == torch.int64 else votes.values
    # Votes have one encoding, so payloads are equal if their votes are.
    kept = torch.zeros(len(votes.positions), dtype=torch.bool)
    for group, rows in zip(level_layout(results, level).groups, groups, strict=True):
        inside = (votes.positions >= group.base) & (
            votes.positions < group.base + group.blocks * group.block
        )
        kept[inside] = rows[(votes.positions[inside] - group.base) // group.block]
    return votes.positions[kept], values[kept]


def _wrong_counts(replay: Replay, state: KnownState) -> str | None:
    """Return a fault if the optimizer counts another number of steps."""
    for name, tensor in replay.state.items():
        claimed = state.tensors[name]
        if _is_count(name, tensor) and not torch.equal(claimed, tensor):
            return f"{name} is {claimed.item():g}, but {tensor.item():g} in the replay"
    return None


def _is_count(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor counts steps. Counts are the only tensors without dimensions."""
    return not name.startswith(RESULT) and tensor.ndim == 0


# --- distances


def _residual_distances(
    replay: Replay, state: KnownState, audited: AuditedBlocks
) -> tuple[float, float]:
    """Return the distance of all audited blocks of the residual, and the median of the blocks."""
    differences = []
    sizes = []
    for level, groups in audited.items():
        for number, rows in enumerate(groups):
            name = f"{RESIDUAL}{level}.{number}"
            difference = state.tensors[name][rows].double() - replay.state[name][rows].double()
            differences.append(difference.flatten(1).norm(dim=1))
            sizes.append(replay.block_norms[level][number][rows].double())
    difference = torch.cat(differences)
    size = torch.cat(sizes)
    moved = size > 0  # the embedding of an unseen token does not move
    single = difference[moved] / size[moved]
    median = float(single.median()) if len(single) else 0.0
    return _ratio(float(difference.norm()), float(size.norm())), median


def _moments(replay: Replay, state: KnownState) -> float:
    """Return the largest distance of a kind of moments."""
    # Relative to their change, because that is what the share adds: after a share of one step, most
    # of a moment's norm is older. Per kind, because second moments are squares.
    changes: dict[str, list[float]] = {}
    for name, after in replay.state.items():
        if name.startswith(RESULT) or _is_count(name, after):
            continue
        before = replay.share.before.get(name)
        change = after.double() if before is None else after.double() - before.cpu().double()
        difference = state.tensors[name].double() - after.double()
        kind = name.partition("/")[0]
        sums = changes.setdefault(kind, [0.0, 0.0])
        sums[0] += float(difference.norm()) ** 2
        sums[1] += float(change.norm()) ** 2
    distances = [_ratio(math.sqrt(sums[0]), math.sqrt(sums[1])) for sums in changes.values()]
    # max() would ignore a NaN
    return math.inf if any(map(math.isnan, distances)) else max(distances, default=0.0)


def _adam_steps(replay: Replay, state: KnownState) -> float:
    """Return the distance of the steps that AdamW would make from the moments."""
    # AdamW divides each first moment by the root of its second moment. So it moves weights with
    # small gradients as far as others, but their moments hardly count in `_moments`.
    difference = 0.0
    change = 0.0
    for name, after in replay.state.items():
        kind, _, parameter = name.removeprefix(MOMENTS).partition("/")
        if kind not in SECONDS:
            continue
        second = f"{MOMENTS}{SECONDS[kind]}/{parameter}"
        step = _adam_step(after, replay.state[second])
        claimed = _adam_step(state.tensors[name], state.tensors[second])
        difference += float((claimed - step).norm()) ** 2
        if name in replay.share.before:
            step -= _adam_step(replay.share.before[name], replay.share.before[second])
        change += float(step.norm()) ** 2
    distance = _ratio(math.sqrt(difference), math.sqrt(change))
    return math.inf if math.isnan(distance) else distance


def _adam_step(first: Tensor, second: Tensor) -> Tensor:
    """Return AdamW's step in learning rates, without bias correction: float64 on the CPU."""
    return first.cpu().double() / (second.cpu().double().sqrt() + EPSILON)


def _ratio(difference: float, size: float) -> float:
    """Return a distance. A share that changes nothing allows no difference."""
    if difference == 0:
        return 0.0
    return difference / size if size else math.inf


def _too_far(distances: Distances, bounds: Bounds, factor: float) -> str | None:
    """Return a fault if a distance is above `factor` bounds, or not a number."""
    checks = {
        "the distance of the residual": (distances.whole, bounds.residual),
        "the median distance of the residual's blocks": (distances.median, bounds.residual),
        "the distance of the moments": (distances.moments, bounds.moments),
        "the distance of AdamW's steps": (distances.adam_steps, bounds.adam_steps),
    }
    times = "" if factor == 1 else f"{factor:g} times "
    for name, (distance, bound) in checks.items():
        if not distance <= factor * bound:
            return f"{name} is {distance:.2g}, above {times}the bound of {bound:.2g}"
    return None
