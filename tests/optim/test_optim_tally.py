"""Votes are counted the same way however many there are."""

from __future__ import annotations

from collections import defaultdict

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aftermath.optim.tally import tally


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 400), st.lists(st.tuples(st.integers(0, 399), st.integers(-(2**44), 2**44)), max_size=60))
def test_sums_and_counts_are_those_of_a_dictionary(span: int, votes: list[tuple[int, int]]) -> None:
    """From one vote for hundreds of places to many for each."""
    kept = defaultdict(list)
    for place, integer in votes:
        kept[place % span].append(integer)
    positions = torch.tensor([place % span for place, _ in votes], dtype=torch.int64)
    found, sums, counts = tally(positions, torch.tensor([integer for _, integer in votes], dtype=torch.int64))
    assert found.tolist() == sorted(kept)
    assert sums.tolist() == [sum(kept[place]) for place in found.tolist()]
    assert counts.tolist() == [len(kept[place]) for place in found.tolist()]
    assert found.dtype == sums.dtype == counts.dtype == torch.int64
