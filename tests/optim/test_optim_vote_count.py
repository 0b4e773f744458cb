"""Counting of votes: equal results for few and many votes."""

from __future__ import annotations

from collections import defaultdict

import torch
from hypothesis import given
from hypothesis import strategies as st

from aftermath.optim.lattice import LARGEST, LEAST, MOST
from aftermath.optim.level_votes import Votes
from aftermath.optim.vote_count import tally, tally_multiples


@given(
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 399), st.integers(-(2**44), 2**44)), max_size=60),
)
def test_tally_equals_a_dictionary_count(span: int, votes: list[tuple[int, int]]) -> None:
    """Cases range from one vote per hundreds of positions to many votes per position."""
    integers_by_place = defaultdict(list)
    for place, integer in votes:
        integers_by_place[place % span].append(integer)
    positions = torch.tensor([place % span for place, _ in votes], dtype=torch.int64)
    places, sums, counts = tally(
        positions, torch.tensor([integer for _, integer in votes], dtype=torch.int64)
    )
    assert places.tolist() == sorted(integers_by_place)
    assert sums.tolist() == [sum(integers_by_place[place]) for place in places.tolist()]
    assert counts.tolist() == [len(integers_by_place[place]) for place in places.tolist()]
    assert places.dtype == sums.dtype == counts.dtype == torch.int64


@st.composite
def _lattice_votes(draw: st.DrawFn) -> list[Votes]:
    """Draw votes of one to five peers, as integers or shifted bytes. Some share positions."""
    span = draw(st.integers(1, 60))
    sets = [
        torch.tensor(
            draw(st.permutations(sorted(draw(st.sets(st.integers(0, span - 1)))))),
            dtype=torch.int64,
        )
        for _ in range(2)
    ]
    votes = []
    for _ in range(draw(st.integers(1, 5))):
        positions = draw(st.sampled_from(sets))
        count = len(positions)
        units = torch.tensor(
            draw(st.lists(st.sampled_from([-3, -1, 1, 3]), min_size=count, max_size=count))
        )
        shifts = torch.tensor(
            draw(st.lists(st.integers(0, MOST - LEAST), min_size=count, max_size=count))
        )
        if draw(st.booleans()):
            votes.append(Votes(0, positions, units.to(torch.int8), shifts.to(torch.uint8)))
        else:
            votes.append(Votes(0, positions, units.long() << shifts.long()))
    return votes


@given(_lattice_votes(), st.integers(1, LARGEST))
def test_tally_of_lattice_votes_sums_their_integers(votes: list[Votes], most: int) -> None:
    """Cases have few or many votes, shared positions or not, in both forms. Counting does not
    change the votes.
    """
    before = [(vote.values.clone(), vote.shifts) for vote in votes]
    places, sums, counts = tally_multiples(votes, most)
    values_by_place = defaultdict(list)
    for vote in votes:
        for place, value in zip(vote.positions.tolist(), vote.multiples().tolist(), strict=True):
            values_by_place[place].append(max(-most, min(most, value)))
    assert places.tolist() == sorted(values_by_place)
    assert sums.tolist() == [sum(values_by_place[place]) for place in places.tolist()]
    assert counts.tolist() == [len(values_by_place[place]) for place in places.tolist()]
    assert all(torch.equal(vote.values, was) for vote, (was, _) in zip(votes, before, strict=True))
