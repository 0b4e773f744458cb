"""Text helpers."""

from __future__ import annotations

import pytest

from aftermath.base.text import shortage


@pytest.mark.parametrize(
    ("needed", "free", "texts"),
    [
        (9_400_001, 9_400_000, ("9.5 MB", "9.4 MB")),
        (9_400_000, 9_399_999, ("9.4 MB", "9.3 MB")),
        (2_000_000_001, 1_999_999_999, ("2.1 GB", "1.9 GB")),
        (1_234_000_000_000, 5, ("1,234.0 GB", "0.0 GB")),
    ],
)
def test_shortage_of_few_bytes_shows_different_sizes(
    needed: int, free: int, texts: tuple[str, str]
) -> None:
    assert shortage(needed, free) == texts
