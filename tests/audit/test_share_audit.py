"""Test how one device judges a share: its passes, and its second replay before an accusation."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.audit.claim import Claim, claim_of
from aftermath.audit.comparison import AuditVerdict
from aftermath.audit.share_audit import Attempt, Judgement, ShareAudit
from aftermath.rules.announcements import PassSettings
from audit.audited_rounds import last_share, members

NEVER = threading.Event()
OWN_MICRO_BATCH = members.PER_STEP - 1


def audit_of(trained: Any, claim: Claim | None = None, **passes: object) -> ShareAudit:
    """Return the audit of a share, by a device with other micro-batches than the member."""
    claim = claim or claim_of(trained.payloads, trained.state)
    claimed = members.member_with(trained.share).pass_settings._replace(**passes)
    return ShareAudit(trained.share, claim, claimed, members.CPU, OWN_MICRO_BATCH)


def false_audit(case: str, **passes: object) -> ShareAudit:
    """Return the audit of a share whose member skipped a step."""
    trained = last_share(case)
    return audit_of(trained, members.skip_steps(trained, 1), **passes)


def shortened(trained: Any, sequences: int) -> Any:
    """Return the share with that many sequences per step."""
    share = trained.share
    part = share.sequences[: sequences * members.INNER_STEPS]
    return replace(trained, share=replace(share, sequences=part))


def judged(audit: ShareAudit) -> AuditVerdict | None:
    first = attempt(audit)
    if not first.is_mismatch:
        return first.judgement.verdict
    return audit.conclude(first, attempt(audit, repetition=1)).verdict


def differ(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return any(not torch.equal(tensor, other[name]) for name, tensor in one.items())


def attempt(audit: ShareAudit, *, repetition: int = 0) -> Attempt:
    made = audit.attempt(NEVER, repetition=repetition)
    assert isinstance(made, Attempt)
    return made


def passes_of(made: Attempt) -> PassSettings:
    assert made.replay is not None
    return made.replay.passes


def test_adamw_in_fp32_is_replayed_in_own_passes() -> None:
    made = attempt(audit_of(last_share("adamw")))
    assert passes_of(made).micro_batch == OWN_MICRO_BATCH
    assert made.judgement.verdict is AuditVerdict.MATCH


def test_muon_in_fp32_is_replayed_in_passes_of_the_member() -> None:
    made = attempt(audit_of(last_share("muon")))
    assert passes_of(made).micro_batch == members.PER_STEP
    assert made.comparison.distances is not None
    assert made.comparison.distances.whole == made.comparison.distances.moments == 0


@pytest.mark.parametrize("case", ["adamw", "muon", "distro"])
@pytest.mark.parametrize("sequences", [1, members.PER_STEP])
def test_false_claim_is_convicted_after_moved_replay(case: str, sequences: int) -> None:
    trained = shortened(last_share(case), sequences)
    audit = audit_of(trained, members.skip_steps(trained, 1))
    first = attempt(audit)
    second = attempt(audit, repetition=1)
    assert first.is_mismatch
    assert first.replay is not None
    assert second.replay is not None
    assert first.replay.passes == second.replay.passes
    assert differ(first.replay.state, second.replay.state)
    assert audit.conclude(first, second).verdict is AuditVerdict.MISMATCH
    third = attempt(audit, repetition=2)
    assert audit.repeats == 2
    assert third.replay is not None
    assert differ(third.replay.state, first.replay.state)
    assert differ(third.replay.state, second.replay.state)
    assert audit.conclude(first, third).verdict is AuditVerdict.MISMATCH


@pytest.mark.parametrize(("case", "rate"), [("adamw", 400), ("muon", 50), ("muon", 100)])
@pytest.mark.parametrize("sequences", [1, members.PER_STEP])
def test_share_that_rounding_decides_has_no_verdict(case: str, rate: float, sequences: int) -> None:
    """At such rates, honest results differ between kinds of device."""
    last = last_share(case)
    draws = torch.Generator().manual_seed(1)
    verdicts = []
    for _ in range(6):
        tokens = torch.randint(64, (sequences * members.INNER_STEPS, 16), generator=draws)
        lr = rate * last.share.lr
        share = replace(last.share, sequences=tokens, lr=lr, ahead_lr=lr, peak_lr=lr)
        rounded = {
            name: tensor * (1 + 6e-8 * torch.randn(tensor.shape, generator=draws).sign())
            for name, tensor in share.shared.items()
        }
        member = members.member_with(replace(share, shared=rounded))
        payloads = members.train(member, share)
        trained = members.TrainedShare(share, payloads, member.optimizer.state(), None)
        verdicts.append(judged(audit_of(trained)))
    assert AuditVerdict.MISMATCH not in verdicts
    assert None in verdicts


def test_repeated_replay_in_bf16_is_not_moved() -> None:
    """In bf16, one rounding moves an honest share too far."""
    trained = last_share("adamw")
    audit = audit_of(trained, members.skip_steps(trained, 4), products="bf16")
    first = attempt(audit)
    second = attempt(audit, repetition=1)
    assert first.replay is not None
    assert second.replay is not None
    assert not differ(first.replay.state, second.replay.state)
    assert audit.conclude(first, second).verdict is AuditVerdict.MISMATCH


def test_member_abstains_if_its_replays_differ() -> None:
    audit = false_audit("adamw")
    first = attempt(audit)
    other_share = replace(audit.share, lr=1.01 * audit.share.lr)
    second = attempt(replace(audit, share=other_share))
    judgement = audit.conclude(first, second)
    assert first.is_mismatch
    assert second.is_mismatch
    assert judgement.verdict is None
    assert judgement.is_hardware_fault


def test_member_abstains_if_only_one_of_its_replays_differs() -> None:
    audit = false_audit("adamw")
    honest = attempt(audit_of(last_share("adamw")))
    assert audit.conclude(attempt(audit), honest).verdict is None


def test_passes_that_this_device_cannot_repeat_have_no_verdict() -> None:
    made = audit_of(last_share("muon"), device="another CPU").attempt(NEVER)
    assert isinstance(made, Judgement)
    assert made.verdict is None
