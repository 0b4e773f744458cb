"""Encode instructions and decode accounts of the two programs with anchorpy and the packaged IDLs.

Arguments are plain dicts and values. They are checked against the IDL first, because errors of
anchorpy's encoder do not name the argument. Fields named `pad…` may be omitted; they are zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from anchorpy.error import AccountInvalidDiscriminator
from anchorpy.program.context import Context
from construct import ConstructError
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from aftermath.base.errors import AccountError, short_repr
from aftermath.chain.idl import ProgramIdl, load_idl
from aftermath.chain.refusals import Errors
from aftermath.coordinator.errors import CoordinatorError
from aftermath.programs import AUTHORIZER_IDL, COORDINATOR_IDL

Json = dict[str, Any]
_BITS = {
    "u8": 8,
    "u16": 16,
    "u32": 32,
    "u64": 64,
    "u128": 128,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "i128": 128,
}


class AnchorProgram:
    """Builds the instructions of one program. Arguments and accounts go by name and are checked
    against the IDL.
    """

    def __init__(self, idl: ProgramIdl, program_id: Pubkey | None = None) -> None:
        self.id = program_id or idl.address
        self.errors = idl.errors
        self.calls = {
            _discriminator(i["name"]): f"{idl.name}.{i['name']}" for i in idl.legacy["instructions"]
        }
        """The names of its instructions by the bytes that their data begin with."""
        self._program = idl.program(self.id)
        self._arguments = {i["name"]: i["args"] for i in idl.legacy["instructions"]}
        self._types = {t["name"]: t["type"] for t in idl.legacy["types"]}

    def instruction(
        self,
        name: str,
        accounts: dict[str, Pubkey],
        extra: Sequence[AccountMeta] = (),
        **arguments: Any,
    ) -> Instruction:
        """Build the instruction `name`.

        Raises CoordinatorError, which names an argument that is missing, unknown or out of range.
        """
        expected = self._arguments[name]
        if mismatched := {a["name"] for a in expected} ^ set(arguments):
            raise CoordinatorError(
                f"{name} does not match the program's arguments: {', '.join(sorted(mismatched))}"
            )
        values = [
            complete(arguments[a["name"]], a["type"], self._types, f"{name}.{a['name']}")
            for a in expected
        ]
        context = Context(accounts=accounts, remaining_accounts=list(extra))
        built: Instruction = self._program.instruction[name](*values, ctx=context)
        return built

    def account(self, name: str, data: bytes) -> Any:
        """Decode a borsh account of type `name`. Raises AccountError if it is another one."""
        try:
            decoded = self._program.coder.accounts.decode(data)
        except (
            ConstructError,
            LookupError,
            ValueError,
            UnicodeError,
            AccountInvalidDiscriminator,
        ) as error:
            raise AccountError(f"the account is not a {name} of program {self.id}") from error
        if type(decoded).__name__ != name:
            raise AccountError(f"the account is not a {name} of program {self.id}")
        return decoded


def _discriminator(name: str) -> bytes:
    """Return the 8 bytes by which Anchor identifies an instruction."""
    return hashlib.sha256(f"global:{name}".encode()).digest()[:8]


@cache
def coordinator_program(program_id: Pubkey | None = None) -> AnchorProgram:
    """Return the coordinator at `program_id`, or at its packaged address."""
    return AnchorProgram(_idl(COORDINATOR_IDL), program_id)


@cache
def authorizer_program(program_id: Pubkey | None = None) -> AnchorProgram:
    """Return the authorizer at `program_id`, or at its packaged address."""
    return AnchorProgram(_idl(AUTHORIZER_IDL), program_id)


def error_tables(*programs: AnchorProgram) -> Errors:
    """Return the error tables of these programs, by which `Sender` names refusals."""
    return {program.id: program.errors for program in programs}


_idl = cache(load_idl)


def complete(value: Any, kind: Any, types: Mapping[str, Json], path: str) -> Any:
    """Return `value` as the legacy IDL type `kind`, with padding filled in.

    Raises CoordinatorError, which names `path`, if it does not fit.
    """
    if isinstance(kind, str):
        return _simple(value, kind, path)
    (form,) = kind
    if form == "option":
        return None if value is None else complete(value, kind[form], types, path)
    if form == "defined":
        return _defined(value, types[kind[form]], types, path)
    element, length = kind["array"] if form == "array" else (kind["vec"], None)
    if not isinstance(value, bytes | list | tuple) or (length is not None and len(value) != length):
        expected = "a list" if length is None else f"{length} values"
        raise CoordinatorError(f"{path} must be {expected}, not {short_repr(value)}")
    return [complete(item, element, types, f"{path}[{i}]") for i, item in enumerate(value)]


def zero(kind: Any, types: Mapping[str, Json]) -> Any:
    """Return the value of `kind` whose bytes are zero."""
    if isinstance(kind, str):
        return "" if kind == "string" else False if kind == "bool" else 0
    if "array" in kind:
        return [zero(kind["array"][0], types)] * kind["array"][1]
    if "option" in kind:
        return None
    if "vec" in kind:
        return []
    return {f["name"]: zero(f["type"], types) for f in types[kind["defined"]]["fields"]}


def _defined(value: Any, definition: Json, types: Mapping[str, Json], path: str) -> Any:
    if definition["kind"] != "struct":
        return value  # an enum value of anchorpy
    if not isinstance(value, Mapping):
        raise CoordinatorError(f"{path} must be a table of fields, not {short_repr(value)}")
    fields = {f["name"]: f["type"] for f in definition["fields"]}
    if unknown := sorted(set(value) - set(fields)):
        raise CoordinatorError(
            f"{path} has no field {unknown[0]!r}", f"Use one of {', '.join(fields)}"
        )
    filled = {}
    for name, kind in fields.items():
        if name in value:
            filled[name] = complete(value[name], kind, types, f"{path}.{name}")
        elif name.startswith("pad"):
            filled[name] = zero(kind, types)
        else:
            raise CoordinatorError(f"{path}.{name} is missing")
    return filled


def _simple(value: Any, kind: str, path: str) -> Any:
    if kind in _BITS:
        low = -(1 << _BITS[kind] - 1)
        high = (1 << _BITS[kind] - 1) - 1
        if kind[0] == "u":
            low = 0
            high = (1 << _BITS[kind]) - 1
        if isinstance(value, bool) and kind == "u8":
            return int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise CoordinatorError(
                f"{path} must be a whole number from {low} to {high}, not {short_repr(value)}"
            )
        return int(value)
    expected = {"bool": bool, "string": str}.get(kind)
    if expected and not isinstance(value, expected):
        raise CoordinatorError(f"{path} must be a {kind}, not {short_repr(value)}")
    return value
