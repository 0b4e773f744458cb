"""Test that copies are kept in memory or in a file, and have the same contents in both."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aftermath.replica import mapped_tensors
from aftermath.replica.mapped_tensors import mapped_if_large

TENSORS = {
    "matrix": torch.arange(12.0).view(3, 4),
    "count": torch.tensor(7),
    "none": torch.empty(0, 4),
}


def test_small_copies_stay_in_memory(tmp_path: Path) -> None:
    assert mapped_if_large(TENSORS, 3, tmp_path / "copies") is TENSORS
    assert not (tmp_path / "copies").exists()


@pytest.mark.parametrize(("copies", "is_mapped"), [(1, False), (2, True)])
def test_all_copies_together_must_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int, is_mapped: bool
) -> None:
    size = sum(tensor.nbytes for tensor in TENSORS.values())
    monkeypatch.setattr(mapped_tensors, "MEMORY", size)
    assert (mapped_if_large(TENSORS, copies, tmp_path) is not TENSORS) == is_mapped


def test_mapped_copy_is_equal_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_tensors, "MEMORY", 0)
    mapped = mapped_if_large(TENSORS, 1, tmp_path / "copies")
    assert not list((tmp_path / "copies").iterdir())
    assert mapped.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(mapped[name], tensor)
        assert mapped[name].dtype == tensor.dtype


def test_copies_without_directory_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_tensors, "MEMORY", 0)
    assert mapped_if_large(TENSORS, 1, None) is TENSORS


def test_unwritable_directory_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_tensors, "MEMORY", 0)
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        mapped_if_large(TENSORS, 1, tmp_path / "file")
