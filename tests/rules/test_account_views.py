"""Test that the program's accounts are read as recorded, and that other bytes are refused.

The fixtures in `accounts/` are bytes that the program wrote. If a test fails because the program's
structs or its IDL changed, existing runs cannot be read any more. Such a change needs a new layout
version (`VERSION` in the program and in `views`) and a new program id. Then record them again: `cd
tests && ../.venv/bin/python -m rules.record_accounts`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aftermath.base.errors import AccountError
from aftermath.chain import views
from rules.cooldown import stated_in
from rules.onchain import Onchain
from rules.record_accounts import cut, expected, plain

FIXTURES = Path(__file__).with_name("accounts")
NAMES = ("run", "model", "members", "witnesses")
DATA = {name: (FIXTURES / f"{name}.bin").read_bytes() for name in (*NAMES, "membership")}
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
ACCOUNTS = {
    "run": views.run_account,
    "model": views.model_account,
    "members": views.members_account,
    "witnesses": views.witnesses_account,
    "membership": views.membership_account,
}
PARSERS: dict[str, Callable[[bytes], Any]] = {
    "run": views.parse_run,
    "model": views.parse_model,
    "members": views.parse_members,
    "membership": views.parse_membership,
    "witnesses": stated_in,
}


def patched(name: str, field: str, value: bytes) -> bytes:
    """Return a recorded account with the bytes of one field replaced."""
    data = bytearray(DATA[name])
    offset = ACCOUNTS[name]().offset(field)
    data[offset : offset + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    "part", ["run", "model", "members", "membership", "attestations", "cooldown"]
)
def test_recorded_accounts_read_as_recorded(part: str) -> None:
    assert json.loads(json.dumps(expected(DATA)[part])) == EXPECTED[part]


def test_recorded_accounts_have_values_in_every_part() -> None:
    """A fixture of zeros would prove nothing."""
    run = views.parse_run(DATA["run"])
    assert run.backlog
    assert all(round_.clients and round_.attestations for round_ in run.rounds)
    assert run.levels_attested == 0b111
    assert any(seat.points for seat in views.parse_members(DATA["members"]).seats)
    membership = views.parse_membership(DATA["membership"])
    assert membership.enrolled
    assert 0 < membership.delivered < membership.due
    assert views.parse_model(DATA["model"]).metadata.name == "fixture é"


def test_program_accounts_have_recorded_sizes() -> None:
    chain = Onchain()
    chain.create()
    for name in NAMES:
        assert (
            len(chain.data(getattr(chain.addresses, name)))
            == len(DATA[name])
            == ACCOUNTS[name]().size
        )


def test_run_account_is_small_enough_to_push() -> None:
    assert views.run_account().size <= 1400


@pytest.mark.parametrize("name", ["run", "model", "members", "membership"])
def test_accounts_of_wrong_size_or_discriminator_are_refused(name: str) -> None:
    data = DATA[name]
    for wrong in (b"", data[:7], data[:-1], data + b"\x00"):
        with pytest.raises(AccountError, match="bytes where this version expects"):
            PARSERS[name](wrong)
    with pytest.raises(AccountError, match=r"is not a .* of the coordinator"):
        PARSERS[name](b"\x00" * 8 + data[8:])


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("run", "version", b"\x01", "layout version 1, but this client reads version 14"),
        ("model", "version", b"\x00", "layout version 0"),
        ("run", "state", b"\x08", "unknown state"),
        ("run", "exit_reason", b"\xff", "exit_reason"),
        ("run", "head", b"\x04", "head = 4, above the limit of 3"),
        ("run", "levels", b"\x09", "levels = 9"),
        ("run", "run_id", b"\xff\xfe", "run_id"),
        ("model", "tiers", b"\x09", "tiers = 9"),
        ("model", "client_version", b"\xc3\x28", "client_version"),
    ],
)
def test_account_values_impossible_in_program_are_refused(
    name: str, field: str, value: bytes, message: str
) -> None:
    data = patched(name, field, value)
    with pytest.raises(AccountError, match=message):
        PARSERS[name](data)


def test_unknown_member_state_is_refused() -> None:
    data = bytearray(DATA["members"])
    data[ACCOUNTS["members"]().offset("seats", 200, "state")] = 7
    with pytest.raises(AccountError, match="state"):
        views.parse_members(bytes(data))


def test_truncated_witness_slice_is_refused() -> None:
    offset, length = views.witness_round_range(1, 3)
    assert len(views.parse_witness_round(cut(DATA["witnesses"], (offset, length)), 3)) == 3
    with pytest.raises(AccountError, match="bytes instead of"):
        views.parse_witness_round(cut(DATA["witnesses"], (offset, length - 1)), 3)


def test_account_of_new_run_reads_unset_parts() -> None:
    chain = Onchain()
    chain.create()
    assert plain(chain.model)["optimizer"] == {"kind": "none"}
    assert (chain.run.levels, chain.run.level_hashes, chain.run.backlog) == (0, (), 0)
    assert not any(seat.used for seat in chain.members.seats)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("spec", b"[", "the hash of the run's training spec differs"),
        ("spec_hash", b"\xff", "the hash of the run's training spec differs"),
        ("spec_len", b"\x01\x10", "spec_len = 4097"),
    ],
)
def test_parse_model_refuses_spec_without_its_hash(field: str, value: bytes, message: str) -> None:
    with pytest.raises(AccountError, match=message):
        views.parse_model(patched("model", field, value))


@pytest.mark.parametrize(("name", "milliseconds"), [("run", 1.0), ("members", 5.0)])
def test_account_parse_is_fast(name: str, milliseconds: float) -> None:
    """Take the best of many times, because other processes share the machine."""
    times = []
    for _ in range(50):
        started = time.perf_counter()
        PARSERS[name](DATA[name])
        times.append(time.perf_counter() - started)
    assert min(times) * 1000 < milliseconds
