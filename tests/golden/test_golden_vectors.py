"""A refactoring leaves the bytes and names in vectors.json unchanged."""

from __future__ import annotations

import json

import pytest

from golden.golden_vectors import PARTS, VECTORS

KEPT = json.loads(VECTORS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PARTS)
def test_golden_vector_recomputed_is_unchanged(name: str) -> None:
    assert json.loads(json.dumps(PARTS[name]())) == KEPT[name]


def test_golden_vectors_file_has_exactly_known_parts() -> None:
    assert list(KEPT) == list(PARTS)
