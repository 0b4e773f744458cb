"""Executes one transaction at a time with LiteSVM, with the outcome that a validator would give.

It corrects what the LiteSVM of solders 0.26 does differently from agave. The bank checks
signatures, blockhashes and duplicates.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from solders.account import Account
from solders.address_lookup_table_account import AddressLookupTable
from solders.clock import Clock
from solders.litesvm import FeatureSet, LiteSVM
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.rent import Rent
from solders.signature import Signature
from solders.sysvar import SLOT_HASHES
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata

from aftermath.localnet.errors import INTERNAL_ERROR, JsonRpcError
from aftermath.localnet.fees import Fee, fee_of
from aftermath.localnet.preloaded_programs import elf_of, program_data_of

LOOKUP_PROGRAM_ID = Pubkey.from_string("AddressLookupTab1e1111111111111111111111111")


class LookupFailed(Exception):
    """A lookup table is unusable; `error` is the name of the TransactionError."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


def account_keys(
    message: Message | MessageV0, account: Callable[[Pubkey], Account | None]
) -> tuple[list[Pubkey], list[int], tuple[int, int]]:
    """Return (all keys, positions of the writable ones, counts of loaded writable and read-only
    keys).
    """
    keys = list(message.account_keys)
    header = message.header
    # Positions follow from the header alone. Agave also demotes program ids to read-only; that
    # would only shorten the list of accounts to inspect after execution.
    signed_writable = header.num_required_signatures - header.num_readonly_signed_accounts
    plain_writable = len(keys) - header.num_readonly_unsigned_accounts
    writable = [*range(signed_writable), *range(header.num_required_signatures, plain_writable)]
    if not isinstance(message, MessageV0) or not message.address_table_lookups:
        return keys, writable, (0, 0)
    loaded_writable: list[Pubkey] = []
    loaded_readonly: list[Pubkey] = []
    for lookup in message.address_table_lookups:
        addresses = _table(account(lookup.account_key))
        try:
            loaded_writable += [addresses[index] for index in lookup.writable_indexes]
            loaded_readonly += [addresses[index] for index in lookup.readonly_indexes]
        except IndexError:
            raise LookupFailed("InvalidAddressLookupTableIndex") from None
    writable += range(len(keys), len(keys) + len(loaded_writable))
    return (
        keys + loaded_writable + loaded_readonly,
        writable,
        (len(loaded_writable), len(loaded_readonly)),
    )


def _table(account: Account | None) -> list[Pubkey]:
    if account is None:
        raise LookupFailed("AddressLookupTableNotFound")
    if account.owner != LOOKUP_PROGRAM_ID:
        raise LookupFailed("InvalidAddressLookupTableOwner")
    try:
        return AddressLookupTable.deserialize(account.data).addresses
    except Exception:
        raise LookupFailed("InvalidAddressLookupTableData") from None


SYSTEM_ID = Pubkey.default()
SYSVAR_OWNER = Pubkey.from_string("Sysvar1111111111111111111111111111111111111")
# The same minimum balance as 3,480 lamports for 2 years, in the form of SIMD-0194.
RENT = Rent(6960, 1.0, 50)
ACCOUNT_OVERHEAD_BYTES = 128

_DISABLE_DEPLOYMENTS = Pubkey.from_string("EmhbpdVtZ2hWRGFWBDjn2i3SJD8Z36z4mpMcZJEnebnP")
_INCINERATOR = Pubkey.from_string("1nc1nerator11111111111111111111111111111111")
_NOTHING = Account(0, b"", SYSTEM_ID, False)

NO_META = TransactionMetadata.from_json(
    msgspec.json.encode(
        {
            "signature": str(Signature.default()),
            "logs": [],
            "inner_instructions": [],
            "compute_units_consumed": 0,
            "return_data": {"program_id": [0] * 32, "data": []},
        }
    ).decode()
)

AccountState = tuple[Pubkey, Account | None]

_FMODL = ctypes.CDLL(None).fmodl
_FMODL.argtypes = [ctypes.c_longdouble, ctypes.c_longdouble]
_FMODL.restype = ctypes.c_longdouble


def clear_x87_registers() -> None:
    """Pop the x87 registers that LiteSVM may leave in use after running a program.

    Otherwise the next x87 operation of this thread, such as numpy's `//` of two numbers, overflows
    the register stack and returns NaN. Call it after every transaction that LiteSVM executes.
    """
    _FMODL(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class ExecutionOutcome:
    """What a transaction did. `landed` is false if a validator would drop it without a fee."""

    error: Any
    landed: bool
    meta: TransactionMetadata
    fee: Fee
    keys: list[Pubkey]
    loaded_writable: int
    loaded_readonly: int
    pre_balances: list[int]
    post_balances: list[int]
    before: list[AccountState]
    after: list[AccountState]


def minimum_balance(data_bytes: int) -> int:
    """Return the lamports that keep an account of `data_bytes` alive."""
    return (data_bytes + ACCOUNT_OVERHEAD_BYTES) * RENT.lamports_per_byte_year


class Runtime:
    """Accounts and execution. Knows slots only from the sysvars it gets, and keeps no history."""

    def __init__(self) -> None:
        # Without this feature, programs can be deployed by transactions.
        active = dict(FeatureSet.all_enabled().active)
        active.pop(_DISABLE_DEPLOYMENTS)
        features = FeatureSet(active, {_DISABLE_DEPLOYMENTS})
        self._svm = (
            LiteSVM.default()
            .with_builtins(features)
            .with_lamports(1)
            .with_sysvars()
            .with_precompiles(features)
            .with_spl_programs()
            # The bank checks both; LiteSVM knows one blockhash only.
            .with_sigverify(False)
            .with_blockhash_check(False)
            .with_transaction_history(0)
            .with_log_bytes_limit(10_000)
        )
        self._svm.set_rent(RENT)

    def account(self, key: Pubkey) -> Account | None:
        account_data = self._svm.get_account(key)
        return account_data if account_data is not None and account_data.lamports else None

    def balance(self, key: Pubkey) -> int:
        return self._svm.get_balance(key) or 0

    def set_clock(self, clock: Clock, slot_hashes: bytes) -> None:
        self._svm.set_clock(clock)
        lamports = minimum_balance(len(slot_hashes))
        self._svm.set_account(SLOT_HASHES, Account(lamports, slot_hashes, SYSVAR_OWNER, False))

    def store(self, states: list[AccountState]) -> None:
        """Overwrite accounts; programs come after their data, so that the new code is what runs."""
        programs: list[tuple[Pubkey, Account]] = []
        for key, account in states:
            if account is not None and program_data_of(account) is not None:
                programs.append((key, account))
            else:
                self._svm.set_account(key, account or _NOTHING)
        for key, account in programs:
            self._store_program(key, account)

    def _store_program(self, key: Pubkey, account: Account) -> None:
        data_key = program_data_of(account)
        if data_key is not None and elf_of(self._svm.get_account(data_key)) is None:
            # Without the flag, LiteSVM refuses a closed program, as a validator does.
            account = Account(
                account.lamports, account.data, account.owner, False, account.rent_epoch
            )
        self._svm.set_account(key, account)

    def execute(self, tx: VersionedTransaction) -> ExecutionOutcome:
        """Run `tx` and keep its effects (or its fee, when it fails after being charged)."""
        outcome = self.simulate(tx)
        if outcome.landed:
            self.store(outcome.after)
        return outcome

    def undo(self, outcome: ExecutionOutcome) -> None:
        self.store(outcome.before)

    def simulate(self, tx: VersionedTransaction) -> ExecutionOutcome:
        """Run `tx` and keep nothing. `after` has the accounts it may write, as they would be."""
        message = tx.message
        fee = fee_of(message)
        try:
            keys, writable, loaded = account_keys(message, self.account)
        except LookupFailed as failure:
            return _refused(failure.error, fee, message)
        before: list[AccountState] = [(keys[i], self.account(keys[i])) for i in writable]
        payer = before[0][1]
        if payer is None or payer.lamports < fee.total:
            return _refused(
                "AccountNotFound" if payer is None else "InsufficientFundsForFee", fee, message
            )
        error, meta, after = self._call(tx, fee, payer, before)
        error = self._explain(error, message, keys)
        landed = error is None or _is_charged(error)
        error = error if error is not None else _rent_error(writable, before, after)
        if error is not None:
            after = (
                [(keys[0], _with_lamports(payer, payer.lamports - fee.total)), *before[1:]]
                if landed
                else before
            )
        pre = [self.balance(key) for key in keys]
        post = list(pre)
        for index, (_, account) in zip(writable, after, strict=True):
            post[index] = account.lamports if account is not None else 0
        return ExecutionOutcome(error, landed, meta, fee, keys, *loaded, pre, post, before, after)

    def _call(
        self, tx: VersionedTransaction, fee: Fee, payer: Account, before: list[AccountState]
    ) -> tuple[Any, TransactionMetadata, list[AccountState]]:
        """Return (error, metadata, accounts afterwards), run without the payer's priority fee."""
        if fee.priority:
            self._svm.set_account(
                before[0][0], _with_lamports(payer, payer.lamports - fee.priority)
            )
        try:
            # `send_transaction` panics when a program is closed, and stored programs must come
            # after their data. So LiteSVM only simulates, and `store` keeps what comes out.
            result = self._svm.simulate_transaction(tx)
        except BaseException as error:
            # A panic inside LiteSVM arrives as a PanicException, which is not an Exception.
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise JsonRpcError(
                INTERNAL_ERROR, f"The runtime refused the transaction: {error}"
            ) from None
        finally:
            clear_x87_registers()
            if fee.priority:
                self.store(before[:1])
        if isinstance(result, FailedTransactionMetadata):
            return msgspec.json.decode(result.to_json())["err"], result.meta(), before
        changed = dict(result.post_accounts())
        return None, result.meta(), [(key, _alive(changed.get(key, old))) for key, old in before]

    def _explain(self, error: Any, message: Message | MessageV0, keys: list[Pubkey]) -> Any:
        """Return a validator's error for a missing program; LiteSVM's error is less specific."""
        if error == "InvalidProgramForExecution":
            programs = {instruction.program_id_index for instruction in message.instructions}
            if any(self.account(keys[index]) is None for index in programs if index < len(keys)):
                return "ProgramAccountNotFound"
        return error


def _alive(account: Account | None) -> Account | None:
    return account if account is not None and account.lamports else None


def _with_lamports(account: Account, lamports: int) -> Account:
    return Account(lamports, account.data, account.owner, account.executable, account.rent_epoch)


def _is_charged(error: Any) -> bool:
    """Return whether the transaction reached execution, and so pays."""
    return isinstance(error, dict) and (
        "InstructionError" in error or "InsufficientFundsForRent" in error
    )


def _refused(error: str, fee: Fee, message: Message | MessageV0) -> ExecutionOutcome:
    return ExecutionOutcome(
        error, False, NO_META, fee, list(message.account_keys), 0, 0, [], [], [], []
    )


def _rent_error(writable: list[int], before: list[AccountState], after: list[AccountState]) -> Any:
    """Return agave's error for an account that becomes, or grows, below its minimum balance."""
    for index, (key, old), (_, new) in zip(writable, before, after, strict=True):
        if new is None or new.lamports >= minimum_balance(len(new.data)):
            continue
        if key == _INCINERATOR:  # it may receive any amount
            continue
        paying = old is not None and old.lamports < minimum_balance(len(old.data))
        if (
            old is None
            or not paying
            or len(old.data) != len(new.data)
            or new.lamports > old.lamports
        ):
            return {"InsufficientFundsForRent": {"account_index": index}}
    return None
