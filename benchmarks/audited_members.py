"""Members of tiny runs for audits: honest ones, and attackers that claim work they have not done.

`benchmarks/audits.py` counts what audits find out about them. Tests use them too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aftermath.audit.claim import RESULT, Claim, claim_of
from aftermath.audit.replay import AuditedShare, Replay, replay
from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.optim.codec import decode_level
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.schema import Schema, build_schema
from aftermath.replica.options import PLAIN, Arithmetic
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica, accumulate
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo

CPU = torch.device("cpu")
MODEL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}
INNER_STEPS = 8
PER_STEP = 4  # sequences
TOKENS = 16
_BLOCKS: dict[str, int] = {"topk": 4, "topk_embeddings": 4, "chunk": 8}
OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": SparseLoCo(inner_steps=INNER_STEPS, **_BLOCKS),  # type: ignore[arg-type]
    "muon": SparseLoCo(inner_steps=INNER_STEPS, inner_optimizer="muon", **_BLOCKS),  # type: ignore[arg-type]
    "distro": Distro(**_BLOCKS),  # type: ignore[arg-type]
}
"""SparseLoCo by its inner optimizer, and DisTrO."""
FRACTION = 0.05
"""Size of what an attacker adds, relative to the norm of what it adds to."""
LARGEST_STEP = 1.16
"""The largest ratio of a first moment to the root of its second moment, with betas 0.9 and 0.95."""


@dataclass(frozen=True)
class TrainedShare:
    """An honest member's share and its result."""

    share: AuditedShare
    payloads: Mapping[int, bytes]
    state: Mapping[str, Tensor]
    """The private state after the share."""
    earlier: TrainedShare | None
    """The previous round's share of the same member."""
    arithmetic: Arithmetic = PLAIN
    """The arithmetic of the member's passes."""


def honest_shares(
    optimizer: Optimizer,
    rounds: int,
    *,
    seed: int = 0,
    overlap: int = 0,
    steps: int = INNER_STEPS,
    tokens: int = TOKENS,
    tiers: Sequence[int] = (0, 1),
    model: Mapping[str, Any] = MODEL,
    arithmetic: Arithmetic = PLAIN,
) -> Iterator[TrainedShare]:
    """Train a run of members of these tiers. Yield each member's share of each round.

    A share has the sequences of `steps` inner steps, of `tokens` each. DisTrO trains them in one
    step.
    """
    config = config_of(model)
    schema = build_schema(config.to_hf(), 2, optimizer)
    members = [_member(schema, tier, seed, arithmetic) for tier in tiers]
    draws = torch.Generator().manual_seed(seed)
    rate = optimizer.usual_rate
    last: list[TrainedShare | None] = [None for _ in tiers]
    under_way: list[list[Mapping[int, bytes]]] = []
    for number in range(rounds):
        trained: list[TrainedShare] = []
        for place, member in enumerate(members):
            share = AuditedShare(
                schema=schema,
                config=config,
                tier=member.tier,
                shared=_copies(member.shared),
                before=member.optimizer.state() if number else {},
                sequences=_sequences(draws, steps * PER_STEP, tokens).remainder(config.vocab_size),
                lr=rate,
                ahead_lr=rate,
                peak_lr=rate,
                travelling=bool(overlap and number),
            )
            payloads = train(member, share)
            trained.append(
                TrainedShare(share, payloads, member.optimizer.state(), last[place], arithmetic)
            )
        last = [*trained]
        yield from trained
        under_way.append([result.payloads for result in trained])
        if len(under_way) > overlap:
            results = under_way.pop(0)
            for member in members:
                _apply(member, results, rate)


def train(member: Replica, share: AuditedShare) -> dict[int, bytes]:
    """Train a share as a member does. Return the payloads."""
    return member.train(
        share.sequences,
        share.lr,
        share.ahead_lr,
        threading.Event(),
        travelling=share.travelling,
    ).payloads


def _member(schema: Schema, tier: int, seed: int, arithmetic: Arithmetic) -> Replica:
    config = schema.state.config
    return Replica(
        schema,
        config,
        tier,
        init_weights(config, seed, tier),
        device=CPU,
        pass_size=PassSize(PER_STEP, "off"),
        stopwatch=lambda: 0.0,
        arithmetic=arithmetic,
    )


def member_with(share: AuditedShare, arithmetic: Arithmetic = PLAIN) -> Replica:
    """Return the member that is about to train a share."""
    member = _member(share.schema, share.tier, 0, arithmetic)
    for name, tensor in member.shared.items():
        tensor.data.copy_(share.shared[name])
    if share.before:
        member.optimizer.restore(share.before)
    return member


def _sequences(draws: torch.Generator, count: int, tokens: int) -> Tensor:
    """Return sequences that a model can learn: each token is the last one plus a small number."""
    return torch.randint(1, 4, (count, tokens), generator=draws).cumsum(1)


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _apply(member: Replica, results: list[Mapping[int, bytes]], rate: float) -> None:
    votes = {
        level: [
            decode_level(own[level], member.schema.results, level)
            for own in results
            if level in own
        ]
        for level in member.levels
    }
    member.apply(votes, rate)


# --- attackers. Each returns the claim for a share that another member audits.


def replayed(
    share: AuditedShare, micro_batch: int = PER_STEP, arithmetic: Arithmetic = PLAIN
) -> Replay:
    """Return the replay of a share whose gradients are finite. By default its passes are those of
    the member.
    """
    found = replay(share, device=CPU, micro_batch=micro_batch, arithmetic=arithmetic)
    assert isinstance(found, Replay)
    return found


def _claim_for(trained: TrainedShare, instead: AuditedShare) -> Claim:
    """Return the claim of a member that trained `instead` of its own share.

    It counts as many steps as an honest member.
    """
    found = replayed(instead, arithmetic=trained.arithmetic)
    counts = {name: tensor for name, tensor in trained.state.items() if tensor.ndim == 0}
    return claim_of(found.payloads, {**found.state, **counts})


def skip_steps(trained: TrainedShare, skipped: int) -> Claim:
    """Leave out the last inner steps, or as many sequences with DisTrO."""
    share = trained.share
    steps = len(share.sequences) // PER_STEP - skipped
    optimizer = share.schema.optimizer
    if isinstance(optimizer, SparseLoCo):
        optimizer = replace(optimizer, inner_steps=steps)
    return _claim_for(
        trained,
        replace(
            share,
            schema=Schema(share.schema.state, optimizer),
            sequences=share.sequences[: steps * PER_STEP],
        ),
    )


def train_stale_weights(trained: TrainedShare) -> Claim:
    """Train at the weights of the round before."""
    return _claim_for(trained, replace(trained.share, shared=_earlier(trained).share.shared))


def train_other_sequences(trained: TrainedShare) -> Claim:
    """Train the sequences of the round before."""
    sequences = _earlier(trained).share.sequences
    return _claim_for(trained, replace(trained.share, sequences=sequences))


def add_direction(trained: TrainedShare) -> Claim:
    """Add a fixed direction to the pseudo-gradient, of FRACTION of its norm."""
    share = trained.share
    member = member_with(share, trained.arithmetic)

    def backward(part: Tensor) -> float:
        return accumulate(member.passes, part, PER_STEP, threading.Event())

    made = member.optimizer.private_step.make(
        share.sequences, backward, share.lr, share.ahead_lr, share.travelling
    )
    draws = torch.Generator().manual_seed(5)
    added = {}
    for name, tensor in sorted(made.tensors.items()):
        added[name] = tensor + _direction(tensor, draws)
    payloads = member.optimizer.encode(PseudoGradient(added, made.factor, made.loss))
    return claim_of(payloads, member.optimizer.state())


def _direction(tensor: Tensor, draws: torch.Generator) -> Tensor:
    """Return noise of FRACTION of a tensor's norm."""
    noise = torch.randn(tensor.shape, generator=draws)
    return noise.mul_(FRACTION * float(tensor.norm()) / float(noise.norm()))


def change_moments(trained: TrainedShare) -> Claim:
    """Add noise to the moments after the share, of FRACTION of their norm."""
    draws = torch.Generator().manual_seed(6)
    changed = {
        name: tensor
        if name.startswith(RESULT) or tensor.ndim == 0
        else tensor + _direction(tensor, draws)
        for name, tensor in sorted(trained.state.items())
    }
    return claim_of(trained.payloads, changed)


def change_small_moments(trained: TrainedShare, distance: float) -> Claim:
    """Choose the signs of AdamW's next steps for the weights with the smallest second moments.

    Change as many weights as the distance `distance` of the moments allows.
    """
    pairs = [
        (name, name.replace(first, second))
        for first, second in (("exp_avg/", "exp_avg_sq/"), ("first/", "second/"))
        for name in sorted(trained.state)
        if name.startswith(f"private.{first}")
    ]
    firsts = torch.cat([trained.state[first].flatten() for first, _ in pairs])
    before = torch.cat([trained.share.before[first].flatten() for first, _ in pairs])
    roots = torch.cat([trained.state[second].flatten() for _, second in pairs]).sqrt()
    draws = torch.Generator().manual_seed(7)
    wanted = LARGEST_STEP * roots * torch.randn(firsts.shape, generator=draws).sign()
    costs = (wanted - firsts).square()
    cheapest = costs.argsort()
    budget = (distance * float((firsts - before).norm())) ** 2
    chosen = cheapest[: int((costs[cheapest].cumsum(0) < budget).sum())]
    firsts[chosen] = wanted[chosen]
    changed = dict(trained.state)
    for (name, _), numbers in zip(
        pairs, firsts.split([trained.state[name].numel() for name, _ in pairs]), strict=True
    ):
        changed[name] = numbers.view_as(trained.state[name])
    return claim_of(trained.payloads, changed)


def send_other_payload(trained: TrainedShare) -> Claim:
    """Commit to the honest state, but send the payload of another share."""
    return claim_of(train_other_sequences(trained).payloads, trained.state)


def repeat_last_state(trained: TrainedShare) -> Claim:
    """Send the result and the state of the round before again, with the new counts."""
    earlier = _earlier(trained)
    counts = {name: tensor for name, tensor in trained.state.items() if tensor.ndim == 0}
    return claim_of(earlier.payloads, {**earlier.state, **counts})


def commit_other_root(trained: TrainedShare) -> Claim:
    """Commit to the root of another state than the one that peers can fetch."""
    honest = claim_of(trained.payloads, trained.state)
    return replace(honest, root=claim_of({}, _earlier(trained).state).root)


def _earlier(trained: TrainedShare) -> TrainedShare:
    assert trained.earlier is not None, "this attack needs a share of the round before"
    return trained.earlier


ATTACKS: dict[str, Callable[[TrainedShare], Claim]] = {
    "skip_1": lambda trained: skip_steps(trained, 1),
    "skip_3": lambda trained: skip_steps(trained, 3),
    "skip_half": lambda trained: skip_steps(trained, INNER_STEPS // 2),
    "stale_weights": train_stale_weights,
    "other_sequences": train_other_sequences,
    "direction": add_direction,
    "moments": change_moments,
    "other_payload": send_other_payload,
    "last_state": repeat_last_state,
    "other_root": commit_other_root,
}


def can_be_attacked(trained: TrainedShare) -> bool:
    """Return whether the round before had other weights. With overlap, the second round has not."""
    if trained.earlier is None:
        return False
    before = trained.earlier.share.shared
    return any(
        not torch.equal(before[name], tensor) for name, tensor in trained.share.shared.items()
    )


def has_moments(optimizer: Optimizer) -> bool:
    """Return whether members keep moments between rounds. Without them, they cannot be changed."""
    return isinstance(optimizer, SparseLoCo)
