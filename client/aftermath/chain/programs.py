"""The two programs as anchorpy sees them, loaded once from the packaged IDLs, at the ids given or the packaged ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from anchorpy.error import AccountInvalidDiscriminator
from anchorpy.program.context import Context
from construct import ConstructError
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from aftermath.base.errors import AccountError
from aftermath.chain.arguments import complete
from aftermath.chain.idl import ProgramIdl, load_idl
from aftermath.chain.refusals import Errors
from aftermath.coordinator.errors import CoordinatorError
from aftermath.programs import AUTHORIZER_IDL, COORDINATOR_IDL


class AnchorProgram:
    """Builds the instructions of one program. Arguments and accounts go by name and are checked against the IDL."""

    def __init__(self, idl: ProgramIdl, program_id: Pubkey | None = None) -> None:
        self.id = program_id or idl.address
        self.errors = idl.errors
        self.calls = {_discriminator(i["name"]): f"{idl.name}.{i['name']}" for i in idl.legacy["instructions"]}
        """The names of its instructions by the bytes that their data begin with."""
        self._program = idl.program(self.id)
        self._arguments = {i["name"]: i["args"] for i in idl.legacy["instructions"]}
        self._types = {t["name"]: t["type"] for t in idl.legacy["types"]}

    def instruction(
        self, name: str, accounts: dict[str, Pubkey], extra: Sequence[AccountMeta] = (), **arguments: Any
    ) -> Instruction:
        """The instruction `name`. CoordinatorError names an argument that is missing, unknown or out of range."""
        expected = self._arguments[name]
        if missing := {a["name"] for a in expected} ^ set(arguments):
            raise CoordinatorError(f"{name}: the program of this version disagrees about {', '.join(sorted(missing))}")
        values = [complete(arguments[a["name"]], a["type"], self._types, f"{name}.{a['name']}") for a in expected]
        context = Context(accounts=accounts, remaining_accounts=list(extra))
        built: Instruction = self._program.instruction[name](*values, ctx=context)
        return built

    def account(self, name: str, data: bytes) -> Any:
        """A borsh account's bytes as an object with its fields. Raises AccountError when they are not a `name`."""
        try:
            found = self._program.coder.accounts.decode(data)
        except (ConstructError, LookupError, ValueError, UnicodeError, AccountInvalidDiscriminator) as error:
            raise AccountError(f"the account is not a {name} of program {self.id}") from error
        if type(found).__name__ != name:
            raise AccountError(f"the account is not a {name} of program {self.id}")
        return found


def _discriminator(name: str) -> bytes:
    """How Anchor tells instructions apart."""
    return hashlib.sha256(f"global:{name}".encode()).digest()[:8]


@cache
def coordinator_program(program_id: Pubkey | None = None) -> AnchorProgram:
    """The coordinator, at `program_id` or where the packaged build expects it."""
    return AnchorProgram(_idl(COORDINATOR_IDL), program_id)


@cache
def authorizer_program(program_id: Pubkey | None = None) -> AnchorProgram:
    """The authorizer, at `program_id` or where the packaged build expects it."""
    return AnchorProgram(_idl(AUTHORIZER_IDL), program_id)


def error_tables(*programs: AnchorProgram) -> Errors:
    """What `Sender` needs to name the refusals of these programs."""
    return {program.id: program.errors for program in programs}


_idl = cache(load_idl)
