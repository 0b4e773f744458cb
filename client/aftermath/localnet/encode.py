"""Accounts, transactions and their statuses as JSON, in the shapes of agave 2.x.

`jsonParsed` gives base64 for all accounts, as a validator does for programs without a parser.
"""

from __future__ import annotations

import base64
from typing import Any

import based58
import msgspec
import zstandard
from solders.account import Account
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import InnerInstruction, TransactionMetadata

from aftermath.base.bounded import U64_MAX
from aftermath.localnet.errors import (
    INVALID_REQUEST,
    UNSUPPORTED_TRANSACTION_VERSION,
    JsonRpcError,
    invalid_params,
)
from aftermath.localnet.json_rpc import ConfigObject
from aftermath.localnet.records import Landed

ACCOUNT_ENCODINGS = ("binary", "base58", "base64", "base64+zstd", "jsonParsed")
TRANSACTION_ENCODINGS = ("json", "base64", "base58")
MAX_BASE58_BYTES = 128
# A validator shows this epoch for every rent-exempt account.
RENT_EXEMPT_EPOCH = U64_MAX


class AccountView(msgspec.Struct, frozen=True):
    """The encoding of accounts for a client, and an optional (offset, length) of the data."""

    encoding: str
    slice: tuple[int, int] | None = None

    @classmethod
    def of(cls, config: ConfigObject, default: str = "binary") -> AccountView:
        encoding = config.text("encoding", ACCOUNT_ENCODINGS, default)
        section = config.section("dataSlice")
        if section is None:
            return cls(encoding)
        offset = section.number("offset")
        length = section.number("length")
        if offset is None or length is None:
            raise invalid_params("dataSlice needs offset and length")
        return cls(encoding, (offset, length))

    def show(self, account: Account | None) -> dict[str, Any] | None:
        if account is None:
            return None
        whole = account.data
        data = whole if self.slice is None else whole[self.slice[0] : self.slice[0] + self.slice[1]]
        return {
            "lamports": account.lamports,
            "data": self._encode(data),
            "owner": str(account.owner),
            "executable": account.executable,
            "rentEpoch": RENT_EXEMPT_EPOCH,
            "space": len(whole),
        }

    def _encode(self, data: bytes) -> Any:
        if self.encoding in ("binary", "base58"):
            if len(data) > MAX_BASE58_BYTES:
                raise JsonRpcError(
                    INVALID_REQUEST,
                    "Encoded binary (base 58) data should be less than 128 bytes, please use Base64 encoding.",
                )
            text = to_base58(data)
            return text if self.encoding == "binary" else [text, "base58"]
        if self.encoding == "base64+zstd":
            return [to_base64(zstandard.ZstdCompressor().compress(data)), "base64+zstd"]
        return [to_base64(data), "base64"]


def to_base58(data: bytes) -> str:
    return based58.b58encode(data).decode()


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def legacy_status(error: Any) -> dict[str, Any]:
    """Return the `status` object that predates `err`."""
    return {"Ok": None} if error is None else {"Err": error}


def return_data(meta: TransactionMetadata) -> dict[str, Any] | None:
    returned = meta.return_data()  # type: ignore[attr-defined]  # the stub names it transaction_return_data
    if not returned.data:
        return None
    return {
        "programId": str(returned.program_id),
        "data": [to_base64(bytes(returned.data)), "base64"],
    }


def inner_instructions(meta: TransactionMetadata) -> list[dict[str, Any]]:
    entries = []
    for index, inner in enumerate(meta.inner_instructions()):
        if inner:
            entries.append({"index": index, "instructions": [_inner(one) for one in inner]})
    return entries


def _inner(inner: InnerInstruction) -> dict[str, Any]:
    compiled = inner.instruction()
    return {
        "programIdIndex": compiled.program_id_index,
        "accounts": list(compiled.accounts),
        "data": to_base58(bytes(compiled.data)),
        "stackHeight": inner.stack_height(),  # type: ignore[attr-defined]  # missing in the stub
    }


def transaction(landed: Landed, encoding: str, max_version: int | None) -> dict[str, Any]:
    """Return the result of getTransaction."""
    tx = VersionedTransaction.from_bytes(landed.wire)
    version = 0 if isinstance(tx.message, MessageV0) else "legacy"
    if version == 0 and max_version is None:
        raise JsonRpcError(
            UNSUPPORTED_TRANSACTION_VERSION,
            "Transaction version (0) is not supported by the requesting client. "
            "Please try the request again with the following configuration parameter: "
            '"maxSupportedTransactionVersion": 0',
        )
    fields: dict[str, Any] = {
        "slot": landed.slot,
        "blockTime": landed.time,
        "transaction": _json_transaction(tx)
        if encoding == "json"
        else [_wire(landed.wire, encoding), encoding],
        "meta": _meta(landed),
    }
    if max_version is not None:
        fields["version"] = version
    return fields


def _wire(wire: bytes, encoding: str) -> str:
    return to_base64(wire) if encoding == "base64" else to_base58(wire)


def _json_transaction(tx: VersionedTransaction) -> dict[str, Any]:
    return {"signatures": [str(s) for s in tx.signatures], "message": _json_message(tx.message)}


def _json_message(message: Message | MessageV0) -> dict[str, Any]:
    header = message.header
    fields: dict[str, Any] = {
        "header": {
            "numRequiredSignatures": header.num_required_signatures,
            "numReadonlySignedAccounts": header.num_readonly_signed_accounts,
            "numReadonlyUnsignedAccounts": header.num_readonly_unsigned_accounts,
        },
        "accountKeys": [str(key) for key in message.account_keys],
        "recentBlockhash": str(message.recent_blockhash),
        "instructions": [
            {
                "programIdIndex": one.program_id_index,
                "accounts": list(one.accounts),
                "data": to_base58(one.data),
                "stackHeight": 1,
            }
            for one in message.instructions
        ],
    }
    if isinstance(message, MessageV0):
        fields["addressTableLookups"] = [
            {
                "accountKey": str(lookup.account_key),
                "writableIndexes": list(lookup.writable_indexes),
                "readonlyIndexes": list(lookup.readonly_indexes),
            }
            for lookup in message.address_table_lookups
        ]
    return fields


def _meta(landed: Landed) -> dict[str, Any]:
    meta = TransactionMetadata.from_bytes(landed.meta)
    fields: dict[str, Any] = {
        "err": landed.error,
        "status": legacy_status(landed.error),
        "fee": landed.fee,
        "preBalances": landed.pre,
        "postBalances": landed.post,
        "innerInstructions": inner_instructions(meta),
        "logMessages": meta.logs(),
        "preTokenBalances": [],
        "postTokenBalances": [],
        "rewards": [],
        "loadedAddresses": {
            "writable": [str(Pubkey(key)) for key in landed.loaded_writable],
            "readonly": [str(Pubkey(key)) for key in landed.loaded_readonly],
        },
        "computeUnitsConsumed": meta.compute_units_consumed(),
    }
    returned = return_data(meta)
    if returned is not None:
        fields["returnData"] = returned
    return fields
