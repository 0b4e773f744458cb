"""Convert a canonical Anchor IDL (spec 0.1.0) to the legacy form that anchorpy reads.

Names stay in snake case: from camel case, anchorpy would lose the underscore before the digit of
`quantize_1bit`. A `ProgramIdl` also has the program's errors, which name the reason of a failed
transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from anchorpy.program.core import Program
from anchorpy.provider import Provider, Wallet
from anchorpy_core.idl import Idl
from solana.rpc.async_api import AsyncClient
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.coordinator.errors import CoordinatorError

Json = dict[str, Any]
SPEC = "0.1.0"
MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class ProgramError:
    """One error variant of a program."""

    code: int
    name: str
    message: str


@dataclass(frozen=True)
class ProgramIdl:
    """A program's legacy IDL as JSON, the address it was built for, and its errors by code."""

    name: str
    address: Pubkey
    legacy: Json = field(repr=False)
    errors: Mapping[int, ProgramError] = field(repr=False)

    @cached_property
    def _parsed(self) -> Idl:
        return Idl.from_json(json.dumps(self.legacy))

    def program(self, program_id: Pubkey | None = None) -> Program:
        """anchorpy's Program for building instructions."""
        return Program(self._parsed, program_id or self.address, _provider())


@cache
def _provider() -> Provider:
    """Return the provider that anchorpy requires. It is never used: `chain.sender` sends."""
    # Without __init__, which makes an HTTP client: that reads certificates, and fails on some proxy
    # variables.
    return Provider(AsyncClient.__new__(AsyncClient), Wallet(Keypair()))


def load_idl(path: Path) -> ProgramIdl:
    """Read and convert an IDL file. Raise CoordinatorError if it is missing or invalid."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CoordinatorError(
            f"cannot read the IDL {path}: {error.strerror}", "Reinstall aftermath"
        ) from error
    if len(raw) > MAX_BYTES:
        raise CoordinatorError(f"the IDL {path} has {len(raw)} bytes, more than {MAX_BYTES}")
    try:
        idl = json.loads(raw)
        return convert(idl)
    except (ValueError, KeyError, TypeError) as error:
        raise CoordinatorError(
            f"{path} is not a canonical Anchor IDL: {error!r}", "Rebuild it: make programs"
        ) from error


def convert(idl: Json, *, zero_copy: bool = False) -> ProgramIdl:
    """Convert a canonical IDL. Raise KeyError or ValueError for unsupported parts of the spec.

    `zero_copy`: also include the accounts that the program maps into memory. By default they are
    left out, because `chain.layout` reads them about 50 times as fast as anchorpy.
    """
    spec = idl["metadata"].get("spec")
    if spec != SPEC:
        raise ValueError(f"IDL spec {spec!r}, expected {SPEC}")
    types = {t["name"]: t for t in idl.get("types", [])}
    instructions = [_instruction(i) for i in idl["instructions"]]
    needed_types: dict[str, Json] = {}
    for instruction in idl["instructions"]:
        for argument in instruction["args"]:
            _collect_types(argument["type"], types, needed_types)
    account_names = [a["name"] for a in idl.get("accounts", [])]
    accounts = [name for name in account_names if zero_copy or "serialization" not in types[name]]
    for name in accounts:
        for inner in _field_types(types[name]["type"]):
            _collect_types(inner, types, needed_types)
    errors = [
        ProgramError(e["code"], e["name"], e.get("msg") or e["name"]) for e in idl.get("errors", [])
    ]
    legacy = {
        "version": idl["metadata"]["version"],
        "name": idl["metadata"]["name"],
        "instructions": instructions,
        "accounts": [_typedef(types[name]) for name in accounts],
        "types": [
            _typedef(needed_types[name]) for name in sorted(needed_types) if name not in accounts
        ],
        "errors": [{"code": e.code, "name": e.name, "msg": e.message} for e in errors],
    }
    address = Pubkey.from_string(idl["address"])
    return ProgramIdl(idl["metadata"]["name"], address, legacy, {e.code: e for e in errors})


def _instruction(instruction: Json) -> Json:
    accounts = [
        {"name": a["name"], "isMut": a.get("writable", False), "isSigner": a.get("signer", False)}
        for a in instruction["accounts"]
    ]
    return {
        "name": instruction["name"],
        "accounts": accounts,
        "args": [_field(f) for f in instruction["args"]],
    }


def _field(item: Json) -> Json:
    # anchorpy drops leading underscores as well
    return {"name": item["name"].lstrip("_"), "type": _type(item["type"])}


def _type(kind: Any) -> Any:
    if isinstance(kind, str):
        return "publicKey" if kind == "pubkey" else kind
    (form,) = kind
    inner = kind[form]
    if form == "defined":
        if inner.get("generics"):
            raise ValueError(f"generic type {inner['name']} is not supported")
        return {"defined": inner["name"]}
    if form == "array":
        element, length = inner
        if not isinstance(length, int):
            raise ValueError("arrays of generic length are not supported")
        return {"array": [_type(element), length]}
    if form in ("option", "vec"):
        return {form: _type(inner)}
    raise ValueError(f"type {form!r} is not supported")


def _typedef(definition: Json) -> Json:
    body = definition["type"]
    if body["kind"] == "struct":
        fields = body.get("fields", [])
        if any("name" not in f for f in fields):
            raise ValueError(f"tuple struct {definition['name']} is not supported")
        return {
            "name": definition["name"],
            "type": {"kind": "struct", "fields": [_field(f) for f in fields]},
        }
    if body["kind"] == "enum":
        variants = [_variant(v) for v in body["variants"]]
        return {"name": definition["name"], "type": {"kind": "enum", "variants": variants}}
    raise ValueError(f"type {definition['name']} is a {body['kind']!r}, which is not supported")


def _variant(variant: Json) -> Json:
    fields = variant.get("fields")
    if not fields:
        return {"name": variant["name"]}
    has_names = isinstance(fields[0], dict) and "name" in fields[0]
    return {
        "name": variant["name"],
        "fields": [_field(f) if has_names else _type(f) for f in fields],
    }


def _collect_types(kind: Any, types: Mapping[str, Json], types_found: dict[str, Json]) -> None:
    """Add to `types_found` every defined type that `kind` mentions, directly or through others."""
    if isinstance(kind, str):
        return
    (form,) = kind
    if form == "defined":
        name = kind[form]["name"]
        if name in types_found:
            return
        types_found[name] = types[name]
        for inner in _field_types(types[name]["type"]):
            _collect_types(inner, types, types_found)
    else:
        _collect_types(kind[form][0] if form == "array" else kind[form], types, types_found)


def _field_types(body: Json) -> list[Any]:
    if body["kind"] == "struct":
        return [f["type"] for f in body.get("fields", [])]
    fields = [f for v in body.get("variants", []) for f in v.get("fields") or []]
    return [f["type"] if isinstance(f, dict) and "type" in f and "name" in f else f for f in fields]
