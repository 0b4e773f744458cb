"""The JSON-RPC methods sendTransaction, simulateTransaction and requestAirdrop.

As on a validator (agave 3.1), a failed preflight, also by a bad signature, is -32002 with the
simulation in `data`. With skipPreflight, a transaction that cannot land is dropped silently.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from solders.compute_budget import set_compute_unit_limit
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from aftermath.localnet.bank import Bank
from aftermath.localnet.commit import Committer
from aftermath.localnet.encode import AccountView, inner_instructions, return_data
from aftermath.localnet.errors import (
    INTERNAL_ERROR,
    PREFLIGHT_FAILURE,
    JsonRpcError,
    invalid_params,
    sentence,
)
from aftermath.localnet.json_rpc import ConfigObject, Params, decoded, pubkey
from aftermath.localnet.read_methods import ReadMethods
from aftermath.localnet.runtime import ExecutionOutcome

PACKET_BYTES = 1232
AIRDROP_UNITS = 1_000
MAX_SIMULATED_ACCOUNTS = 64


class TransactionMethods:
    """The methods by JSON-RPC name. Each takes the `params` of a call and returns an awaitable."""

    def __init__(
        self, bank: Bank, committer: Committer, reading: ReadMethods, faucet: Keypair
    ) -> None:
        self._bank = bank
        self._committer = committer
        self._reading = reading
        self._faucet = faucet
        self._airdrops = itertools.count(AIRDROP_UNITS)

    def methods(self) -> dict[str, Callable[[Any], Awaitable[Any]]]:
        return {
            "sendTransaction": self.send,
            "simulateTransaction": self.simulate,
            "requestAirdrop": self.airdrop,
        }

    async def send(self, params: Any) -> str:
        arguments = Params(params, 2)
        config = arguments.config(1)
        self._reading.reached(ConfigObject({"minContextSlot": config.raw("minContextSlot")}))
        tx, wire = transaction_of(arguments.text(0, "transaction"), config)
        genuine = all(tx.verify_with_results())
        if not config.flag("skipPreflight"):
            ConfigObject({"commitment": config.raw("preflightCommitment")}).check_commitment()
            self._preflight(tx, genuine)
        if genuine:
            await self._committer.submit(tx, wire)
        return str(tx.signatures[0])

    def _preflight(self, tx: VersionedTransaction, genuine: bool) -> None:
        error = self._bank.check(tx) if genuine else "SignatureFailure"
        if error is not None:
            raise _preflight_failure(error, None)
        outcome = self._bank.simulate(tx)
        if outcome.error is not None:
            raise _preflight_failure(outcome.error, outcome)

    async def simulate(self, params: Any) -> dict[str, Any]:
        arguments = Params(params, 2)
        config = arguments.config(1)
        self._reading.reached(config)
        tx, _ = transaction_of(arguments.text(0, "transaction"), config)
        verify = config.flag("sigVerify")
        replace = config.flag("replaceRecentBlockhash")
        if verify and replace:
            raise invalid_params("sigVerify may not be used with replaceRecentBlockhash")
        replacement = None
        if replace:
            tx = _with_blockhash(tx, self._bank)
            slots = self._bank.slots
            replacement = {
                "blockhash": str(slots.latest),
                "lastValidBlockHeight": slots.last_valid_height,
            }
        requested_accounts = _wanted_accounts(config)
        genuine = not verify or all(tx.verify_with_results())
        error = self._bank.check(tx) if genuine else "SignatureFailure"
        outcome = None if error is not None else self._bank.simulate(tx)
        value = _simulation(error, outcome, inner=config.flag("innerInstructions"))
        if requested_accounts is not None:
            value["accounts"] = self._accounts(outcome, *requested_accounts)
        if replacement is not None:
            value["replacementBlockhash"] = replacement
        return self._reading.context(value)

    def _accounts(
        self, outcome: ExecutionOutcome | None, view: AccountView, keys: list[Pubkey]
    ) -> list[Any]:
        if outcome is None or outcome.error is not None:
            return [None] * len(keys)
        after = dict(outcome.after)
        return [view.show(after[key] if key in after else self._bank.account(key)) for key in keys]

    async def airdrop(self, params: Any) -> str:
        arguments = Params(params, 3)
        to = arguments.pubkey(0)
        lamports = arguments.number(1, "lamports")
        if arguments.raw(2) is not None:
            arguments.config(2).check_commitment()
        return await self.give(to, lamports)

    async def give(self, to: Pubkey, lamports: int) -> str:
        """Transfer from the faucet and return the signature. Raise JsonRpcError on failure."""
        payer = self._faucet.pubkey()
        # The compute limit differs, so that two equal airdrops in one slot are two transactions.
        unique = set_compute_unit_limit(next(self._airdrops))
        move = transfer(TransferParams(from_pubkey=payer, to_pubkey=to, lamports=lamports))
        message = Message.new_with_blockhash([unique, move], payer, self._bank.slots.latest)
        tx = VersionedTransaction(message, [self._faucet])
        outcome = self._bank.simulate(tx)
        error = (
            outcome.error
            if outcome.error is not None
            else await self._committer.submit(tx, bytes(tx))
        )
        if error is not None:
            raise JsonRpcError(
                INTERNAL_ERROR, f"The airdrop of {lamports} lamports failed: {sentence(error)}"
            )
        return str(tx.signatures[0])


def transaction_of(text: str, config: ConfigObject) -> tuple[VersionedTransaction, bytes]:
    """Return a sanitised transaction and its wire form without trailing bytes.

    Raise JsonRpcError for anything else.
    """
    encoding = config.text("encoding", ("base58", "base64"), "base58")
    data = decoded(text, encoding, PACKET_BYTES)
    try:
        tx = VersionedTransaction.from_bytes(data)
    except ValueError as error:
        raise invalid_params(
            f"failed to deserialize solana_transaction::VersionedTransaction: {error}"
        ) from None
    try:
        tx.sanitize()
    except Exception as error:
        raise invalid_params(
            f"invalid transaction: Transaction failed to sanitize accounts offsets correctly: {error}"
        ) from None
    return tx, bytes(tx)


def _with_blockhash(tx: VersionedTransaction, bank: Bank) -> VersionedTransaction:
    old = tx.message
    latest = bank.slots.latest
    message: Message | MessageV0
    if isinstance(old, MessageV0):
        message = MessageV0(
            old.header, old.account_keys, latest, old.instructions, old.address_table_lookups
        )
    else:
        header = old.header
        message = Message.new_with_compiled_instructions(
            header.num_required_signatures,
            header.num_readonly_signed_accounts,
            header.num_readonly_unsigned_accounts,
            old.account_keys,
            latest,
            old.instructions,
        )
    return VersionedTransaction.populate(message, tx.signatures)


def _wanted_accounts(config: ConfigObject) -> tuple[AccountView, list[Pubkey]] | None:
    section = config.section("accounts")
    if section is None:
        return None
    keys = [pubkey(item, "address") for item in section.items("addresses", MAX_SIMULATED_ACCOUNTS)]
    view = AccountView.of(section, "base64")
    if view.encoding in ("binary", "base58"):
        raise invalid_params("base58 encoding not supported")
    return view, keys


def _preflight_failure(error: Any, outcome: ExecutionOutcome | None) -> JsonRpcError:
    data = _simulation(error, outcome, inner=False)
    return JsonRpcError(
        PREFLIGHT_FAILURE, f"Transaction simulation failed: {sentence(error)}", data
    )


_MAYBE = ("accounts", "fee", "preBalances", "postBalances", "returnData", "innerInstructions")


def _simulation(error: Any, outcome: ExecutionOutcome | None, inner: bool) -> dict[str, Any]:
    """Return an RpcSimulateTransactionResult. `error` is from a check before the simulation."""
    if outcome is None:
        return {"err": error, "logs": [], "unitsConsumed": 0, **dict.fromkeys(_MAYBE)}
    succeeded = outcome.error is None
    return {
        "err": outcome.error,
        "logs": outcome.meta.logs(),
        "accounts": None,
        "fee": outcome.fee.total if outcome.landed else None,
        "preBalances": outcome.pre_balances if succeeded else None,
        "postBalances": outcome.post_balances if succeeded else None,
        "unitsConsumed": outcome.meta.compute_units_consumed(),
        "returnData": return_data(outcome.meta),
        "innerInstructions": inner_instructions(outcome.meta) if inner else None,
    }
