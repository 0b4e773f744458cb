"""What a change of structure must not alter is as vectors.json has it."""

from __future__ import annotations

import json

import pytest

from golden.golden_vectors import PARTS, VECTORS

KEPT = json.loads(VECTORS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PARTS)
def test_golden_vector_recomputed_is_unchanged(name: str) -> None:
    assert json.loads(json.dumps(PARTS[name]())) == KEPT[name]


def test_golden_vectors_have_no_part_that_is_not_recomputed() -> None:
    assert list(KEPT) == list(PARTS)
