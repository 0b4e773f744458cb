"""If the system stops a checkpoint at any byte, the previous checkpoint stays and no partial one
does.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from aftermath.model import save_checkpoint
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.checkpoint import load
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import CheckpointError
from aftermath.model.saved_checkpoints import saved_steps

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
    return save_checkpoint.save(
        directory, params, CONFIG, run_id="run", step=step, companions=COMPANIONS
    ).place


@contextmanager
def largest_file(limit: int) -> Iterator[None]:
    """Make the system refuse to write beyond `limit` bytes of any file."""
    # Python ignores SIGXFSZ, so the write fails with an error.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("shard", [10**9, SHARD], ids=["one file", "several files"])
def test_interrupted_save_leaves_previous_checkpoint_unchanged(
    shard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_checkpoint, "SHARD_BYTES", shard)
    directory = tmp_path / "kept"
    first = keep(directory, 1)
    before = {path: path.read_bytes() for path in first.iterdir()}
    alone = sorted(path.relative_to(directory) for path in directory.rglob("*"))
    sizes = sorted({len(data) for data in before.values()})
    limits = [0, *(size - 1 for size in sizes), *(size // 2 for size in sizes)]
    if shard == SHARD:
        weights = [len(data) for path, data in before.items() if path.suffix == ".safetensors"]
        assert any(min(weights) <= limit < max(weights) for limit in limits), (
            "a cut between two files of weights"
        )

    for limit in limits:
        with pytest.raises(CheckpointError) as refused, largest_file(limit):
            keep(directory, 2)
        assert refused.value.message.startswith(f"cannot write to {directory}: "), limit
        assert "File too large" in refused.value.message
        assert refused.value.fix is not None
        assert refused.value.fix.startswith("Allow larger files (ulimit -f)")
        assert sorted(path.relative_to(directory) for path in directory.rglob("*")) == alone, limit
    keep(directory, 2)
    assert {path: path.read_bytes() for path in first.iterdir()} == before
    second = saved_steps(directory, "run")[-1]
    assert sorted(directory.iterdir()) == [first, second]
    for step, place in ((1, first), (2, second)):
        expected = init_weights(CONFIG, step)
        assert all(torch.equal(tensor, expected[name]) for name, tensor in load(place, 0).items())
