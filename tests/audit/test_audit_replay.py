"""Test that a replay is what the member's own code produces, and what it reports."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count

import pytest
import torch

from aftermath.audit.replay import AuditedShare, NoResult, Replay, replay
from aftermath.optim.interfaces import BadState
from aftermath.replica import replica
from aftermath.replica.memory import LiveBytes
from aftermath.replica.pass_size import OutOfMemory, room
from aftermath.replica.replica import Cancelled, accumulate
from audit.audited_rounds import CASES, last_share, members
from optim.optim_replica import bits

CPU = torch.device("cpu")
NAMES = pytest.mark.parametrize("name", CASES)


@NAMES
def test_replay_in_same_passes_equals_member(name: str) -> None:
    trained = last_share(name)
    found = members.replayed(trained.share)
    assert found.payloads == trained.payloads
    assert bits(found.state) == bits(trained.state)


def test_replay_of_tier_1_equals_member() -> None:
    trained = last_share("adamw", tier=1)
    found = members.replayed(trained.share)
    assert found.payloads == trained.payloads
    assert found.payloads.keys() == {1}


@NAMES
def test_replay_leaves_its_inputs_unchanged(name: str) -> None:
    share = last_share(name).share
    before = bits(share.shared), bits(share.before)
    members.replayed(share, micro_batch=1)
    assert (bits(share.shared), bits(share.before)) == before


def test_replay_without_state_equals_first_share() -> None:
    first = next(members.honest_shares(members.OPTIMIZERS["muon"], 1))
    assert not first.share.before
    assert bits(members.replayed(first.share).state) == bits(first.state)


@NAMES
def test_replay_block_norms_sum_to_level_norms(name: str) -> None:
    share = last_share(name).share
    trained = members.member_with(share).train(
        share.sequences,
        share.lr,
        share.ahead_lr,
        threading.Event(),
        measured=True,
        travelling=share.travelling,
    )
    assert trained.measured is not None
    found = members.replayed(share)
    assert trained.measured.keys() == found.block_norms.keys() == found.payloads.keys()
    for level, metrics in trained.measured.items():
        norm = float(torch.cat(found.block_norms[level]).norm())
        assert norm == pytest.approx(metrics.gradient_norm, rel=1e-4)


def test_replay_of_labels_equals_member() -> None:
    share = last_share("adamw").share
    labels = share.sequences.masked_fill(share.sequences % 5 == 0, -100)
    labelled = replace(share, sequences=torch.stack((share.sequences, labels), 1))
    found = members.replayed(labelled)
    assert found.payloads == members.train(members.member_with(labelled), labelled)


def test_replay_of_dummy_seed_does_not_depend_on_passes() -> None:
    share = replace(last_share("distro").share, dummy_seed=3)
    one, other = (members.replayed(share, micro_batch) for micro_batch in (1, 4))
    assert one.payloads == other.payloads
    assert one.payloads != last_share("distro").payloads


@NAMES
def test_replay_of_nonfinite_gradient_has_no_result(name: str) -> None:
    share = last_share(name).share
    shared = {key: tensor.clone() for key, tensor in share.shared.items()}
    next(iter(shared.values())).fill_(torch.inf)
    found = replay(replace(share, shared=shared), device=CPU, micro_batch=4)
    assert isinstance(found, NoResult)
    assert "nan" in found.reason or "not finite" in found.reason


def test_replay_of_bad_state_raises() -> None:
    share = last_share("adamw").share
    before = {name: tensor for name, tensor in share.before.items() if "exp_avg_sq" not in name}
    with pytest.raises(BadState, match="missing"):
        replay(replace(share, before=before), device=CPU)


def test_replay_can_be_cancelled() -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        replay(last_share("adamw").share, device=CPU, cancelled=cancelled)


def memory_for(share: AuditedShare, sequences: int) -> int:
    """Return the free bytes with which passes of `sequences` sequences fit, but no larger ones."""
    member = members.member_with(share)
    with LiveBytes() as live:
        accumulate(member.passes.plain(), share.sequences[:1], 1, threading.Event())
    gradients = sum(tensor.nbytes for tensor in member.params.values())
    fitting = next(size for size in count(1) if room(live.peak, size << 10) >= sequences)
    return (fitting << 10) + gradients


@pytest.mark.parametrize(("name", "per_step"), [("adamw", members.PER_STEP), ("distro", 32)])
def test_memory_for_replay_is_that_of_one_step(
    name: str, per_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that claims a larger micro-batch size must not keep others from judging it."""
    share = last_share(name).share
    enough = memory_for(share, per_step)
    too_little = memory_for(share, per_step - 1)
    monkeypatch.setattr(replica, "free_bytes", lambda device: enough)
    for micro_batch in (per_step, 65535):
        found = replay(share, device=CPU, micro_batch=micro_batch, exact=True)
        assert isinstance(found, Replay)
    monkeypatch.setattr(replica, "free_bytes", lambda device: too_little)
    with pytest.raises(OutOfMemory):
        replay(share, device=CPU, micro_batch=65535, exact=True)


def test_replay_measures_pass_size_by_default() -> None:
    trained = last_share("adamw")
    found = replay(trained.share, device=CPU)
    assert isinstance(found, Replay)
    expected = members.replayed(trained.share).block_norms
    for level, norms in found.block_norms.items():
        torch.testing.assert_close(norms, expected[level])
