"""Byte layouts of the coordinator's accounts and instruction arguments, generated from the IDL.

The accounts are plain old data without implicit padding, so one packed numpy dtype per type reads
them. anchorpy can decode them too, but takes about 50 times as long, and members read them at every
change of a run. An account must have the dtype's size, which catches a layout with padding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from aftermath.base.errors import AccountError
from aftermath.programs import COORDINATOR_IDL

DISCRIMINATOR_BYTES = 8

_PRIMITIVES = {
    "bool": "u1",
    "u8": "u1",
    "u16": "<u2",
    "u32": "<u4",
    "u64": "<u8",
    "i8": "i1",
    "i16": "<i2",
    "i32": "<i4",
    "i64": "<i8",
    "pubkey": "V32",
}

Record = np.ndarray[Any, np.dtype[np.void]]


@dataclass(frozen=True)
class Account:
    """One account type: its name, the 8 bytes every such account begins with, and the layout of the
    rest.
    """

    name: str
    discriminator: bytes
    dtype: np.dtype[np.void]

    @property
    def size(self) -> int:
        """Bytes of the whole account, discriminator included."""
        return DISCRIMINATOR_BYTES + self.dtype.itemsize

    def read(self, data: bytes) -> Record:
        """Return a one-element array over the account's bytes.

        Raises AccountError on a wrong size or discriminator.
        """
        if len(data) != self.size:
            raise AccountError(
                f"the {self.name} account has {len(data)} bytes where this version expects {self.size}",
                "Use the client version that created the run, or repeat an interrupted create-run",
            )
        if data[:DISCRIMINATOR_BYTES] != self.discriminator:
            raise AccountError(f"the account is not a {self.name} of the coordinator program")
        return np.frombuffer(data, self.dtype, count=1, offset=DISCRIMINATOR_BYTES)

    def offset(self, *path: str | int) -> int:
        """Return the byte offset of a field. In `path`, an index follows an array field."""
        dtype: np.dtype[Any] = self.dtype
        offset = DISCRIMINATOR_BYTES
        for step in path:
            if isinstance(step, str):
                assert dtype.fields is not None
                dtype, start = dtype.fields[step][:2]
                offset += start
            else:
                dtype = dtype.base
                offset += step * dtype.itemsize
        return offset

    def field(self, *names: str) -> np.dtype[Any]:
        """Return the dtype of one element of a (nested) field."""
        dtype: np.dtype[Any] = self.dtype
        for name in names:
            dtype = dtype.base[name]
        return dtype.base


@dataclass(frozen=True)
class InstructionArguments:
    """An instruction whose arguments always have the same size: the 8 bytes it begins with, and
    their layout.
    """

    discriminator: bytes
    dtype: np.dtype[np.void]

    def read(self, data: bytes) -> np.void | None:
        """Return the arguments by name, or None if `data` is of another instruction."""
        if (
            len(data) != DISCRIMINATOR_BYTES + self.dtype.itemsize
            or data[:DISCRIMINATOR_BYTES] != self.discriminator
        ):
            return None
        arguments: np.void = np.frombuffer(data, self.dtype, count=1, offset=DISCRIMINATOR_BYTES)[0]
        return arguments


def account_of(idl: Mapping[str, Any], name: str) -> Account:
    """Return an account type of a canonical (0.1.0) IDL. Raises AccountError on unknown types."""
    types = {entry["name"]: entry["type"] for entry in idl["types"]}
    entry = next(entry for entry in idl["accounts"] if entry["name"] == name)
    return Account(name, bytes(entry["discriminator"]), _struct(types[name], types))


@cache
def coordinator_account(name: str) -> Account:
    """Return the layout of an account type of the packaged coordinator program.

    `name`: Run, Model, Members, Witnesses or Membership.
    """
    return account_of(json.loads(COORDINATOR_IDL.read_text()), name)


@cache
def coordinator_instruction(name: str) -> InstructionArguments:
    """Return the layout of an instruction of the packaged coordinator program."""
    idl = json.loads(COORDINATOR_IDL.read_text())
    types = {entry["name"]: entry["type"] for entry in idl["types"]}
    entry = next(entry for entry in idl["instructions"] if entry["name"] == name)
    return InstructionArguments(
        bytes(entry["discriminator"]), _struct({"kind": "struct", "fields": entry["args"]}, types)
    )


def _struct(kind: Mapping[str, Any], types: Mapping[str, Any]) -> np.dtype[np.void]:
    if kind.get("kind") != "struct":
        raise AccountError(
            f"the program's IDL stores a {kind.get('kind')} in an account, which this client cannot read"
        )
    return np.dtype([(field["name"], _field(field["type"], types)) for field in kind["fields"]])


def _field(kind: Any, types: Mapping[str, Any]) -> Any:
    if isinstance(kind, str) and kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if isinstance(kind, dict) and "array" in kind:
        # Byte arrays and public keys are opaque fields: numpy's own byte strings would lose
        # trailing zeros.
        element, length = kind["array"]
        return f"V{length}" if element == "u8" else (_field(element, types), (length,))
    if isinstance(kind, dict) and kind.get("defined", {}).get("name") in types:
        defined = types[kind["defined"]["name"]]
        return (
            _field(defined["alias"], types)
            if defined.get("kind") == "type"
            else _struct(defined, types)
        )
    raise AccountError(f"the program's IDL uses the type {kind!r}, which this client cannot read")
