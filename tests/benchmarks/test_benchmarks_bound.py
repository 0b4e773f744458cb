"""What blocks take beyond the fewest bits: the count, what is left out of it, and that the kept figures are its."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from aftermath.optim.format import Values
from benchmarks.test_benchmarks_worth import module

codec = module("distro") and module("codec")
bound = module("bound")
KEPT = Path(__file__).parents[2] / "benchmarks/measured/bound.json"


@pytest.mark.parametrize("values", bound.KINDS.values())
def test_the_fewest_are_those_of_the_count_one_by_one(values: Values) -> None:
    each, exponents = (1 << values.lattice_bits, codec.MOST - codec.LEAST + 1) if values.lattice_bits else (2, 1)
    assert list(bound.fewest(9, values)) == [codec.log2_messages(9, kept, each, exponents) for kept in range(1, 10)]


@pytest.mark.parametrize("values", bound.KINDS.values())
@pytest.mark.parametrize("edges", bound.EDGES.values())
def test_a_blocks_bits_have_nothing_of_the_last_byte_of_a_level(
    edges: tuple[int, ...], values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [1, 3, 43, 64]
    found = [bound.bits_of(edges, kept, values) for kept in counts]
    monkeypatch.setattr(bound, "TOGETHER", 7 * bound.TOGETHER)
    assert found == [bound.bits_of(edges, kept, values) for kept in counts]


def test_what_is_far_is_told_by_where_it_begins_and_ends() -> None:
    found = bound.summary([0.5, 0.4, 0.031, 0.02, 0.04, 0.05, 0.03])
    assert found == {"one": 0.5, "two": 0.4, "most": 0.05, "at": 6, "far": [[3, 3], [5, 6]]}


def test_the_figures_of_a_vectors_blocks_and_of_a_model_are_those_that_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bound.py", "--blocks", "64", "--json"])
    bound.main()
    kept = json.loads(KEPT.read_text())["figures"]
    assert json.loads(capsys.readouterr().out) == {"64": kept["64"], "model": kept["model"]}
