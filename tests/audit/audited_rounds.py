"""Honest shares to audit, and the attackers of `benchmarks/audited_members.py`."""

from __future__ import annotations

from functools import cache
from typing import Any

from benchmarks.test_benchmarks_worth import module

members: Any = module("audited_members")
ROUNDS = 3
CASES = [*members.OPTIMIZERS, *(f"{name}-overlapped" for name in members.OPTIMIZERS)]
"""Optimizers without overlap, and with an overlap of 1."""


@cache
def shares(case: str) -> list[Any]:
    """Return all shares of a run."""
    name, _, overlapped = case.partition("-")
    overlap = int(bool(overlapped))
    return list(members.honest_shares(members.OPTIMIZERS[name], ROUNDS, overlap=overlap))


def last_share(case: str, tier: int = 0) -> Any:
    """Return a member's last share of a run (`TrainedShare`)."""
    return next(trained for trained in reversed(shares(case)) if trained.share.tier == tier)
