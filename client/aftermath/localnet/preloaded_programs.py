"""Programs that are given at the start, laid out as `solana-test-validator --bpf-program` does.

Account formats are those of bpf_loader_upgradeable (bincode). A program account holds u32 2 and
its data's address. A program-data account holds u32 3, the u64 slot, Option<authority>, padding
to 45 bytes, then the ELF. There is no upgrade authority.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from solders.account import Account
from solders.pubkey import Pubkey

from aftermath.localnet.errors import LocalnetError

LOADER_ID = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
PROGRAM_BYTES = 36
METADATA_BYTES = 45
MAX_PROGRAM_BYTES = 10 * 1024 * 1024

_PROGRAM = 2
_PROGRAM_DATA = 3


def program_data_address(program_id: Pubkey) -> Pubkey:
    return Pubkey.find_program_address([bytes(program_id)], LOADER_ID)[0]


def read_program(path: Path) -> bytes:
    """Return the ELF at `path`. Raise LocalnetError if it is missing, too large or not an ELF."""
    try:
        size = path.stat().st_size
        if size > MAX_PROGRAM_BYTES:
            raise LocalnetError(f"{path} has {size} bytes; a program may have {MAX_PROGRAM_BYTES}")
        elf = path.read_bytes()
    except OSError as error:
        raise LocalnetError(
            f"the program {path} cannot be read: {error.strerror}", "Pass ID=FILE with a built .so"
        ) from None
    if elf[:4] != b"\x7fELF":
        raise LocalnetError(
            f"{path} is not a compiled program (no ELF header)", "Pass the .so that the build wrote"
        )
    return elf


def preloaded(
    program_id: Pubkey, elf: bytes, rent: Callable[[int], int]
) -> list[tuple[Pubkey, Account]]:
    """Return the program-data and program accounts, in loading order.

    `rent` gives the minimum balance of a data length.
    """
    address = program_data_address(program_id)
    metadata = struct.pack("<IQB", _PROGRAM_DATA, 0, 0).ljust(METADATA_BYTES, b"\0")
    program = struct.pack("<I", _PROGRAM) + bytes(address)
    return [
        (address, Account(rent(METADATA_BYTES + len(elf)), metadata + elf, LOADER_ID, False)),
        (program_id, Account(rent(PROGRAM_BYTES), program, LOADER_ID, True)),
    ]


def program_data_of(account: Account) -> Pubkey | None:
    """Return the program-data address of a program of the upgradeable loader, else None."""
    data = account.data
    if (
        account.owner != LOADER_ID
        or len(data) < PROGRAM_BYTES
        or data[:4] != struct.pack("<I", _PROGRAM)
    ):
        return None
    return Pubkey(data[4:36])


def elf_of(program_data: Account | None) -> bytes | None:
    """Return the code in a program-data account, or None if it is closed or another account."""
    if program_data is None or program_data.data[:4] != struct.pack("<I", _PROGRAM_DATA):
        return None
    return program_data.data[METADATA_BYTES:]


def is_upgradeable(program_data: Account) -> bool:
    """Return whether the program has an upgrade authority: a transaction deployed it."""
    return program_data.data[:4] == struct.pack("<I", _PROGRAM_DATA) and program_data.data[12] == 1
