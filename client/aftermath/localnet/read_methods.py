"""The JSON-RPC methods that only read: accounts, slots, blockhashes, history.

A reply with a context carries the current slot. Commitments are checked and then ignored, because
all three see the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from solders.account import Account
from solders.hash import Hash, ParseHashError
from solders.message import Message, MessageV0, from_bytes_versioned
from solders.pubkey import Pubkey

from aftermath.localnet.bank import Bank
from aftermath.localnet.encode import TRANSACTION_ENCODINGS, AccountView, legacy_status, transaction
from aftermath.localnet.errors import (
    BLOCK_NOT_AVAILABLE,
    MIN_CONTEXT_SLOT_NOT_REACHED,
    JsonRpcError,
    invalid_params,
)
from aftermath.localnet.fees import fee_of
from aftermath.localnet.json_rpc import ConfigObject, Params, decoded, parse_filters, signature
from aftermath.localnet.records import Landed
from aftermath.localnet.runtime import minimum_balance
from aftermath.localnet.slots import SLOTS_PER_EPOCH

API_VERSION = "2.2.0"
FEATURE_SET = 3073396398
MAX_ACCOUNT_BYTES = 10 * 1024 * 1024
MAX_KEYS = 100
MAX_STATUSES = 256
MAX_SIGNATURES = 1000
MAX_FEE_ACCOUNTS = 128
MAX_MESSAGE_BYTES = 1232

Method = Callable[[Any], Any]


class ReadMethods:
    """The methods by JSON-RPC name. Each takes the `params` of a call and returns the result."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank

    def methods(self) -> dict[str, Method]:
        return {
            "getVersion": lambda params: {"solana-core": API_VERSION, "feature-set": FEATURE_SET},
            "getGenesisHash": lambda params: str(self._bank.slots.genesis),
            "getSlot": self._number(lambda: self._bank.slot),
            "getBlockHeight": self._number(lambda: self._bank.slot),
            "getTransactionCount": self._number(lambda: self._bank.transactions),
            "getEpochInfo": self.epoch_info,
            "getBlockTime": self.block_time,
            "getLatestBlockhash": self.latest_blockhash,
            "isBlockhashValid": self.is_blockhash_valid,
            "getAccountInfo": self.account_info,
            "getMultipleAccounts": self.multiple_accounts,
            "getProgramAccounts": self.program_accounts,
            "getBalance": self.balance,
            "getMinimumBalanceForRentExemption": self.minimum_balance,
            "getSignatureStatuses": self.signature_statuses,
            "getSignaturesForAddress": self.signatures_for_address,
            "getTransaction": self.transaction,
            "getRecentPrioritizationFees": self.recent_fees,
            "getFeeForMessage": self.fee_for_message,
        }

    def context(self, value: Any) -> dict[str, Any]:
        return {"context": {"slot": self._bank.slot, "apiVersion": API_VERSION}, "value": value}

    def reached(self, config: ConfigObject) -> None:
        """Raise JsonRpcError for a bad commitment or a minContextSlot that is not reached."""
        config.check_commitment()
        minimum = config.number("minContextSlot")
        if minimum is not None and minimum > self._bank.slot:
            raise JsonRpcError(
                MIN_CONTEXT_SLOT_NOT_REACHED,
                "Minimum context slot has not been reached",
                {"contextSlot": self._bank.slot},
            )

    def _number(self, value: Callable[[], int]) -> Method:
        def answer(params: Any) -> int:
            self.reached(Params(params, 1).config(0))
            return value()

        return answer

    def epoch_info(self, params: Any) -> dict[str, int]:
        self.reached(Params(params, 1).config(0))
        slot = self._bank.slot
        return {
            "absoluteSlot": slot,
            "blockHeight": slot,
            "epoch": slot // SLOTS_PER_EPOCH,
            "slotIndex": slot % SLOTS_PER_EPOCH,
            "slotsInEpoch": SLOTS_PER_EPOCH,
            "transactionCount": self._bank.transactions,
        }

    def block_time(self, params: Any) -> int:
        slot = Params(params, 1).number(0, "slot")
        time = self._bank.slots.unix_time(slot) if slot <= self._bank.slot else None
        if time is None:
            raise JsonRpcError(BLOCK_NOT_AVAILABLE, f"Block not available for slot {slot}")
        return int(time)

    def latest_blockhash(self, params: Any) -> dict[str, Any]:
        self.reached(Params(params, 1).config(0))
        slots = self._bank.slots
        return self.context(
            {"blockhash": str(slots.latest), "lastValidBlockHeight": slots.last_valid_height}
        )

    def is_blockhash_valid(self, params: Any) -> dict[str, Any]:
        arguments = Params(params, 2)
        self.reached(arguments.config(1))
        try:
            value = Hash.from_string(arguments.text(0, "blockhash"))
        except (ValueError, ParseHashError):
            raise invalid_params("blockhash is not a base58 hash of 32 bytes") from None
        return self.context(self._bank.slots.is_recent(value))

    def account_info(self, params: Any) -> dict[str, Any]:
        arguments = Params(params, 2)
        config = arguments.config(1)
        self.reached(config)
        return self.context(AccountView.of(config).show(self._bank.account(arguments.pubkey(0))))

    def multiple_accounts(self, params: Any) -> dict[str, Any]:
        arguments = Params(params, 2)
        config = arguments.config(1)
        self.reached(config)
        view = AccountView.of(config, "base64")
        return self.context(
            [view.show(self._bank.account(key)) for key in arguments.pubkeys(0, MAX_KEYS)]
        )

    def program_accounts(self, params: Any) -> Any:
        arguments = Params(params, 2)
        config = arguments.config(1)
        self.reached(config)
        view = AccountView.of(config)
        matches = parse_filters(config)
        accounts: list[tuple[Pubkey, Account]] = [
            (key, account)
            for key, account in self._bank.owned_by(arguments.pubkey(0))
            if account is not None and matches(account)
        ]
        accounts.sort(key=lambda item: bytes(item[0]))
        entries = [{"pubkey": str(key), "account": view.show(account)} for key, account in accounts]
        return self.context(entries) if config.flag("withContext") else entries

    def balance(self, params: Any) -> dict[str, Any]:
        arguments = Params(params, 2)
        self.reached(arguments.config(1))
        return self.context(self._bank.balance(arguments.pubkey(0)))

    def minimum_balance(self, params: Any) -> int:
        arguments = Params(params, 2)
        size = arguments.number(0, "data length")
        if size > MAX_ACCOUNT_BYTES:
            raise invalid_params(
                f"data length is {size}; an account may have {MAX_ACCOUNT_BYTES} bytes"
            )
        return minimum_balance(size)

    def signature_statuses(self, params: Any) -> dict[str, Any]:
        arguments = Params(params, 2)
        signatures = arguments.raw(0)
        if not isinstance(signatures, list):
            raise invalid_params("signatures must be a list")
        if len(signatures) > MAX_STATUSES:
            raise invalid_params(f"Too many inputs provided; max {MAX_STATUSES}")
        return self.context(
            [self._status(self._bank.history.get(signature(text))) for text in signatures]
        )

    def _status(self, landed: Landed | None) -> dict[str, Any] | None:
        if landed is None:
            return None
        return {
            "slot": landed.slot,
            "confirmations": None,
            "err": landed.error,
            "status": legacy_status(landed.error),
            "confirmationStatus": "finalized",
        }

    def signatures_for_address(self, params: Any) -> list[dict[str, Any]]:
        arguments = Params(params, 2)
        config = arguments.config(1)
        self.reached(config)
        limit = config.number("limit")
        limit = MAX_SIGNATURES if limit is None else limit
        if not 1 <= limit <= MAX_SIGNATURES:
            raise invalid_params(f"Invalid limit; max {MAX_SIGNATURES}")
        before = config.raw("before")
        until = config.raw("until")
        entries = self._bank.history.of_account(
            arguments.pubkey(0, "address"),
            limit,
            None if before is None else signature(before),
            None if until is None else signature(until),
        )
        return [
            {
                "signature": str(landed.signature),
                "slot": landed.slot,
                "err": landed.error,
                "memo": None,
                "blockTime": landed.time,
                "confirmationStatus": "finalized",
            }
            for landed in entries
        ]

    def transaction(self, params: Any) -> dict[str, Any] | None:
        arguments = Params(params, 2)
        requested = signature(arguments.text(0, "signature"))
        config = (
            ConfigObject({"encoding": arguments.raw(1)})
            if isinstance(arguments.raw(1), str)
            else arguments.config(1)
        )
        config.check_commitment()
        encoding = config.text("encoding", TRANSACTION_ENCODINGS, "json")
        landed = self._bank.history.get(requested)
        return (
            None
            if landed is None
            else transaction(landed, encoding, config.number("maxSupportedTransactionVersion"))
        )

    def recent_fees(self, params: Any) -> list[dict[str, int]]:
        arguments = Params(params, 1)
        accounts = [] if arguments.raw(0) is None else arguments.pubkeys(0, MAX_FEE_ACCOUNTS)
        return [
            {"slot": slot, "prioritizationFee": price}
            for slot, price in self._bank.fees.at(self._bank.slot, accounts)
        ]

    def fee_for_message(self, params: Any) -> dict[str, Any]:
        arguments = Params(params, 2)
        self.reached(arguments.config(1))
        message = _message(decoded(arguments.text(0, "message"), "base64", MAX_MESSAGE_BYTES))
        return self.context(
            fee_of(message).total if self._bank.slots.is_recent(message.recent_blockhash) else None
        )


def _message(data: bytes) -> Message | MessageV0:
    try:
        return from_bytes_versioned(data)
    except Exception as error:
        raise invalid_params(f"failed to deserialize a message: {error}") from None
