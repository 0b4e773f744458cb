"""Where the programs' accounts are: program-derived addresses of a run and of an authorization."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from solders.pubkey import Pubkey

from aftermath.run.errors import ChainError

RUN_ID_BYTES = 32
CLOCK = Pubkey.from_string("SysvarC1ock11111111111111111111111111111111")
SLOT_HASHES = Pubkey.from_string("SysvarS1otHashes111111111111111111111111111")
JOIN_SCOPE = b"CoordinatorJoinRun"
EVERYONE = Pubkey.default()
"""As grantee: the authorization admits any wallet."""


@dataclass(frozen=True)
class RunAddresses:
    """The four accounts of a run."""

    run: Pubkey
    model: Pubkey
    members: Pubkey
    witnesses: Pubkey


@cache
def run_addresses(program: Pubkey, run_id: str) -> RunAddresses:
    """The accounts of `run_id`. Raises ChainError when the id cannot be a run's (1 to 32 bytes, no zero byte)."""
    seed = run_id.encode()
    if not 1 <= len(seed) <= RUN_ID_BYTES or 0 in seed:
        raise ChainError(f"{run_id!r} cannot be a run id", f"a run id has 1 to {RUN_ID_BYTES} bytes and no zero byte")
    names = (b"run", b"model", b"members", b"witnesses")
    return RunAddresses(*(Pubkey.find_program_address([name, seed], program)[0] for name in names))


@cache
def authorization_address(program: Pubkey, grantor: Pubkey, grantee: Pubkey, scope: bytes = JOIN_SCOPE) -> Pubkey:
    """The account that says `grantor` lets `grantee` do `scope`."""
    seeds = [b"authorization", bytes(grantor), bytes(grantee), scope]
    return Pubkey.find_program_address(seeds, program)[0]
