"""Members that cheat in the 30 inner steps of a share, and what auditors find out about them.

`benchmarks/hostile_audits.py` counts the rounds until such a member is convicted. Tests use it too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aftermath.audit.claim import (
    RESIDUAL,
    Claim,
    blocks_to_fetch,
    claim_of,
    drawn_residual_blocks,
    known_state,
    start_blocks,
)
from aftermath.audit.comparison import AuditVerdict
from aftermath.audit.replay import AuditedShare
from aftermath.audit.replay_devices import why_no_replay
from aftermath.audit.share_audit import Judgement, ShareAudit
from aftermath.optim.engine import outline_of, state_like
from aftermath.replica.options import Arithmetic
from aftermath.replica.state_sharing import StateBlock
from aftermath.rules.announcements import PassSettings
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo
from audited_members import (
    CPU,
    PER_STEP,
    TrainedShare,
    add_direction,
    honest_shares,
    member_with,
    repeat_last_state,
    skip_steps,
    train,
    train_other_sequences,
    train_stale_weights,
)

STEPS = 30
"""Inner steps of a share. A share of DisTrO has as many sequences, in one step."""
ROUNDS = 3
_BLOCKS: dict[str, Any] = {"topk": 4, "topk_embeddings": 4, "chunk": 8}
OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": SparseLoCo(inner_steps=STEPS, **_BLOCKS),
    "muon": SparseLoCo(inner_steps=STEPS, inner_optimizer="muon", **_BLOCKS),
    "distro": Distro(**_BLOCKS),
}
BF16 = Arithmetic(bf16=True)
INVENTED = 1e6
"""Each number of an invented residual."""


class Way(NamedTuple):
    """How an auditor trains a share: sequences per pass, and CPU threads."""

    micro: int
    threads: int


WAYS = (Way(PER_STEP // 2, 1), Way(PER_STEP - 1, 1), Way(PER_STEP, 2))
"""Auditors differ from the member, and from each other."""


@dataclass(frozen=True)
class Submission:
    """A recorded result: what auditors know of its inputs, and what the member claims."""

    share: AuditedShare
    """With the private state that the member committed to before the share."""
    claim: Claim
    passes: PassSettings


class Finding(NamedTuple):
    """The outcome of an audit. `verdict` is None if the auditor abstains."""

    verdict: AuditVerdict | None
    reason: str
    distance: float | None
    """Distance of the residual. None if the audit did not measure it."""
    cpu_seconds: float
    fetched_bytes: int


# --- members


class Members(NamedTuple):
    """The last shares of two members of tier 0 that trained honestly until then."""

    own: TrainedShare
    friend: TrainedShare


@cache
def members_of(seed: int) -> Members:
    """Return the members of a run. The seed also chooses the optimizer and the overlap."""
    name = list(OPTIMIZERS)[seed % len(OPTIMIZERS)]
    overlap = seed // len(OPTIMIZERS) % 2
    shares = honest_shares(
        OPTIMIZERS[name], ROUNDS, seed=seed, overlap=overlap, steps=STEPS, tiers=(0, 0, 1)
    )
    *_, own, friend, _ = shares
    return Members(own, friend)


def honest(trained: TrainedShare) -> Submission:
    """Return an honest member's result."""
    return _submission(trained.share, claim_of(trained.payloads, trained.state))


def _submission(share: AuditedShare, claim: Claim) -> Submission:
    """Return a result with the passes of an honest member."""
    return Submission(share, claim, member_with(share).pass_settings)


def _falsified(make: Callable[[TrainedShare], Claim], members: Members) -> Submission:
    return _submission(members.own.share, make(members.own))


def copy_friend(members: Members) -> Submission:
    """Send a friend's result and state as its own, since the round before at the latest."""
    own, friend = members
    share = replace(own.share, before=friend.share.before)
    return _submission(share, claim_of(friend.payloads, friend.state))


def _trained_in_bf16(trained: TrainedShare) -> Claim:
    member = member_with(trained.share, BF16)
    payloads = train(member, trained.share)
    return claim_of(payloads, member.optimizer.state())


def claim_gpu(members: Members) -> Submission:
    """Skip half of the steps, and claim to have trained on a GPU."""
    made = _falsified(_skip(STEPS // 2), members)
    return replace(made, passes=made.passes._replace(device="cuda"))


def claim_bf16(members: Members) -> Submission:
    """Skip half of the steps, and claim passes in bf16 on a device that no auditor has."""
    made = claim_gpu(members)
    return replace(made, passes=made.passes._replace(products="bf16"))


def invent_residual(members: Members) -> Submission:
    """Train honestly, but from a residual that is far larger than training gives."""
    share = members.own.share
    invented = {
        name: torch.full_like(tensor, INVENTED) if name.startswith(RESIDUAL) else tensor
        for name, tensor in share.before.items()
    }
    share = replace(share, before=invented)
    member = member_with(share)
    payloads = train(member, share)
    return _submission(share, claim_of(payloads, member.optimizer.state()))


def _skip(steps: int) -> Callable[[TrainedShare], Claim]:
    return lambda trained: skip_steps(trained, steps)


ATTACKS: Mapping[str, Callable[[Members], Submission]] = {
    "skips 1 of 30 inner steps": partial(_falsified, _skip(1)),
    "skips 3 of 30 inner steps": partial(_falsified, _skip(3)),
    "skips 15 of 30 inner steps": partial(_falsified, _skip(15)),
    "trains the weights of the round before": partial(_falsified, train_stale_weights),
    "trains other data": partial(_falsified, train_other_sequences),
    "adds 5% of a fixed direction": partial(_falsified, add_direction),
    "sends a friend's result": copy_friend,
    "repeats its last result and state": partial(_falsified, repeat_last_state),
    "invents a large residual once": invent_residual,
    "skips 15 steps, claims a GPU": claim_gpu,
    "skips 15 steps, claims bf16 on a GPU": claim_bf16,
    "trains in bf16, claims fp32": partial(_falsified, _trained_in_bf16),
}
"""Attacks that only audits can find."""
NOT_ALWAYS_FOUND = {
    "skips 15 steps, claims a GPU",  # with Muon, only another GPU could replay it
    "skips 15 steps, claims bf16 on a GPU",  # only another GPU could replay it
    "trains in bf16, claims fp32",  # the difference is near the bounds
}
ALWAYS_FOUND = tuple(attack for attack in ATTACKS if attack not in NOT_ALWAYS_FOUND)


# --- auditors


def judge(submission: Submission, way: Way, seed: bytes) -> Finding:
    """Judge a result like a member (`member.rounds.judge.Judge`), with all blocks at hand.

    `seed` draws the blocks of the residual.
    """
    share = submission.share
    claim = submission.claim
    if why := why_no_replay(submission.passes, share.schema, CPU, compiles=False):
        return Finding(None, why, None, cpu_seconds=0.0, fetched_bytes=0)
    outline = outline_of(share.schema, share.tier)
    sample = drawn_residual_blocks(outline, seed)
    before: Mapping[int, StateBlock] = {}
    if share.before:
        before = claim_of({}, share.before, start_blocks(outline, share.schema, sample)).blocks
    wanted = blocks_to_fetch(outline, share.schema.results, sample)
    after = {index: claim.blocks[index] for index in wanted}
    share = replace(share, before=_known(share, before))
    audit = ShareAudit(share, replace(claim, blocks=after), submission.passes, CPU, way.micro)
    torch.set_num_threads(way.threads)
    began = time.process_time()
    try:
        finding = _finding(audit)
    finally:
        torch.set_num_threads(1)
    return finding._replace(
        cpu_seconds=time.process_time() - began,
        fetched_bytes=sum(map(_size, (*before.values(), *after.values()))),
    )


def _known(share: AuditedShare, before: Mapping[int, StateBlock]) -> Mapping[str, Tensor]:
    """Return the fetched part of the state before a share."""
    if not before:
        return {}
    return known_state(state_like(share.schema, share.tier), before).tensors


def _finding(audit: ShareAudit) -> Finding:
    """Return the outcome of an audit, without its cost."""
    never = threading.Event()
    first = audit.attempt(never)
    if isinstance(first, Judgement):
        return _without_cost(first, None)
    distances = first.comparison.distances
    distance = None if distances is None else distances.whole
    if not first.is_mismatch:
        return _without_cost(first.judgement, distance)
    judgement = first.judgement
    for repetition in range(1, audit.repeats + 1):
        again = audit.attempt(never, repetition=repetition)
        if isinstance(again, Judgement):
            return _without_cost(again, distance)
        judgement = audit.conclude(first, again)
        if judgement.verdict is None:
            break
    return _without_cost(judgement, distance)


def _without_cost(judgement: Judgement, distance: float | None) -> Finding:
    return Finding(judgement.verdict, judgement.reason, distance, cpu_seconds=0.0, fetched_bytes=0)


def _size(block: StateBlock) -> int:
    return len(block.data) + sum(map(len, block.proof))


def findings(submission: Submission, seed: int) -> list[Finding]:
    """Return what an auditor finds in each way."""
    return [
        judge(submission, way, f"draw {seed}".encode())  # all judges compare the same blocks
        for way in WAYS
    ]
