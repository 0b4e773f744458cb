"""The accounts of a message in order: its own keys, then those that address lookup tables add.

Decided: the writable positions follow from the header alone; demoting program ids to read-only, as agave does, would
only make the list of accounts to look at after execution shorter.
"""

from __future__ import annotations

from collections.abc import Callable

from solders.account import Account
from solders.address_lookup_table_account import AddressLookupTable
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey

LOOKUP_PROGRAM_ID = Pubkey.from_string("AddressLookupTab1e1111111111111111111111111")


class LookupFailed(Exception):
    """A lookup table cannot be used; `error` is the TransactionError's name."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


def account_keys(
    message: Message | MessageV0, account: Callable[[Pubkey], Account | None]
) -> tuple[list[Pubkey], list[int], tuple[int, int]]:
    """(all keys, positions of the writable ones, how many were loaded writable and read-only)."""
    keys = list(message.account_keys)
    header = message.header
    signed_writable = header.num_required_signatures - header.num_readonly_signed_accounts
    plain_writable = len(keys) - header.num_readonly_unsigned_accounts
    writable = [*range(signed_writable), *range(header.num_required_signatures, plain_writable)]
    if not isinstance(message, MessageV0) or not message.address_table_lookups:
        return keys, writable, (0, 0)
    loaded_writable: list[Pubkey] = []
    loaded_readonly: list[Pubkey] = []
    for lookup in message.address_table_lookups:
        addresses = _table(account(lookup.account_key))
        try:
            loaded_writable += [addresses[index] for index in lookup.writable_indexes]
            loaded_readonly += [addresses[index] for index in lookup.readonly_indexes]
        except IndexError:
            raise LookupFailed("InvalidAddressLookupTableIndex") from None
    writable += range(len(keys), len(keys) + len(loaded_writable))
    return keys + loaded_writable + loaded_readonly, writable, (len(loaded_writable), len(loaded_readonly))


def _table(account: Account | None) -> list[Pubkey]:
    if account is None:
        raise LookupFailed("AddressLookupTableNotFound")
    if account.owner != LOOKUP_PROGRAM_ID:
        raise LookupFailed("InvalidAddressLookupTableOwner")
    try:
        return AddressLookupTable.deserialize(account.data).addresses
    except Exception:
        raise LookupFailed("InvalidAddressLookupTableData") from None
