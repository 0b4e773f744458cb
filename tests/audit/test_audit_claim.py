"""Test which blocks an audit needs, and that audits of a few blocks of the residual work."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import torch

from aftermath.audit.claim import (
    RESIDUAL,
    RESIDUAL_BLOCKS,
    RESULT,
    VALUES,
    blocks_to_fetch,
    claim_of,
    drawn_residual_blocks,
    known_state,
    outline_of_state,
    start_blocks,
)
from aftermath.audit.comparison import AuditVerdict, compare
from aftermath.optim.engine import outline_of, state_like
from aftermath.optim.state_merkle import BLOCK, outline
from aftermath.rules.sparseloco import SparseLoCo
from audit.audited_rounds import CASES, last_share, members

# The embedding has four state blocks of the residual. Its blocks of 49 numbers are not aligned with
# the bytes of state blocks.
LARGE = members.MODEL | {"vocab_size": 2000, "hidden_size": 112, "intermediate_size": 56}
SETTINGS = SparseLoCo(inner_steps=2, topk=4, topk_embeddings=4, chunk=7)


@cache
def trained_share() -> Any:
    """Return a share of a model whose residual has several blocks."""
    shares = list(members.honest_shares(SETTINGS, 2, model=LARGE))
    return next(trained for trained in reversed(shares) if trained.share.tier == 0)


def residual_blocks() -> list[int]:
    """Return the indices of the blocks of the largest tensor of the residual."""
    outline = outline_of_state(trained_share().state)
    names = [outline.place(index).name for index in range(outline.count)]
    residual = [name for name in names if name.startswith(RESIDUAL)]
    largest = max(set(residual), key=residual.count)
    return [index for index, name in enumerate(names) if name == largest]


def needed(sample: list[int]) -> list[int]:
    trained = trained_share()
    outline = outline_of_state(trained.state)
    return blocks_to_fetch(outline, trained.share.schema.results, sample)


def test_outline_of_state_equals_outline_of_schema() -> None:
    trained = trained_share()
    share = trained.share
    assert outline_of_state(trained.state) == outline_of(share.schema, share.tier)


def test_blocks_to_fetch_are_moments_and_sample_with_entries() -> None:
    outline = outline_of_state(trained_share().state)
    sample = residual_blocks()[1:2]
    found = [outline.place(index).name for index in needed(sample)]
    moments = [
        outline.place(index).name
        for index in range(outline.count)
        if not outline.place(index).name.startswith(RESULT)
    ]
    level_group = outline.place(sample[0]).name.removeprefix(RESIDUAL)
    assert [name for name in found if not name.startswith(RESULT)] == moments
    assert {name for name in found if name.startswith(RESULT)} == {
        f"result.{kind}.{level_group}" for kind in ("residual", "indices", "values")
    }
    assert len(needed(sample)) < outline.count / 2 + len(moments)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tier", [0, 1])
def test_state_like_has_kinds_of_trained_state(case: str, tier: int) -> None:
    trained = last_share(case, tier)
    like = state_like(trained.share.schema, tier)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in like.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in trained.state.items()
    }


@pytest.mark.parametrize(("case", "is_whole"), [("adamw", False), ("distro", True)])
def test_start_blocks_leave_out_residual_of_inner_steps(case: str, is_whole: bool) -> None:
    trained = last_share(case)
    state_outline = outline_of_state(trained.state)
    names = {
        state_outline.place(index).name
        for index in start_blocks(state_outline, trained.share.schema, ())
    }
    left_out = {name for name, _ in state_outline.sizes} - names
    assert all(name.startswith(RESIDUAL) for name in left_out)
    assert bool(left_out) != is_whole


@pytest.mark.parametrize("case", ["adamw-overlapped", "muon", "distro-overlapped"])
def test_replay_from_start_blocks_matches(case: str) -> None:
    trained = last_share(case)
    schema = trained.share.schema
    state_outline = outline_of_state(trained.state)
    sample = drawn_residual_blocks(state_outline, b"a secret")
    before = claim_of({}, trained.share.before, start_blocks(state_outline, schema, sample))
    known = known_state(state_like(schema, 0), before.blocks).tensors
    claim = claim_of(
        trained.payloads, trained.state, blocks_to_fetch(state_outline, schema.results, sample)
    )
    share = members.replace(trained.share, before=known)
    found = compare(members.replayed(share, micro_batch=1), claim)
    assert found.verdict is AuditVerdict.MATCH, found.reason


def test_drawn_residual_blocks_follow_from_seed() -> None:
    state_outline = outline({f"{RESIDUAL}0.0": 100 * BLOCK, "private.exp_avg/x": 9})
    drawn = drawn_residual_blocks(state_outline, b"1st seed")
    assert drawn == drawn_residual_blocks(state_outline, b"1st seed")
    assert drawn != drawn_residual_blocks(state_outline, b"2nd seed")
    assert len(set(drawn)) == RESIDUAL_BLOCKS
    assert all(state_outline.place(index).name.startswith(RESIDUAL) for index in drawn)


def test_blocks_to_fetch_of_a_moment_raises() -> None:
    with pytest.raises(ValueError, match="not part of the residual"):
        needed([0])


@pytest.mark.parametrize("position", [0, 1, -1])
def test_audit_of_one_block_matches_without_other_residual(position: int) -> None:
    trained = trained_share()
    sample = [residual_blocks()[position]]
    outline = outline_of_state(trained.state)
    span = outline.place(sample[0])
    before = {
        name: torch.zeros_like(tensor) if name.startswith(RESIDUAL) else tensor
        for name, tensor in trained.share.before.items()
    }
    known = before[span.name].flatten()
    whole = trained.share.before[span.name].flatten()
    known[span.start // 4 : span.stop // 4] = whole[span.start // 4 : span.stop // 4]
    share = members.replace(trained.share, before=before)
    claim = claim_of(trained.payloads, trained.state, needed(sample))
    found = compare(members.replayed(share, micro_batch=1), claim)
    assert found.verdict is AuditVerdict.MATCH, found.reason
    assert found.distances is not None
    assert found.distances.median < 1e-4


@pytest.mark.parametrize("attack", ["direction", "other_sequences", "other_payload"])
def test_audit_of_one_block_finds_attack(attack: str) -> None:
    trained = trained_share()
    claim = members.ATTACKS[attack](trained)
    sampled = {index: claim.blocks[index] for index in needed(residual_blocks()[1:2])}
    claim = members.replace(claim, blocks=sampled)
    found = compare(members.replayed(trained.share), claim)
    assert found.verdict is AuditVerdict.MISMATCH


def test_wrong_entries_are_counted_among_audited_blocks() -> None:
    trained = trained_share()
    name = outline_of_state(trained.state).place(residual_blocks()[1]).name
    entries = name.replace(RESIDUAL, VALUES)
    state = dict(trained.state)
    state[entries] = -state[entries]
    sample = residual_blocks()[1:2]
    claim = claim_of(trained.payloads, state, needed(sample))
    found = compare(members.replayed(trained.share), claim)
    audited = known_state(state, claim.blocks)
    rows = audited.rows(name) & audited.rows(entries)
    counted = re.search(r"the entries of (\d+) of (\d+) audited blocks differ", found.reason)
    assert counted is not None, found.reason
    assert int(counted[2]) == int(rows.sum()) < len(rows)
    assert 0 < int(counted[1]) <= int(counted[2])


def test_audit_without_all_moments_raises() -> None:
    trained = trained_share()
    claim = claim_of(trained.payloads, trained.state, needed(residual_blocks()[:1])[1:])
    with pytest.raises(ValueError, match="needs all moments"):
        compare(members.replayed(trained.share), claim)


def test_audit_without_entries_raises() -> None:
    trained = trained_share()
    sample = residual_blocks()[:1]
    outline = outline_of_state(trained.state)
    blocks = [
        index
        for index in needed(sample)
        if index in sample or not outline.place(index).name.startswith(RESULT)
    ]
    claim = claim_of(trained.payloads, trained.state, blocks)
    with pytest.raises(ValueError, match="with its entries"):
        compare(members.replayed(trained.share), claim)
