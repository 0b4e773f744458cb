"""A checkpoint that the operating system cuts off anywhere: the one before it stays, and nothing half-written does."""

from __future__ import annotations

import multiprocessing
import resource
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from aftermath.model import store
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.checkpoint import load
from aftermath.model.documents import CheckpointError
from aftermath.model.initial import init_weights
from aftermath.model.steps import saved_steps

torch.set_num_threads(1)

SHARD = 6_000
CONFIG = LlamaConfig.from_hf(
    {
        "vocab_size": 16,
        "hidden_size": 16,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
)
COMPANIONS = {"tokenizer.json": b"{}" * 6_000}


def keep(directory: Path, step: int) -> Path:
    params = init_weights(CONFIG, step)
    return store.save(directory, params, CONFIG, run_id="run", step=step, companions=COMPANIONS).place


def _save_limited(directory: Path, shard: int, limits: list[int], said: Connection) -> None:
    """Save step 2 with files of so many bytes at most, for each limit in turn, and then without one."""
    store.SHARD_BYTES = shard
    for limit in [*limits, resource.RLIM_INFINITY]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            keep(directory, 2)
            told: Any = None
        except CheckpointError as error:
            told = error.message, error.fix
        said.send((told, sorted(path.relative_to(directory) for path in directory.rglob("*"))))


@pytest.mark.parametrize("shard", [10**9, SHARD], ids=["one file", "several files"])
def test_a_checkpoint_that_is_cut_off_anywhere_leaves_the_one_before_alone(
    shard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SHARD_BYTES", shard)
    directory = tmp_path / "kept"
    first = keep(directory, 1)
    before = {path: path.read_bytes() for path in first.iterdir()}
    alone = sorted(path.relative_to(directory) for path in directory.rglob("*"))
    sizes = sorted({len(data) for data in before.values()})
    limits = [0, *(size - 1 for size in sizes), *(size // 2 for size in sizes)]
    if shard == SHARD:
        weights = [len(data) for path, data in before.items() if path.suffix == ".safetensors"]
        assert any(min(weights) <= limit < max(weights) for limit in limits), "a cut between two files of weights"

    ours, theirs = multiprocessing.Pipe()
    given = directory, shard, limits, theirs
    child = multiprocessing.get_context("spawn").Process(target=_save_limited, args=given, daemon=True)
    child.start()
    theirs.close()  # or a child that dies without a word is waited for for ever
    for limit in limits:
        told, left = ours.recv()
        assert told is not None, limit
        message, fix = told
        assert message.startswith(f"cannot write to {directory}: "), message
        assert "File too large" in message
        assert fix.startswith("Allow larger files (ulimit -f)")
        assert left == alone
    told, _ = ours.recv()
    child.join()
    assert told is None
    assert {path: path.read_bytes() for path in first.iterdir()} == before
    second = saved_steps(directory, "run")[-1]
    assert sorted(directory.iterdir()) == [first, second]
    for step, place in ((1, first), (2, second)):
        expected = init_weights(CONFIG, step)
        assert all(torch.equal(tensor, expected[name]) for name, tensor in load(place, 0).items())
