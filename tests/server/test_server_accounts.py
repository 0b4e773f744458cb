"""The rate limits of new identities."""

from __future__ import annotations

from aftermath.localnet.errors import JsonRpcError
from aftermath.server.account_funding import (
    MAX_ADDRESSES,
    NEW_IN_TOTAL,
    NEW_PER_ADDRESS,
    NewIdentities,
)


def accepted(new: NewIdentities, address: str, requested: int) -> int:
    """Return how many new identities an address gets of those that it requests."""
    for count in range(requested):
        try:
            new.count(address)
        except JsonRpcError:
            return count
    return requested


def test_new_identities_per_address_are_limited() -> None:
    now = 0.0
    new = NewIdentities(lambda: now)
    assert accepted(new, "203.0.113.1", 1000) == NEW_PER_ADDRESS
    assert accepted(new, "203.0.113.2", 10) == 10
    now = 10.0
    assert accepted(new, "203.0.113.1", 10) == 1


def test_new_identities_in_total_are_limited() -> None:
    new = NewIdentities(lambda: 0.0)
    counts = [accepted(new, f"203.0.113.{number}", 500) for number in range(10)]
    assert sum(counts) == NEW_IN_TOTAL
    assert counts[0] == NEW_PER_ADDRESS


def test_new_identities_forget_oldest_addresses() -> None:
    new = NewIdentities(lambda: 0.0)
    for number in range(MAX_ADDRESSES + 10):
        accepted(new, str(number), 1)
    assert len(new._by_address) == MAX_ADDRESSES
