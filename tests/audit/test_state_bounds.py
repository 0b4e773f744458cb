"""Test which private states audits refuse because no honest training gives them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from aftermath.audit.claim import RESIDUAL, VALUES, claim_of
from aftermath.audit.share_audit import Attempt, ShareAudit
from aftermath.audit.state_bounds import impossible_state, largest_residual
from aftermath.optim.gradient_clip import LARGEST_RESIDUAL
from aftermath.rules.distro import Distro
from aftermath.rules.sparseloco import SparseLoCo
from audit.audited_rounds import CASES, last_share, members, shares

SHAPES = members.config_of(members.MODEL).parameter_shapes(0)
TALL = members.MODEL | {"hidden_size": 8, "intermediate_size": 512}


def changed(share: Any, start: str, change: Callable[[Tensor], object]) -> Any:
    """Return the share with changed tensors of its earlier state."""
    before = dict(share.before)
    for name, tensor in share.before.items():
        if name.startswith(start):
            before[name] = tensor.clone()
            change(before[name])
    return replace(share, before=before)


def one_number(number: float) -> Callable[[Tensor], object]:
    return lambda tensor: tensor.view(-1)[:1].fill_(number)


@pytest.mark.parametrize("case", CASES)
def test_honest_states_are_possible(case: str) -> None:
    for trained in shares(case):
        assert impossible_state(trained.share) is None


@pytest.mark.parametrize("name", members.OPTIMIZERS)
def test_residual_of_many_rounds_is_far_below_bound(name: str) -> None:
    optimizer = members.OPTIMIZERS[name]
    bound = largest_residual(optimizer, optimizer.usual_rate, SHAPES)
    for trained in members.honest_shares(optimizer, 40, tiers=(0,), tokens=8):
        residuals = (t for name, t in trained.state.items() if name.startswith(RESIDUAL))
        assert max(float(tensor.abs().max()) for tensor in residuals) < bound / 10


def test_residual_of_tall_matrices_in_muon_is_possible() -> None:
    """A step of a matrix with 64 times as many rows as columns is 8 times as large."""
    optimizer = replace(members.OPTIMIZERS["muon"], decay=0.0)
    for trained in members.honest_shares(optimizer, 12, tiers=(0,), tokens=8, model=TALL):
        assert impossible_state(trained.share) is None


@pytest.mark.parametrize(("total", "is_possible"), [(1.03, True), (1.2, False)])
def test_norm_after_inexact_clipping_on_cpu_is_possible(total: float, is_possible: bool) -> None:
    """On a CPU, the computed norm of 2^27 numbers is 1.4% too small. Clipping leaves that much."""
    share = last_share("adamw").share
    kind = "private.exp_avg_sq/"
    sums = (t.double().sum() for name, t in share.before.items() if name.startswith(kind))
    factor = total / float(sum(sums))
    share = changed(share, kind, lambda tensor: tensor.mul_(factor))
    assert (impossible_state(share) is None) == is_possible


@pytest.mark.parametrize("case", ["adamw", "muon", "distro"])
@pytest.mark.parametrize("number", [1e3, 1e20, 3e37])
def test_large_residual_is_impossible(case: str, number: float) -> None:
    share = changed(last_share(case).share, RESIDUAL, one_number(number))
    assert "residual" in str(impossible_state(share))


def test_large_sent_value_is_impossible() -> None:
    share = changed(last_share("distro").share, VALUES, one_number(3e38))
    assert "values" in str(impossible_state(share))


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [("adamw", "exp_avg/", "exp_avg_sq/"), ("muon", "first/", "second/")],
)
def test_absurd_pair_of_moments_is_impossible(case: str, first: str, second: str) -> None:
    """Such a pair has a plausible ratio. It would hide false moments behind its own size."""
    share = changed(last_share(case).share, f"private.{first}", one_number(1e15))
    share = changed(share, f"private.{second}", one_number(1e32))
    assert "gradients are clipped to 1" in str(impossible_state(share))


def test_large_momentum_of_muon_is_impossible() -> None:
    share = changed(last_share("muon").share, "private.momentum/", one_number(2.0))
    assert "the norm of momentum" in str(impossible_state(share))


def test_state_without_bounds_has_only_the_largest_residual() -> None:
    assert largest_residual(Distro(clip=None), 1.0, SHAPES) == LARGEST_RESIDUAL
    assert largest_residual(SparseLoCo(decay=1.0), 1.0, SHAPES) == LARGEST_RESIDUAL
    assert largest_residual(SparseLoCo(), math.inf, SHAPES) == LARGEST_RESIDUAL
    assert 0 < largest_residual(SparseLoCo(), 0.002, SHAPES) < 100
    assert largest_residual(Distro(clip=1.0, decay=0.75), 0.5, SHAPES) == 8.0


def test_impossible_state_is_a_mismatch_without_replay() -> None:
    trained = last_share("distro")
    share = changed(trained.share, RESIDUAL, lambda tensor: tensor.fill_(1e20))
    passes = members.member_with(trained.share).pass_settings
    claim = claim_of(trained.payloads, trained.state)
    audit = ShareAudit(share, claim, passes, members.CPU, members.PER_STEP)
    first = audit.attempt(threading.Event())
    assert isinstance(first, Attempt)
    assert first.is_mismatch
    assert first.replay is None
    assert audit.conclude(first, first).verdict is first.comparison.verdict
    assert "the private state before the share" in first.judgement.reason
