"""Audit one share on one device: replay it, compare, and replay it again before an accusation."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from aftermath.audit.claim import Claim, ProvenBlocks, claim_of
from aftermath.audit.comparison import AuditVerdict, Comparison, bounds_of, compare
from aftermath.audit.replay import AuditedShare, NoResult, Replay, replay
from aftermath.audit.replay_devices import needs_same_passes
from aftermath.audit.state_bounds import impossible_state
from aftermath.optim.interfaces import BadState
from aftermath.replica.memory import free_bytes, is_out_of_memory
from aftermath.replica.options import PLAIN, Arithmetic
from aftermath.replica.pass_size import OutOfMemory
from aftermath.replica.replica import Cancelled
from aftermath.replica.tier_memory import state_bytes
from aftermath.rules.announcements import PassSettings

AGREEMENT = 0.25
"""Part of the bounds within which two replays on one machine must agree."""
_MOVED = 4
"""Roundings by which a repeated replay in fp32 moves all weights.

It shows whether rounding decides the verdict.
"""
_MOVED_IN_SAME_PASSES = 1
"""_MOVED for Muon, whose judges repeat the member's passes."""
# Smaller passes would not show it: they equal the first ones if a step has one sequence. With Muon
# (30 steps, 36 shares), smaller passes differed by up to 0.17 of what AGREEMENT allows, one
# rounding by 0.15, and four by 0.5. With AdamW they stay below 0.02.
_COPIES = 2  # copies of weights and optimizer state whose memory a replay and comparison need
_NO_MEMORY = "this machine has too little memory for the replay"


@dataclass(frozen=True)
class Judgement:
    """A member's verdict about a result, with its reason. `verdict` is None if it abstains."""

    verdict: AuditVerdict | None
    reason: str
    is_hardware_fault: bool = False
    evidence: ProvenBlocks | None = None
    """The fetched blocks of both states, after repeated replays.

    An auditor lends them if it opens a case.
    """


@dataclass(frozen=True)
class Attempt:
    """A replay and its comparison with the claim."""

    comparison: Comparison
    replay: Replay | None
    """None if the state before the share could not be restored."""

    @property
    def is_mismatch(self) -> bool:
        """Return whether the claim is false, if this attempt is right."""
        return self.comparison.verdict is AuditVerdict.MISMATCH

    @property
    def judgement(self) -> Judgement:
        """Return the judgement of a member that trusts this attempt."""
        return Judgement(self.comparison.verdict, self.comparison.reason)


@dataclass(frozen=True)
class ShareAudit:
    """The audit, on `device`, of a share that its member trained in `claimed` passes.

    Call `attempt`. After a mismatch repeat it, and `conclude` after each of `repeats` repetitions.
    """

    share: AuditedShare
    claim: Claim
    claimed: PassSettings
    device: torch.device
    micro_batch: int
    """Sequences per pass of this device, for shares that any passes can replay."""

    @property
    def repeats(self) -> int:
        """Number of repetitions after a mismatch."""
        # At twice the usual rate, one honest share of 80 was far from two replays that agreed by
        # chance. In bf16 all replays are equal.
        return 2 if self.claimed.is_fp32 else 1

    def attempt(self, cancelled: threading.Event, *, repetition: int = 0) -> Attempt | Judgement:
        """Replay the share and compare it, or return an abstention.

        `repetition`: 0 for the first attempt. A repeated replay in fp32 begins with weights that
        are moved by `_MOVED` roundings, each time in another direction. Raises Cancelled.
        """
        if fault := impossible_state(self.share):
            return _false_start(fault)
        # On a CPU the system would kill this member instead of refusing memory.
        needed = _COPIES * state_bytes(self.share.schema, self.share.tier)
        if free_bytes(self.device) < needed:
            return Judgement(None, _NO_MEMORY)
        try:
            return self._attempt(cancelled, repetition)
        except BadState as error:
            return _false_start(error.message)
        except Cancelled:
            raise
        except Exception as error:
            if isinstance(error, OutOfMemory) or is_out_of_memory(error):
                return Judgement(None, _NO_MEMORY)
            # The inputs are another member's, and no error in them may end this member.
            return Judgement(None, f"the replay failed: {type(error).__name__}: {error}")

    def _attempt(self, cancelled: threading.Event, repetition: int) -> Attempt | Judgement:
        claimed = self.claimed
        schema = self.share.schema
        is_same = needs_same_passes(claimed, schema)
        # In bf16 even one rounding moves an honest share by more than AGREEMENT.
        moved = 0
        if repetition and claimed.is_fp32:
            moved = _MOVED_IN_SAME_PASSES if is_same else _MOVED
            if repetition % 2 == 0:
                moved = -moved
        arithmetic = PLAIN
        if is_same:
            arithmetic = Arithmetic(bf16=claimed.products == "bf16", compiled=claimed.compiled)
        made = replay(
            self.share,
            device=self.device,
            micro_batch=claimed.micro_batch if is_same else self.micro_batch,
            arithmetic=arithmetic,
            exact=is_same,
            moved=moved,
            cancelled=cancelled,
        )
        if isinstance(made, NoResult):
            return Judgement(None, f"the replay has no result: {made.reason}")
        if is_same and made.passes != claimed:
            return Judgement(None, "this machine could not repeat the member's passes")
        return Attempt(compare(made, self.claim, bounds_of(claimed, schema)), made)

    def conclude(self, first: Attempt, second: Attempt) -> Judgement:
        """Return the judgement after a mismatch and a repeated attempt. Abstain if they differ.

        A faulty machine, a GPU whose bf16 products vary, or a share that rounding alone moves far
        gives two replays that differ.
        """
        if self._agree(first, second):
            return second.judgement
        return Judgement(
            None,
            "two replays on this machine differ: rounding moves this share too far to judge "
            "it, or the hardware is faulty. If this warning repeats, check memory and GPU",
            True,
        )

    def _agree(self, first: Attempt, second: Attempt) -> bool:
        if first.comparison.verdict is not second.comparison.verdict:
            return False
        if first.replay is None or second.replay is None:
            return first.replay is second.replay
        # Some GPU kernels add in any order, so equal work gives replays that are nearly equal.
        bounds = bounds_of(self.claimed, self.share.schema).scaled(AGREEMENT)
        repeated = claim_of(second.replay.payloads, second.replay.state)
        return compare(first.replay, repeated, bounds).verdict is AuditVerdict.MATCH


def _false_start(fault: str) -> Attempt:
    """Return the outcome for a private state that cannot come from training."""
    reason = f"training cannot give the private state before the share: {fault}"
    return Attempt(Comparison(AuditVerdict.MISMATCH, reason, None), None)
