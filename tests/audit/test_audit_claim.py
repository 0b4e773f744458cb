"""Test which blocks an audit needs, and that audits of a few blocks of the residual work."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from aftermath.audit.claim import RESIDUAL, RESULT, blocks_to_fetch, claim_of, outline_of_state
from aftermath.audit.comparison import AuditVerdict, compare
from aftermath.optim.engine import outline_of
from aftermath.rules.sparseloco import SparseLoCo
from audit.audited_rounds import members

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
