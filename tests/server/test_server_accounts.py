"""How many new identities a server accepts, and from where."""

from __future__ import annotations

from aftermath.localnet.errors import JsonRpcError
from aftermath.server.accounts import NEW_OF_ADDRESS, NEW_OF_ALL, REMEMBERED, NewIdentities


def accepted(new: NewIdentities, address: str, wanted: int) -> int:
    """Return how many of the wanted new identities an address gets."""
    for count in range(wanted):
        try:
            new.count(address)
        except JsonRpcError:
            return count
    return wanted


def test_new_identities_of_one_address_have_a_limit() -> None:
    now = 0.0
    new = NewIdentities(lambda: now)
    assert accepted(new, "203.0.113.1", 1000) == NEW_OF_ADDRESS
    assert accepted(new, "203.0.113.2", 10) == 10
    now = 10.0
    assert accepted(new, "203.0.113.1", 10) == 1


def test_new_identities_of_all_addresses_have_a_limit() -> None:
    new = NewIdentities(lambda: 0.0)
    taken = [accepted(new, f"203.0.113.{number}", 500) for number in range(10)]
    assert sum(taken) == NEW_OF_ALL
    assert taken[0] == NEW_OF_ADDRESS


def test_new_identities_forget_the_oldest_addresses() -> None:
    new = NewIdentities(lambda: 0.0)
    for number in range(REMEMBERED + 10):
        accepted(new, str(number), 1)
    assert len(new._of_address) == REMEMBERED
