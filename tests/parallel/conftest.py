"""Rank processes shared by tests. The parameter `shape` (data, tensor) selects them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from aftermath.parallel.group import Ranks
from aftermath.parallel.launch import RankProcesses
from parallel.rank_processes import TWO, RankPool


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    pool = RankPool()
    yield pool
    pool.close()


@pytest.fixture
def shape() -> tuple[int, int]:
    """Two ranks that share the micro-batches, unless the test is parametrized with
    another shape.
    """
    return TWO


@pytest.fixture
def processes(rank_pool: RankPool, shape: tuple[int, int]) -> RankProcesses:
    return rank_pool.running(*shape)[0]


@pytest.fixture
def ranks(rank_pool: RankPool, shape: tuple[int, int]) -> Ranks:
    return rank_pool.running(*shape)[1]


@pytest.fixture
def no_ranks(rank_pool: RankPool) -> None:
    """Stop the ranks, so that the test can start its own: torch has one group of ranks per
    process.
    """
    rank_pool.close()


def _order(item: pytest.Item) -> tuple[tuple[int, int], bool]:
    """Sort by shape. Tests that end a rank come after all others that could use it."""
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    ends_ranks = item.path.name in ("test_parallel_launch.py", "test_parallel_out_of_memory.py")
    return parameters.get("shape", TWO), ends_ranks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests of this directory so that as few processes as possible start."""
    places = [
        number for number, item in enumerate(items) if item.nodeid.startswith("tests/parallel/")
    ]
    ordered = sorted((items[number] for number in places), key=_order)
    for number, item in zip(places, ordered, strict=True):
        items[number] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    pool = getattr(item, "funcargs", {}).get("rank_pool")
    if report.failed and pool is not None:
        pool.close()  # the ranks may still wait for the rest of a command
    return report
