"""Ranks that the tests of a module use one after the other; the module's own `shape` says how many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from aftermath.ranks.group import Ranks
from ranks.rank_processes import Standing


@pytest.fixture(scope="module")
def standing(shape: tuple[int, int]) -> Iterator[Standing]:
    with ExitStack() as until:
        yield Standing(*shape, until)


@pytest.fixture
def ranks(standing: Standing) -> Ranks:
    return standing.ranks()
