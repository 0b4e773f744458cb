"""How many new identities a server accepts, and from where."""

from __future__ import annotations

import pytest

from aftermath.central.accounts import FIRST_OF_NETWORK, NEW_OF_ADDRESS, NEW_OF_ALL, NewIdentities
from aftermath.localnet.errors import RpcError

STRANGER = [f"2001:db8:{site:x}::/64" for site in range(100)]
MAPPED = [f"::ffff:203.0.{site}.7" for site in range(100)]


def accepted(new: NewIdentities, where: str, wanted: int) -> int:
    """Return how many of `wanted` new identities an address gets."""
    for count in range(wanted):
        try:
            new.count(where)
        except RpcError:
            return count
    return wanted


@pytest.mark.parametrize("sites", [STRANGER, MAPPED], ids=["IPv6", "IPv4 in IPv6"])
@pytest.mark.parametrize(
    ("newcomer", "enters"),
    [("198.51.100.1", True), ("2001:dead::/64", True), ("::ffff:198.51.100.1", True), ("", True), ("SAME", False)],
)
def test_newcomer_of_another_network_enters_after_strangers(sites: list[str], newcomer: str, enters: bool) -> None:
    new = NewIdentities(lambda: 0.0)
    assert sum(accepted(new, site, 500) for site in sites) == NEW_OF_ALL + FIRST_OF_NETWORK
    other = sites[0].replace("db8:0", "db8:ffff").replace("203.0.0", "203.0.200") if newcomer == "SAME" else newcomer
    assert accepted(new, other, 100) == (FIRST_OF_NETWORK if enters else 0)


def test_one_address_gets_its_own_allowance_and_more_with_time() -> None:
    now = 0.0
    new = NewIdentities(lambda: now)
    assert accepted(new, "203.0.113.1", 1000) == NEW_OF_ADDRESS
    now = 10.0
    assert accepted(new, "203.0.113.1", 10) == 1
