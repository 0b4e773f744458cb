"""Both programs in LiteSVM under a virtual clock: instructions built from the IDL, refusals by
name.

It encodes instructions in Borsh, straight from the canonical IDL, so it trusts neither anchorpy nor
our own client. It also translates failures into names. `scenario.py` drives a run.
"""

import hashlib
import json
import struct
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from solders.account import Account
from solders.clock import Clock
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.rent import Rent
from solders.signature import Signature
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata

from aftermath.chain import layout
from aftermath.localnet.runtime import clear_x87_registers
from aftermath.programs import (
    AUTHORIZER_ID,
    AUTHORIZER_IDL,
    AUTHORIZER_SO,
    COORDINATOR_ID,
    COORDINATOR_IDL,
    COORDINATOR_SO,
)

PROGRAM = Pubkey.from_string(COORDINATOR_ID)
AUTHORIZER = Pubkey.from_string(AUTHORIZER_ID)
START = 1_700_000_000
SLOTS = 8
KEPT = 512
RICH = 10**11  # lamports
NOTHING = Account(0, b"", Pubkey.default())
_INTEGERS = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "i64": "<q", "bool": "<?"}
# framework errors that the tests name (Anchor 2's own numbers)
_FRAMEWORK = {
    2000: "ConstraintMut",
    2002: "ConstraintSigner",
    2006: "ConstraintSeeds",
    2012: "ConstraintAddress",
}


@lru_cache(8 * KEPT)
def slot_hash(slot: int) -> Hash:
    """Return the hash of a slot. Nobody could predict it."""
    return Hash(hashlib.sha256(slot.to_bytes(8, "little")).digest())


@cache
def idl(program: Pubkey) -> dict[str, Any]:
    path: Path = COORDINATOR_IDL if program == PROGRAM else AUTHORIZER_IDL
    return dict(json.loads(path.read_text(encoding="utf-8")))


@cache
def instruction_of(program: Pubkey, name: str) -> dict[str, Any]:
    return next(entry for entry in idl(program)["instructions"] if entry["name"] == name)


@cache
def error_names(program: Pubkey) -> dict[int, str]:
    return {entry["code"]: entry["name"] for entry in idl(program)["errors"]}


def encode(kind: Any, value: Any, program: Pubkey) -> bytes:
    """Return the Borsh bytes of a value of an IDL type."""
    if isinstance(kind, str):
        if kind == "string":
            text: bytes = value.encode()
            return struct.pack("<I", len(text)) + text
        if kind == "pubkey":
            return bytes(value)
        return struct.pack(_INTEGERS[kind], value)
    if isinstance(value, bytes) and (
        kind.get("vec") == "u8" or kind.get("array") == ["u8", len(value)]
    ):
        return value if "array" in kind else struct.pack("<I", len(value)) + value
    if "option" in kind:
        return b"\0" if value is None else b"\1" + encode(kind["option"], value, program)
    if "vec" in kind:
        return struct.pack("<I", len(value)) + b"".join(
            encode(kind["vec"], item, program) for item in value
        )
    if "array" in kind:
        item, length = kind["array"]
        assert len(value) == length, f"{len(value)} items where {length} are expected"
        return b"".join(encode(item, one, program) for one in value)
    defined = next(
        entry for entry in idl(program)["types"] if entry["name"] == kind["defined"]["name"]
    )
    return b"".join(
        encode(field["type"], value[field["name"]], program) for field in defined["type"]["fields"]
    )


@cache
def address(seed: str, run_id: str) -> Pubkey:
    """Return the address of one of the four accounts of a run."""
    return Pubkey.find_program_address([seed.encode(), run_id.encode()], PROGRAM)[0]


@lru_cache(4096)
def membership_address(run: Pubkey, created: int, wallet: Pubkey) -> Pubkey:
    """Return the address of a wallet's membership in the run that was created in that slot."""
    seeds = [b"membership", bytes(run), created.to_bytes(8, "little"), bytes(wallet)]
    return Pubkey.find_program_address(seeds, PROGRAM)[0]


@lru_cache(4096)
def authorization_address(
    grantor: Pubkey, grantee: Pubkey, scope: bytes = b"CoordinatorJoinRun"
) -> Pubkey:
    return Pubkey.find_program_address(
        [b"authorization", bytes(grantor), bytes(grantee), scope], AUTHORIZER
    )[0]


def build(
    program: Pubkey,
    name: str,
    accounts: Mapping[str, Pubkey],
    args: Sequence[Any] = (),
    flags: Mapping[str, tuple[bool, bool]] | None = None,
) -> Instruction:
    """Build an instruction with the IDL's account order.

    `flags` forges (signer, writable) of single accounts.
    """
    spec = instruction_of(program, name)
    data = bytes(spec["discriminator"])
    for argument, value in zip(spec["args"], args, strict=True):
        data += encode(argument["type"], value, program)
    metas = []
    for entry in spec["accounts"]:
        key = accounts.get(entry["name"]) or Pubkey.from_string(entry["address"])
        signer, writable = (flags or {}).get(
            entry["name"], (entry.get("signer", False), entry.get("writable", False))
        )
        metas.append(AccountMeta(key, signer, writable))
    return Instruction(program, data, metas)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a transaction.

    `error` is None, a program's error name, or the runtime's name for it.
    """

    error: str | None
    units: int
    returned: bytes
    logs: list[str]

    def ok(self) -> "Outcome":
        assert self.error is None, f"refused: {self.error}\n" + "\n".join(self.logs)
        return self

    def refused(self, name: str) -> None:
        assert self.error == name, f"expected {name}, got {self.error}\n" + "\n".join(self.logs)


def _error_name(failure: Any, program: Pubkey) -> str:
    inner = getattr(failure, "err", None)
    code = getattr(inner, "code", None)
    if code is None:
        return str(inner if inner is not None else failure).rsplit(".", 1)[-1]
    return error_names(program).get(code) or _FRAMEWORK.get(code) or f"custom {code}"


@dataclass(frozen=True)
class Snapshot:
    """The accounts and the time of a world, from which other worlds can continue."""

    accounts: Mapping[Pubkey, Account]
    now: int
    slot: int


class Machine:
    """A LiteSVM with both programs that later worlds reuse.

    Making one takes thirty times as long as a reset.
    """

    idle: ClassVar[list["Machine"]] = []
    """Machines that no world uses."""

    def __init__(self) -> None:
        self.svm = LiteSVM().with_sigverify(False)  # signing takes longer than most instructions
        # the rent of SIMD-0194, which the programs' runtime library assumes
        self.svm.set_rent(Rent(6960, 1.0, 50))
        self.svm.add_program_from_file(PROGRAM, COORDINATOR_SO)
        self.svm.add_program_from_file(AUTHORIZER, AUTHORIZER_SO)
        self.sent = 0
        self.original: dict[Pubkey, Account] = {}
        """What each account was before the world that uses the machine touched it."""

    @classmethod
    def acquire(cls) -> "Machine":
        """Return an idle machine in its initial state, or a new one."""
        if not cls.idle:
            return cls()
        machine = cls.idle.pop()
        for key, account in machine.original.items():
            if (
                not account.executable
            ):  # no transaction changes a program, and loading one takes long
                machine.svm.set_account(key, account)
        machine.original.clear()
        return machine

    def touch(self, keys: Iterable[Pubkey]) -> None:
        """Save the present state of these accounts, unless they are saved already."""
        for key in keys:
            if key not in self.original:
                self.original[key] = self.svm.get_account(key) or NOTHING


class World:
    """A LiteSVM with both programs, a payer that funds everything, and a clock that only tests
    move.
    """

    def __init__(self) -> None:
        self.machine = Machine.acquire()
        self.svm = self.machine.svm
        weakref.finalize(self, Machine.idle.append, self.machine)
        self.payer = Keypair.from_seed(b"p" * 32)
        self.payer_key = self.payer.pubkey()
        self.airdrop(self.payer_key, 10**14)
        self.now = START
        self.slot = 1
        self.advance(0)

    def advance(self, seconds: int, slots: int = SLOTS) -> None:
        """Move the clock, and more slots than the draw of a seed needs, each with its own hash."""
        self.now += seconds
        self.slot += slots
        self.svm.set_clock(Clock(self.slot, START, 0, 0, self.now))
        passed = range(self.slot - 1, max(0, self.slot - 1 - KEPT), -1)
        self.svm.set_slot_hashes([(slot, slot_hash(slot)) for slot in passed])

    def send(
        self, *instructions: Instruction, signers: Sequence[Keypair] = (), units: int = 1_400_000
    ) -> Outcome:
        transaction = self._transaction([set_compute_unit_limit(units), *instructions], signers)
        self.machine.touch(transaction.message.account_keys)
        result = self.svm.send_transaction(transaction)
        clear_x87_registers()
        meta: Any = result
        error = None
        if isinstance(result, FailedTransactionMetadata):
            meta = result.meta()
            error = _error_name(result.err(), instructions[-1].program_id)
        # the budget instruction takes 150 units of its own
        returned = bytes(meta.return_data().data)
        return Outcome(error, meta.compute_units_consumed() - 150, returned, list(meta.logs()))

    def _transaction(
        self, instructions: Sequence[Instruction], signers: Sequence[Keypair]
    ) -> Transaction:
        message = Message.new_with_blockhash(
            instructions, self.payer_key, self.svm.latest_blockhash()
        )
        needed = message.header.num_required_signatures
        if signers:
            keys = {self.payer_key, *(key.pubkey() for key in signers)}
            assert keys.issuperset(message.account_keys[:needed]), "a signer is missing"
        # LiteSVM refuses a signature that it has seen, and looks at nothing else of it.
        self.machine.sent += 1
        new = self.machine.sent.to_bytes(64, "little")
        return Transaction.populate(message, [Signature.from_bytes(new)] * needed)

    def snapshot(self) -> Snapshot:
        snapshot = {key: self.svm.get_account(key) or NOTHING for key in self.machine.original}
        accounts = {key: account for key, account in snapshot.items() if not account.executable}
        return Snapshot(accounts, self.now, self.slot)

    def load(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot. Accounts that only this world has stay."""
        for key, account in snapshot.accounts.items():
            self.set_account(key, account)
        self.now = snapshot.now
        self.slot = snapshot.slot
        self.advance(0, slots=0)

    def data(self, key: Pubkey) -> bytes:
        account = self.svm.get_account(key)
        return bytes(account.data) if account else b""

    def lamports(self, key: Pubkey) -> int:
        return self.svm.get_balance(key) or 0

    def fund(self, key: Pubkey) -> None:
        """Give a wallet enough lamports for any number of bonds."""
        if self.lamports(key) < RICH // 2:
            self.airdrop(key, RICH)

    def airdrop(self, key: Pubkey, lamports: int) -> None:
        account = self.svm.get_account(key) or NOTHING
        self.set_account(
            key,
            Account(account.lamports + lamports, account.data, account.owner, account.executable),
        )

    def record(self, name: str, run_id: str) -> np.ndarray[Any, Any]:
        """Return the account `name` of a run as a writable one-element record."""
        return (
            layout.coordinator_account(name).read(self.data(address(name.lower(), run_id))).copy()
        )

    def store(self, name: str, run_id: str, record: np.ndarray[Any, Any]) -> None:
        """Overwrite an account of a run with a record."""
        account = layout.coordinator_account(name)
        self.put(address(name.lower(), run_id), account.discriminator + record.tobytes())

    def put(self, key: Pubkey, data: bytes, owner: Pubkey = PROGRAM) -> None:
        self.set_account(
            key, Account(self.svm.minimum_balance_for_rent_exemption(len(data)), data, owner)
        )

    def set_account(self, key: Pubkey, account: Account) -> None:
        self.machine.touch([key])
        self.svm.set_account(key, account)
