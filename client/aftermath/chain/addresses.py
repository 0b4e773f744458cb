"""Derive the addresses of a run's accounts and of an authorization."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from solders.pubkey import Pubkey

from aftermath.base.errors import UsageError
from aftermath.rules.limits import RUN_ID_BYTES

CLOCK = Pubkey.from_string("SysvarC1ock11111111111111111111111111111111")
ED25519 = Pubkey.from_string("Ed25519SigVerify111111111111111111111111111")
INSTRUCTIONS = Pubkey.from_string("Sysvar1nstructions1111111111111111111111111")
INCINERATOR = Pubkey.from_string("1nc1nerator11111111111111111111111111111111")
SLOT_HASHES = Pubkey.from_string("SysvarS1otHashes111111111111111111111111111")
JOIN_SCOPE = b"CoordinatorJoinRun"
"""The scope of an authorization for all runs of a join authority. An authorization for one run has
that run's address instead.
"""
EVERYONE = Pubkey.default()
"""The grantee of an authorization that admits any wallet."""

_RUN_IDS: dict[Pubkey, str] = {}
"""Run ids by address, for error messages: a run's id cannot be read from its address."""


@dataclass(frozen=True)
class RunAddresses:
    """The four accounts of a run."""

    run: Pubkey
    model: Pubkey
    members: Pubkey
    witnesses: Pubkey


@cache
def run_addresses(program: Pubkey, run_id: str) -> RunAddresses:
    """Return the account addresses of `run_id`. Raises UsageError like `run_seed`."""
    seed = run_seed(run_id)
    names = (b"run", b"model", b"members", b"witnesses")
    addresses = RunAddresses(
        *(Pubkey.find_program_address([name, seed], program)[0] for name in names)
    )
    _RUN_IDS[addresses.run] = run_id
    return addresses


def run_seed(run_id: str) -> bytes:
    """Return a run id as bytes. Raises UsageError if it is not a valid run id."""
    try:
        seed = run_id.encode()
    except UnicodeEncodeError:  # the terminal sent bytes that are not UTF-8
        raise UsageError("the run id is not text", "Pass it in UTF-8") from None
    if not 1 <= len(seed) <= RUN_ID_BYTES or 0 in seed:
        raise UsageError(
            f"{run_id!r} is not a valid run id",
            f"Use 1 to {RUN_ID_BYTES} bytes without a zero byte",
        )
    return seed


def run_id_among(accounts: Iterable[Pubkey]) -> str | None:
    """Return the id of the run that one of these accounts belongs to, or None if it is unknown.

    Only runs whose addresses this process has derived are known.
    """
    return next((_RUN_IDS[account] for account in accounts if account in _RUN_IDS), None)


@cache
def membership_address(program: Pubkey, run: Pubkey, created: int, wallet: Pubkey) -> Pubkey:
    """Return the address of `wallet`'s membership in the run that was created at slot `created`."""
    seeds = [b"membership", bytes(run), created.to_bytes(8, "little"), bytes(wallet)]
    return Pubkey.find_program_address(seeds, program)[0]


@cache
def authorization_address(
    program: Pubkey, grantor: Pubkey, grantee: Pubkey, scope: bytes = JOIN_SCOPE
) -> Pubkey:
    """Return the address of the authorization that `grantor` gave `grantee` for `scope`."""
    seeds = [b"authorization", bytes(grantor), bytes(grantee), scope]
    return Pubkey.find_program_address(seeds, program)[0]
