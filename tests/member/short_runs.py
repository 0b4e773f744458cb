"""The rules of a simulated run that is as short as most tests allow."""

from __future__ import annotations

import pytest

SHORT = {"rounds_per_epoch": 3, "total_steps": 6}
"""Two epochs of three rounds. Members of tiers 0, 1 and 2 then compare 3 hashes after each step and
epoch: 24.
"""

ALONE = {**SHORT, "min_clients": 1, "init_min_clients": 1}
"""A short run with one member."""

EITHER_OVERLAP = [
    pytest.param(0, marks=pytest.mark.nightly),
    pytest.param(1, marks=pytest.mark.slow),
]
"""Slow tests train the next round while results are on their way; nightly ones wait for them."""
