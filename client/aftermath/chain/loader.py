"""Build instructions of the upgradeable BPF loader, and parse its accounts.

Both are bincode: a u32 variant, then the fields, little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.sysvar import CLOCK, RENT

from aftermath.base.errors import AccountError
from aftermath.chain.node_client import AccountData

LOADER = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
BUFFER_HEADER = 37  # variant u32, Option<authority>
PROGRAM_SIZE = 36  # variant u32, programdata address
PROGRAMDATA_HEADER = 45  # variant u32, slot u64, Option<authority>

_INITIALIZE_BUFFER = 0
_WRITE = 1
_DEPLOY = 2
_UPGRADE = 3
_EXTEND = 6
_EXTEND_CHECKED = 9
_BUFFER = 1
_PROGRAM = 2
_PROGRAMDATA = 3
CALLS = {
    struct.pack("<I", variant): f"loader.{name}"
    for variant, name in (
        (_INITIALIZE_BUFFER, "initialize_buffer"),
        (_WRITE, "write"),
        (_DEPLOY, "deploy"),
        (_UPGRADE, "upgrade"),
        (_EXTEND, "extend"),
        (_EXTEND_CHECKED, "extend"),
    )
}
"""The names of its instructions by the bytes that their data begin with."""


@dataclass(frozen=True)
class StoredProgram:
    """A buffer or program data account: its authority (None: immutable), bytes, and last slot."""

    authority: Pubkey | None
    data: bytes
    slot: int = 0


def programdata_address(program: Pubkey) -> Pubkey:
    """Return the address of an upgradeable program's data account."""
    return Pubkey.find_program_address([bytes(program)], LOADER)[0]


def initialize_buffer(buffer: Pubkey, authority: Pubkey) -> Instruction:
    """Make a freshly created account a buffer."""
    return Instruction(
        LOADER, struct.pack("<I", _INITIALIZE_BUFFER), [_writes(buffer), _reads(authority)]
    )


def write(buffer: Pubkey, authority: Pubkey, offset: int, data: bytes) -> Instruction:
    """Put bytes into a buffer."""
    body = struct.pack("<IIQ", _WRITE, offset, len(data)) + data
    return Instruction(LOADER, body, [_writes(buffer), _signs(authority)])


def deploy(
    payer: Pubkey, program: Pubkey, buffer: Pubkey, authority: Pubkey, max_bytes: int
) -> Instruction:
    """Make a buffer a new program; `program` is an account of PROGRAM_SIZE owned by the loader."""
    accounts = [
        AccountMeta(payer, True, True),
        _writes(programdata_address(program)),
        _writes(program),
        _writes(buffer),
        _reads(RENT),
        _reads(CLOCK),
        _reads(SYSTEM_PROGRAM),
        _signs(authority),
    ]
    return Instruction(LOADER, struct.pack("<IQ", _DEPLOY, max_bytes), accounts)


def upgrade(program: Pubkey, buffer: Pubkey, authority: Pubkey, spill: Pubkey) -> Instruction:
    """Replace a program by a buffer; the buffer's rent goes to `spill`."""
    accounts = [
        _writes(programdata_address(program)),
        _writes(program),
        _writes(buffer),
        _writes(spill),
        _reads(RENT),
        _reads(CLOCK),
        _signs(authority),
    ]
    return Instruction(LOADER, struct.pack("<I", _UPGRADE), accounts)


def extend(program: Pubkey, authority: Pubkey, more: int) -> Instruction:
    """Give a program room for `more` bytes, paid by its authority."""
    accounts = [
        _writes(programdata_address(program)),
        _writes(program),
        AccountMeta(authority, True, True),
        _reads(SYSTEM_PROGRAM),
        AccountMeta(authority, True, True),
    ]
    return Instruction(LOADER, struct.pack("<II", _EXTEND_CHECKED, more), accounts)


def extend_unchecked(program: Pubkey, payer: Pubkey, more: int) -> Instruction:
    """Extend a program on clusters without the checked form, which refuse that one with
    InvalidInstructionData.
    """
    accounts = [
        _writes(programdata_address(program)),
        _writes(program),
        _reads(SYSTEM_PROGRAM),
        AccountMeta(payer, True, True),
    ]
    return Instruction(LOADER, struct.pack("<II", _EXTEND, more), accounts)


def parse_buffer(account: AccountData) -> StoredProgram:
    """Return a buffer account's contents. Raises AccountError if it is not a buffer."""
    return _parse(account, _BUFFER, "<I", BUFFER_HEADER, "buffer")


def parse_programdata(account: AccountData) -> StoredProgram:
    """Return a program data account's contents. Raises AccountError if it is not one."""
    return _parse(account, _PROGRAMDATA, "<IQ", PROGRAMDATA_HEADER, "program data account")


def _parse(account: AccountData, variant: int, head: str, size: int, kind: str) -> StoredProgram:
    raw = account.data
    if account.owner != LOADER or len(raw) < size or struct.unpack_from("<I", raw)[0] != variant:
        raise AccountError(f"the account is not a {kind} of the upgradeable loader")
    at = struct.calcsize(head)
    authority = Pubkey(raw[at + 1 : at + 33]) if raw[at] == 1 else None
    return StoredProgram(
        authority, raw[size:], struct.unpack_from("<Q", raw, 4)[0] if variant == _PROGRAMDATA else 0
    )


def _writes(address: Pubkey) -> AccountMeta:
    return AccountMeta(address, False, True)


def _reads(address: Pubkey) -> AccountMeta:
    return AccountMeta(address, False, False)


def _signs(address: Pubkey) -> AccountMeta:
    return AccountMeta(address, True, False)
