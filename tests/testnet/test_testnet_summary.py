"""The line with which a local testnet ends."""

from __future__ import annotations

from typing import Any

import pytest

from aftermath.testnet.run import Ending, Summary


def summary(**given: Any) -> Summary:
    values: dict[str, Any] = {
        "ending": Ending.FINISHED,
        "steps": 5,
        "total_steps": 5,
        "clients": 3,
        "tiers": [0, 1, 2],
        "kills": 1,
        "failed": [],
        "loss_first": 4.9,
        "loss_last": 3.15,
        "comparisons": 20,
        "differing": [],
        "seconds": 135.0,
        "directory": "runs/local-testnet",
    }
    return Summary(**values | given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {},
            "3 clients of tiers 0, 1, 2, 1 kill, loss 4.900 to 3.150, replicas identical in 20 comparisons;",
        ),
        (
            {"clients": 1, "tiers": [0], "kills": 0, "comparisons": 0},
            "1 client of tier 0, 0 kills, loss 4.900 to 3.150, no two replicas to compare;",
        ),
        ({"differing": ["level 1 after step 3"]}, "REPLICAS DIFFER: level 1 after step 3;"),
        ({"comparisons": 0, "differing": ["x"]}, "REPLICAS DIFFER: x;"),
        ({"failed": ["client-2"]}, "ended with an error: client-2;"),
    ],
)
def test_summary_line_counts_members_and_steps(given: dict[str, Any], says: str) -> None:
    assert says in summary(**given).line()
