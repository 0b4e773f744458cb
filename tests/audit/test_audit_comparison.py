"""Test that honest claims match their replay, and that each attack is a mismatch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.audit.claim import INDICES, RESIDUAL, VALUES, Claim, claim_of
from aftermath.audit.comparison import FP32_BOUNDS, AuditVerdict, Comparison, bounds_of, compare
from aftermath.optim.blocks import UNUSED
from audit.audited_rounds import CASES, last_share, members, shares

BOUND = FP32_BOUNDS.residual
REASONS = {
    "skip_1": "distance of the residual",
    "skip_3": "distance of the residual",
    "skip_half": "distance of the residual",
    "stale_weights": "distance of the residual",
    "other_sequences": "distance of the residual",
    "direction": "distance of the residual is 0.05,",
    "moments": "distance of the moments",
    "other_payload": "payload of level 0 does not encode",
    "last_state": "distance of the residual",
    "other_root": "not part of the private state",
}

ATTACKED = [
    (case, attack)
    for case in ("adamw", "muon-overlapped", "distro")
    for attack in members.ATTACKS
    if attack != "moments" or case != "distro"  # which has none
]


def audited(trained: Any, claim: Claim, micro_batch: int = 3) -> Comparison:
    """Compare a claim with a replay, in other passes than the member's."""
    replay = members.replayed(trained.share, micro_batch)
    return compare(replay, claim, bounds_of(replay.passes, replay.share.schema))


def honest(trained: Any) -> Claim:
    """Return an honest member's claim."""
    return claim_of(trained.payloads, trained.state)


def changed(trained: Any, name: str, change: Callable[[Tensor], object]) -> Claim:
    """Return the claim of a state with one changed tensor."""
    state = trained.state | {name: trained.state[name].clone()}
    change(state[name])
    return claim_of(trained.payloads, state)


# --- honest members -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_honest_claim_matches_in_every_round(case: str) -> None:
    for trained in shares(case):
        found = audited(trained, honest(trained))
        assert found.verdict is AuditVerdict.MATCH, found.reason
        assert found.distances is not None
        assert 0 < found.distances.whole < BOUND / 5
        assert found.distances.adam_steps < FP32_BOUNDS.adam_steps / 5


@pytest.mark.parametrize("micro_batch", [1, 2, 5])
def test_honest_claim_matches_in_other_micro_batches(micro_batch: int) -> None:
    trained = last_share("muon")
    found = audited(trained, honest(trained), micro_batch)
    assert found.verdict is AuditVerdict.MATCH, found.reason


def test_honest_claim_matches_with_other_thread_count() -> None:
    trained = last_share("adamw")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        found = audited(trained, honest(trained))
    finally:
        torch.set_num_threads(threads)
    assert found.verdict is AuditVerdict.MATCH, found.reason


def test_honest_claim_in_same_passes_has_distance_zero() -> None:
    trained = last_share("muon-overlapped")
    found = audited(trained, honest(trained), members.PER_STEP)
    assert found.distances is not None
    assert found.distances.whole == found.distances.median == found.distances.moments == 0


# --- attackers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "attack"), ATTACKED)
def test_attack_is_a_mismatch(case: str, attack: str) -> None:
    trained = last_share(case)
    found = audited(trained, members.ATTACKS[attack](trained))
    assert found.verdict is AuditVerdict.MISMATCH
    assert REASONS[attack] in found.reason


@pytest.mark.parametrize("case", ["adamw", "adamw-overlapped", "muon"])
def test_false_moments_of_small_gradients_are_a_mismatch(case: str) -> None:
    """AdamW makes steps of the same size with these moments, although they are a small part."""
    trained = last_share(case)
    replay = members.replayed(trained.share)
    bounds = bounds_of(replay.passes, replay.share.schema)
    found = compare(replay, members.change_small_moments(trained, 0.9 * bounds.moments), bounds)
    assert found.distances is not None
    assert found.distances.moments < bounds.moments
    assert found.distances.adam_steps > 5 * bounds.adam_steps
    assert found.verdict is AuditVerdict.MISMATCH
    assert "distance of AdamW's steps" in found.reason


def test_false_second_moments_of_small_gradients_are_a_mismatch() -> None:
    trained = last_share("adamw")
    bounds = FP32_BOUNDS
    state = dict(trained.state)
    for name in trained.state:
        if name.startswith("private.exp_avg_sq/"):
            squares = trained.state[name]
            state[name] = torch.where(squares < 0.01 * squares.max(), 2 * squares, squares)
    found = audited(trained, claim_of(trained.payloads, state))
    assert found.distances is not None
    assert found.distances.adam_steps > 5 * bounds.adam_steps
    assert found.verdict is AuditVerdict.MISMATCH


@pytest.mark.parametrize("bounds", [0.5, 1.5, 2.5])
def test_claim_just_above_bound_has_no_verdict(
    monkeypatch: pytest.MonkeyPatch, bounds: float
) -> None:
    """Two honest machines may be on different sides of one bound, but not of two."""
    monkeypatch.setattr(members, "FRACTION", bounds * BOUND)
    trained = last_share("distro")
    found = audited(trained, members.ATTACKS["direction"](trained))
    assert found.distances is not None
    assert found.distances.whole == pytest.approx(bounds * BOUND, rel=0.1)
    verdicts = {0.5: AuditVerdict.MATCH, 1.5: None, 2.5: AuditVerdict.MISMATCH}
    assert found.verdict is verdicts[bounds], found.reason


def test_coefficients_just_above_rounding_have_no_verdict() -> None:
    trained = last_share("distro")
    replay = members.replayed(trained.share, 3)
    verdicts = []
    for size in range(26):
        factor = 1 + 1e-7 * 1.3**size

        def scale(values: Tensor, factor: float = factor) -> None:
            values.mul_(factor)

        verdicts.append(compare(replay, changed(trained, f"{VALUES}0.0", scale)).verdict)
    assert verdicts[0] is AuditVerdict.MATCH
    assert None in verdicts
    assert verdicts[-1] is AuditVerdict.MISMATCH


@pytest.mark.parametrize("case", ["adamw", "distro"])
def test_entries_other_than_the_strongest_are_a_mismatch(case: str) -> None:
    """A member that keeps what it sent in its residual would send it twice."""
    trained = last_share(case)
    state = dict(trained.state)
    for name in trained.state:
        if name.startswith("result.indices.0."):
            state[name] = torch.full_like(trained.state[name], UNUSED)
        elif name.startswith("result.values.0."):
            state[name] = torch.zeros_like(trained.state[name])
    found = audited(trained, claim_of(trained.payloads, state))
    assert found.verdict is AuditVerdict.MISMATCH
    assert "differ from what the encoder chooses" in found.reason


def test_rounded_transform_matches() -> None:
    """Devices round a DCT coefficient differently."""
    trained = last_share("distro")

    def scale(values: Tensor) -> None:
        values.mul_(1 + 1e-7)

    found = audited(trained, changed(trained, f"{VALUES}0.0", scale))
    assert found.verdict is AuditVerdict.MATCH, found.reason
    found = audited(trained, changed(trained, f"{VALUES}0.0", lambda values: values.mul_(1.001)))
    assert found.verdict is AuditVerdict.MISMATCH


@pytest.mark.parametrize(
    ("name", "number", "reason"),
    [
        (f"{RESIDUAL}0.0", math.nan, "encoder cannot produce"),
        (f"{RESIDUAL}0.0", 1e9, "encoder chooses"),
        (f"{INDICES}0.0", 63, "encoder cannot produce"),
        (f"{VALUES}0.0", 0.3, "encoder cannot produce"),
        ("private.exp_avg/model.norm.weight", math.nan, "moments is inf"),
        ("private.exp_avg_sq/model.norm.weight", math.inf, "moments is inf"),
        ("private.step/model.norm.weight", 7, "is 7, but 24"),
    ],
)
def test_invalid_number_in_state_is_a_mismatch(name: str, number: float, reason: str) -> None:
    trained = last_share("adamw")
    found = audited(trained, changed(trained, name, lambda tensor: tensor.fill_(number)))
    assert found.verdict is AuditVerdict.MISMATCH
    assert reason in found.reason


def test_missing_or_malformed_payload_is_a_mismatch() -> None:
    trained = last_share("adamw")
    claim = honest(trained)
    missing = replace(claim, payloads={0: claim.payloads[0]})
    assert "level 1 has no payload" in audited(trained, missing).reason
    malformed = replace(claim, payloads={**claim.payloads, 0: b"\xff" * len(claim.payloads[0])})
    found = audited(trained, malformed)
    assert found.verdict is AuditVerdict.MISMATCH
    assert "not valid" in found.reason


def test_block_of_wrong_size_is_a_mismatch() -> None:
    trained = last_share("adamw")
    state = dict(trained.state)
    name = "private.exp_avg/model.norm.weight"
    state[name] = torch.cat([state[name], torch.zeros(1)])
    found = audited(trained, claim_of(trained.payloads, state))
    assert found.verdict is AuditVerdict.MISMATCH
    assert "not part of the private state" in found.reason
