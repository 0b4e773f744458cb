"""Blocks of the private state: the schema determines them, and the root depends on every bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.base.merkle import block_digest
from aftermath.optim import state_merkle
from aftermath.optim.engine import outline_of
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.state_merkle import (
    StateOutline,
    block_of,
    digests_of,
    digests_of_summaries,
    outline,
    summary_of,
    tree_of,
)
from optim.private_states import OPTIMIZERS, trained


@pytest.mark.parametrize("tier", range(3))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_schema_determines_the_blocks(name: str, tier: int) -> None:
    schema, engine = trained(OPTIMIZERS[name], tier)
    state = engine.state_tensors()
    assert outline_of(schema, tier) == outline(
        {name: tensor.nbytes for name, tensor in state.items()}
    )
    assert outline_of(schema, tier).count == len(tree_of(state))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_root_is_equal_for_any_number_of_threads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_merkle, "BLOCK", 256)
    monkeypatch.setattr(state_merkle, "_PIECE", 1024)
    _, engine = trained(OPTIMIZERS[name], 0)
    state = engine.state_tensors()
    parts = outline({name: tensor.nbytes for name, tensor in state.items()})
    roots = set()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        roots.add(tree_of(state).root)
    tree = tree_of(engine.state())
    assert roots == {tree.root}, "copies have the root of what they are copies of"
    assert parts.count == len(tree) > len(state)
    for index in range(parts.count):
        block = block_of(state, parts.place(index))
        assert len(block) == parts.place(index).size <= 256
        assert block_digest(block) == tree.digest(index)
    whole = b"".join(block_of(state, parts.place(index)) for index in range(parts.count))
    assert whole == b"".join(tensor.numpy().tobytes() for _, tensor in sorted(state.items()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_root_changes_with_every_tensor_and_round(name: str) -> None:
    _, engine = trained(OPTIMIZERS[name], 1)
    state = engine.state()
    root = tree_of(state).root
    for key, tensor in state.items():
        changed: dict[str, Any] = {**state, key: tensor.clone()}
        changed[key].view(-1)[-1] += 1
        assert tree_of(changed).root != root, key
    assert tree_of(trained(OPTIMIZERS[name], 1)[1].state_tensors()).root == root, (
        "the same training has the same"
    )
    assert tree_of(trained(OPTIMIZERS[name], 1, rounds=2)[1].state_tensors()).root != root


def test_cancelled_share_leaves_the_root_unchanged() -> None:
    for settings in OPTIMIZERS.values():
        _, engine = trained(settings, 1)
        root = tree_of(engine.state_tensors()).root

        def fails(part: Tensor) -> float:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            engine.train(torch.zeros(2, 16, dtype=torch.int64), fails, 1e-3, 1e-3)
        assert tree_of(engine.state_tensors()).root == root


def test_no_block_has_bytes_of_two_tensors() -> None:
    parts = StateOutline((("a", state_merkle.BLOCK + 4), ("b", 8), ("c", state_merkle.BLOCK)))
    places = [parts.place(index) for index in range(parts.count)]
    assert [(place.name, place.size) for place in places] == [
        ("a", state_merkle.BLOCK),
        ("a", 4),
        ("b", 8),
        ("c", state_merkle.BLOCK),
    ]
    assert parts.size == sum(place.size for place in places)
    for index in (-1, 4):
        with pytest.raises(IndexError):
            parts.place(index)
    assert outline({"x": 0}).count == 0


def test_remembered_state_shares_memory() -> None:
    """`state_tensors` returns the tensors themselves, so a large state is hashed without a copy."""
    _, engine = trained(OPTIMIZERS["distro"], 0)
    result = engine._result
    assert isinstance(result, ErrorFeedback)
    for name, tensor in engine.state_tensors().items():
        kind, level, group = name.removeprefix("result.").split(".")
        own = result._residuals[int(level)][int(group)]
        if kind == "residual":
            assert tensor.data_ptr() == own.data_ptr()
    assert all(
        engine.state()[name].data_ptr() != t.data_ptr()
        for name, t in engine.state_tensors().items()
    )


@pytest.mark.parametrize("size", [8, 256, 264, 1000, 4096])
def test_summaries_of_runs_give_the_block_digests(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs have any length and start anywhere."""
    monkeypatch.setattr(state_merkle, "BLOCK", 256)
    whole = torch.arange(size // 4, dtype=torch.float32)
    expected = digests_of({"x": whole})
    for step in (1, 3, 30, 63, 64, 65, 128, 1024):
        runs = []
        for part, first in zip(whole.split(step), range(0, size // 4, step), strict=True):
            start = 4 * first
            stop = 4 * (first + len(part))
            summary = summary_of(part, start, size)
            runs.append((start, stop, summary))
        assert digests_of_summaries(runs, size) == expected
