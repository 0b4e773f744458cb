"""Tests that the converted IDL encodes every instruction like an independent borsh encoder, and
that errors name bad arguments.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from aftermath.chain.idl import convert, load_idl
from aftermath.chain.programs import AnchorProgram, authorizer_program, coordinator_program
from aftermath.coordinator.errors import CoordinatorError
from aftermath.programs import AUTHORIZER_IDL, COORDINATOR_IDL

IDLS = {
    "coordinator": json.loads(COORDINATOR_IDL.read_text()),
    "authorizer": json.loads(AUTHORIZER_IDL.read_text()),
}
PROGRAMS: dict[str, AnchorProgram] = {
    "coordinator": coordinator_program(),
    "authorizer": authorizer_program(),
}
INTEGERS = {
    "u8": "<B",
    "u16": "<H",
    "u32": "<I",
    "u64": "<Q",
    "i64": "<q",
    "i32": "<i",
    "i16": "<h",
    "i8": "<b",
}


def borsh(value: Any, kind: Any, types: dict[str, Any]) -> bytes:
    """Encode with borsh by the canonical IDL. Shares no code with the code under test."""
    if isinstance(kind, str):
        if kind in INTEGERS:
            return struct.pack(INTEGERS[kind], value)
        if kind == "bool":
            return b"\1" if value else b"\0"
        if kind == "pubkey":
            return bytes(value)
        raw = value.encode() if kind == "string" else value
        return struct.pack("<I", len(raw)) + raw
    (form, inner) = next(iter(kind.items()))
    if form == "option":
        return b"\0" if value is None else b"\1" + borsh(value, inner, types)
    if form == "array":
        return b"".join(borsh(v, inner[0], types) for v in value)
    if form == "vec":
        return struct.pack("<I", len(value)) + b"".join(borsh(v, inner, types) for v in value)
    return b"".join(
        borsh(value[f["name"]], f["type"], types) for f in types[inner["name"]]["fields"]
    )


def values(kind: Any, types: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a canonical IDL type."""
    if isinstance(kind, str):
        if kind in INTEGERS:
            bits = 8 * struct.calcsize(INTEGERS[kind])
            low = 0 if kind[0] == "u" else -(1 << bits - 1)
            return st.integers(low, low + (1 << bits) - 1)
        simple = {
            "bool": st.booleans(),
            "string": st.text(max_size=40),
            "bytes": st.binary(max_size=40),
        }
        return simple.get(kind, st.binary(min_size=32, max_size=32).map(Pubkey))
    (form, inner) = next(iter(kind.items()))
    if form == "option":
        return st.none() | values(inner, types)
    if form == "array":
        if inner[0] == "u8":
            return st.binary(min_size=inner[1], max_size=inner[1])
        return st.lists(values(inner[0], types), min_size=inner[1], max_size=inner[1])
    if form == "vec":
        return st.lists(values(inner, types), max_size=4)
    return st.fixed_dictionaries(
        {f["name"]: values(f["type"], types) for f in types[inner["name"]]["fields"]}
    )


INSTRUCTIONS = [(name, i["name"]) for name, idl in IDLS.items() for i in idl["instructions"]]


@pytest.mark.parametrize(("program", "name"), INSTRUCTIONS)
@given(data=st.data())
def test_every_instruction_is_encoded_as_borsh(
    program: str, name: str, data: st.DataObject
) -> None:
    idl = IDLS[program]
    types = {t["name"]: t["type"] for t in idl["types"]}
    instruction = next(i for i in idl["instructions"] if i["name"] == name)
    arguments = {a["name"]: data.draw(values(a["type"], types)) for a in instruction["args"]}
    accounts = {a["name"]: Pubkey.new_unique() for a in instruction["accounts"]}
    built = PROGRAMS[program].instruction(name, accounts, **arguments)
    expected = hashlib.sha256(f"global:{name}".encode()).digest()[:8]
    expected += b"".join(borsh(arguments[a["name"]], a["type"], types) for a in instruction["args"])
    assert bytes(built.data) == expected
    assert expected[:8] == bytes(instruction["discriminator"])
    assert [(m.pubkey, m.is_signer, m.is_writable) for m in built.accounts] == [
        (accounts[a["name"]], a.get("signer", False), a.get("writable", False))
        for a in instruction["accounts"]
    ]


def test_idl_conversion_keeps_enums_and_options_of_structs() -> None:
    fields = [{"name": "http", "type": "string"}, {"name": "size", "type": "u8"}]
    idl = {
        "address": "11111111111111111111111111111111",
        "metadata": {"name": "probe", "version": "0.1.0", "spec": "0.1.0"},
        "instructions": [
            {
                "name": "put_2things",
                "accounts": [],
                "args": [
                    {"name": "place", "type": {"defined": {"name": "Place"}}},
                    {"name": "maybe", "type": {"option": {"defined": {"name": "Pair"}}}},
                ],
            }
        ],
        "types": [
            {
                "name": "Place",
                "type": {
                    "kind": "enum",
                    "variants": [{"name": "None"}, {"name": "At", "fields": fields}],
                },
            },
            {
                "name": "Pair",
                "type": {
                    "kind": "struct",
                    "fields": [
                        {"name": "a_1b", "type": "u8"},
                        {"name": "_pad", "type": {"array": ["u8", 3]}},
                    ],
                },
            },
        ],
    }
    converted = convert(idl)
    program = AnchorProgram(converted)
    place = converted.program().type["Place"].At(http="x", size=2)
    built = program.instruction("put_2things", {}, place=place, maybe={"a_1b": 7})
    body = b"\1" + struct.pack("<I", 1) + b"x\2" + b"\1\7\0\0\0"
    assert bytes(built.data) == hashlib.sha256(b"global:put_2things").digest()[:8] + body


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("coordinator", {"Run", "Model", "Members", "Witnesses", "Membership"}),
        ("authorizer", {"Authorization"}),
    ],
)
def test_idl_accounts_are_readable_by_other_clients(program: str, names: set[str]) -> None:
    """The IDL lists the accounts that the program owns, each with its discriminator and a
    layout.
    """
    idl = IDLS[program]
    discriminators = {
        account["name"]: bytes(account["discriminator"]) for account in idl["accounts"]
    }
    assert discriminators == {
        name: hashlib.sha256(f"account:{name}".encode()).digest()[:8] for name in names
    }
    assert names <= {entry["name"] for entry in idl["types"]}


@pytest.mark.parametrize("program", IDLS)
def test_idl_fixed_addresses_are_valid(program: str) -> None:
    """Stock clients fill them in: an expression in their place makes them refuse the whole
    instruction.
    """
    accounts = [
        account
        for instruction in IDLS[program]["instructions"]
        for account in instruction["accounts"]
    ]
    fixed = {Pubkey.from_string(account["address"]) for account in accounts if "address" in account}
    assert Pubkey.default() in fixed  # the system program


def test_errors_keep_code_name_and_sentence() -> None:
    for name, idl in IDLS.items():
        errors = PROGRAMS[name].errors
        assert {(e["code"], e["name"], e["msg"]) for e in idl["errors"]} == {
            (e.code, e.name, e.message) for e in errors.values()
        }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tier": 256}, "join_run.params.tier must be a whole number from 0 to 255"),
        ({"p2p": b"short"}, "join_run.params.p2p must be 32 values"),
        ({"client_version": 3}, "client_version must be a string"),
        ({"wieght": 3}, "no field 'wieght'"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], message: str) -> None:
    types = {t["name"]: t["type"] for t in IDLS["coordinator"]["types"]}
    params = {
        "p2p": bytes(32),
        "tier": 0,
        "weight": 1,
        "schema_hash": bytes(32),
        "client_version": "",
        "stateless": False,
    }
    params = {f["name"]: params[f["name"]] for f in types["JoinParams"]["fields"]}
    with pytest.raises(CoordinatorError, match=message):
        PROGRAMS["coordinator"].instruction("join_run", {}, params={**params, **change})


def test_missing_field_is_named() -> None:
    with pytest.raises(CoordinatorError, match=r"update.params.metadata is missing"):
        PROGRAMS["coordinator"].instruction("update", {}, params={"use_durable": False})


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"metadata": {"spec": "0.2.0"}}', "\x00"])
def test_invalid_idl_file_is_refused(tmp_path: Any, text: str) -> None:
    path = tmp_path / "idl.json"
    path.write_text(text)
    with pytest.raises(CoordinatorError, match=r"not a canonical Anchor IDL"):
        load_idl(path)


def test_missing_idl_is_reported(tmp_path: Any) -> None:
    with pytest.raises(CoordinatorError, match="cannot read the IDL"):
        load_idl(tmp_path / "none.json")


def test_truncated_and_foreign_accounts_are_refused() -> None:
    program = authorizer_program()
    for data in (
        b"",
        bytes(8),
        bytes(200),
        bytes(IDLS["authorizer"]["accounts"][0]["discriminator"]),
    ):
        with pytest.raises(CoordinatorError.__mro__[1]):
            program.account("Authorization", data)
