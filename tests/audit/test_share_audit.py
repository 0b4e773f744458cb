"""Test how one device judges a share: its passes, and its second replay before an accusation."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from aftermath.audit.claim import claim_of
from aftermath.audit.comparison import AuditVerdict
from aftermath.audit.share_audit import Attempt, Judgement, ShareAudit
from aftermath.replica import replica
from aftermath.rules.announcements import PassSettings
from audit.audited_rounds import last_share, members

NEVER = threading.Event()
OWN_MICRO_BATCH = members.PER_STEP - 1


def audit_of(case: str, *, is_false: bool = False, **passes: object) -> ShareAudit:
    """Return the audit of a share, by a device with other micro-batches than the member."""
    trained = last_share(case)
    claim = claim_of(trained.payloads, trained.state)
    if is_false:
        claim = members.ATTACKS["skip_1"](trained)
    claimed = members.member_with(trained.share).pass_settings._replace(**passes)
    return ShareAudit(trained.share, claim, claimed, members.CPU, OWN_MICRO_BATCH)


def attempt(audit: ShareAudit, *, is_repeated: bool = False) -> Attempt:
    made = audit.attempt(NEVER, is_repeated=is_repeated)
    assert isinstance(made, Attempt)
    return made


def passes_of(made: Attempt) -> PassSettings:
    assert made.replay is not None
    return made.replay.passes


def test_adamw_in_fp32_is_replayed_in_own_passes() -> None:
    made = attempt(audit_of("adamw"))
    assert passes_of(made).micro_batch == OWN_MICRO_BATCH
    assert made.judgement.verdict is AuditVerdict.MATCH


def test_muon_in_fp32_is_replayed_in_passes_of_the_member() -> None:
    made = attempt(audit_of("muon"))
    assert passes_of(made).micro_batch == members.PER_STEP
    assert made.comparison.distances is not None
    assert made.comparison.distances.whole == made.comparison.distances.moments == 0


@pytest.mark.parametrize("case", ["adamw", "muon", "distro"])
def test_false_claim_is_convicted_after_replay_in_smaller_passes(case: str) -> None:
    audit = audit_of(case, is_false=True)
    first = attempt(audit)
    second = attempt(audit, is_repeated=True)
    assert first.is_mismatch
    assert passes_of(second).micro_batch < passes_of(first).micro_batch
    assert audit.conclude(first, second).verdict is AuditVerdict.MISMATCH


@pytest.mark.parametrize("case", ["adamw", "muon"])
@pytest.mark.parametrize(("free", "expected"), [(1 << 40, 2), (0, 1)])
def test_second_replay_after_passes_of_one_has_passes_of_two(
    case: str, free: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replays in the same passes never differ, even if rounding moves the share far."""
    audit = replace(audit_of(case, is_false=True, micro_batch=1), micro_batch=1)
    first = attempt(audit)
    monkeypatch.setattr(replica, "free_bytes", lambda device: free)
    second = attempt(audit, is_repeated=True)
    assert passes_of(first).micro_batch == 1
    assert passes_of(second).micro_batch == expected
    assert audit.conclude(first, second).verdict is AuditVerdict.MISMATCH


def test_share_of_one_sequence_per_step_has_equal_replays() -> None:
    audit = audit_of("adamw")
    single = replace(audit.share, sequences=audit.share.sequences[: members.INNER_STEPS])
    second = attempt(replace(audit, share=single), is_repeated=True)
    assert passes_of(second).micro_batch == 1


def test_member_abstains_if_its_replays_differ() -> None:
    audit = audit_of("adamw", is_false=True)
    first = attempt(audit)
    other_share = replace(audit.share, lr=1.01 * audit.share.lr)
    second = attempt(replace(audit, share=other_share))
    judgement = audit.conclude(first, second)
    assert first.is_mismatch
    assert second.is_mismatch
    assert judgement.verdict is None
    assert judgement.is_hardware_fault


def test_member_abstains_if_only_one_of_its_replays_differs() -> None:
    audit = audit_of("adamw", is_false=True)
    honest = attempt(audit_of("adamw"))
    assert audit.conclude(attempt(audit), honest).verdict is None


def test_passes_that_this_device_cannot_repeat_have_no_verdict() -> None:
    made = audit_of("muon", device="another CPU").attempt(NEVER)
    assert isinstance(made, Judgement)
    assert made.verdict is None
