"""Tests that a tier file that nests too deeply is refused like one that is not JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.cli.model_init import _entries
from aftermath.model.json_documents import CheckpointError


def test_deeply_nested_entries_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "entries.json"
    file.write_text("[" * 50_000)
    with pytest.raises(CheckpointError, match="not JSON"):
        _entries(file)
