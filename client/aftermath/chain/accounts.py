"""Reading accounts: whole, sliced, several at once, or by program; every reply is checked before it is believed."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import zstandard
from solders.account_decoder import UiAccountEncoding, UiDataSliceConfig
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import RpcAccountInfoConfig, RpcContextConfig, RpcProgramAccountsConfig
from solders.rpc.filter import Memcmp
from solders.rpc.requests import (
    GetAccountInfo,
    GetBalance,
    GetMinimumBalanceForRentExemption,
    GetMultipleAccounts,
    GetProgramAccounts,
)

from aftermath.base.bounded import is_u64
from aftermath.base.errors import AccountError
from aftermath.chain.failures import BadReply
from aftermath.chain.nodes import FAILURES_BEFORE_LEAVING
from aftermath.chain.rpc import RpcPool

T = TypeVar("T")

COMMITMENT = CommitmentLevel.Confirmed
MAX_ACCOUNT = 10 << 20
LAMPORTS_PER_SOL = 1_000_000_000


@dataclass(frozen=True, slots=True)
class AccountData:
    """An account as a node reported it at `slot`; `data` is what was asked for (a slice, or all)."""

    slot: int
    lamports: int
    owner: Pubkey
    executable: bool
    data: bytes


class Doubt:
    """One reading that may say what is believed only if all nodes say so, each as often as it may fail."""

    def __init__(self, pool: RpcPool) -> None:
        self._left = FAILURES_BEFORE_LEAVING * len(pool.endpoints)

    def absent(self) -> None:
        """A node has sent nothing for an account that was there, or another program's (see `said`)."""
        self.said("does not know an account of the run")

    def said(self, what: str) -> None:
        """A node has said it. Raises BadReply while that may be its fault."""
        self._left -= 1
        if self._left > 0:
            raise BadReply(f"the RPC node {what}")


async def fetch(
    pool: RpcPool,
    address: Pubkey,
    *,
    offset: int = 0,
    length: int | None = None,
    min_slot: int | None = None,
    patience: float | None = None,
) -> tuple[int, AccountData | None]:
    """(slot, account or None) of one account, or of `length` bytes of it from `offset`, as of `min_slot` or later."""
    return await pool.call(_get(address, offset, length, min_slot), parse_reply, patience=patience)


async def fetch_as(
    pool: RpcPool,
    address: Pubkey,
    read: Callable[[AccountData | None], T],
    *,
    offset: int = 0,
    length: int | None = None,
    min_slot: int | None = None,
    patience: float | None = None,
) -> T:
    """What `read` makes of one account (see `fetch`). An AccountError of it is the node's failure, like any reply
    that cannot be read: for accounts that are known to be of this version.
    """

    def understood(reply: Any) -> T:
        try:
            return read(parse_reply(reply)[1])
        except AccountError as error:
            raise BadReply(f"the RPC node sent a malformed account: {error.message}") from error

    return await pool.call(_get(address, offset, length, min_slot), understood, patience=patience)


def _get(address: Pubkey, offset: int, length: int | None, min_slot: int | None) -> GetAccountInfo:
    window = None if length is None else UiDataSliceConfig(offset, length)
    return GetAccountInfo(address, RpcAccountInfoConfig(UiAccountEncoding.Base64, window, COMMITMENT, min_slot))


async def fetch_many(
    pool: RpcPool,
    addresses: Sequence[Pubkey],
    *,
    min_slot: int | None = None,
    patience: float | None = None,
    legible: Callable[[list[AccountData | None]], None] = lambda accounts: None,
) -> tuple[int, list[AccountData | None]]:
    """(slot, accounts) of up to 100 accounts, all as of one slot. An AccountError or BadReply of `legible` is the
    node's failure, like any reply that cannot be read.
    """
    config = RpcAccountInfoConfig(UiAccountEncoding.Base64, None, COMMITMENT, min_slot)

    def read(reply: Any) -> tuple[int, list[AccountData | None]]:
        slot, values = _context(reply)
        if not isinstance(values, list) or len(values) != len(addresses):
            raise BadReply("the RPC node answered getMultipleAccounts with another number of accounts")
        accounts = [None if v is None else decode_account(slot, v) for v in values]
        try:
            legible(accounts)
        except AccountError as error:
            raise BadReply(f"the RPC node sent a malformed account: {error.message}") from error
        return slot, accounts

    return await pool.call(GetMultipleAccounts(list(addresses), config), read, patience=patience)


async def fetch_program(
    pool: RpcPool,
    program: Pubkey,
    *,
    prefix: bytes,
    size: int,
    holding: tuple[int, bytes] | None = None,
    offset: int = 0,
    length: int | None = None,
) -> list[tuple[Pubkey, AccountData]]:
    """The accounts of `program` whose data begin with `prefix` and have `size` bytes (a slice of their data).

    `holding`: a place in the data and the bytes that must stand there.
    """
    filters: list[int | Memcmp] = [size, Memcmp(0, prefix)]
    if holding is not None:
        filters.append(Memcmp(*holding))
    window = None if length is None else UiDataSliceConfig(offset, length)
    config = RpcProgramAccountsConfig(RpcAccountInfoConfig(UiAccountEncoding.Base64, window, COMMITMENT), filters)
    return await pool.call(GetProgramAccounts(program, config), _listed, attempt=30.0)


def _listed(reply: Any) -> list[tuple[Pubkey, AccountData]]:
    values = reply["value"] if isinstance(reply, dict) and "value" in reply else reply
    if not isinstance(values, list):
        raise BadReply("the RPC node answered getProgramAccounts with something else")
    try:
        return [(Pubkey.from_string(v["pubkey"]), decode_account(0, v["account"])) for v in values]
    except (KeyError, TypeError, ValueError) as error:
        raise BadReply(f"the RPC node sent a malformed account: {error}") from error


async def balance(pool: RpcPool, address: Pubkey, min_slot: int | None = None) -> int:
    """Lamports of an account (0 when it does not exist), as of `min_slot` or later."""
    request = GetBalance(address, RpcContextConfig(COMMITMENT, min_slot))
    return await pool.call(request, lambda reply: whole(_context(reply)[1]))


async def rent(pool: RpcPool, size: int) -> int:
    """Lamports that an account of `size` bytes must hold."""
    return await pool.call(GetMinimumBalanceForRentExemption(size), whole)


def whole(value: Any) -> int:
    """A whole number that the cluster's 64 bits hold; BadReply for anything else."""
    if not is_u64(value):
        raise BadReply("the RPC node sent something else than a whole number")
    return value


def parse_reply(reply: Any) -> tuple[int, AccountData | None]:
    """(slot, account or None) of a getAccountInfo result or an account notification's result."""
    slot, value = _context(reply)
    return slot, None if value is None else decode_account(slot, value)


def decode_account(slot: int, value: Any) -> AccountData:
    """The JSON of an account (data in base64 or base64+zstd) -> AccountData; BadReply if it is malformed."""
    try:
        text, encoding = value["data"]
        data = base64.b64decode(text, validate=True)
        if encoding == "base64+zstd":
            data = _decompress(data)
        elif encoding != "base64":
            raise ValueError(f"encoding {encoding!r}")
        owner = Pubkey.from_string(value["owner"])
        return AccountData(slot, int(value["lamports"]), owner, bool(value["executable"]), data)
    except (LookupError, TypeError, ValueError, zstandard.ZstdError) as error:
        raise BadReply(f"the RPC node sent a malformed account: {error}") from error


def _decompress(data: bytes) -> bytes:
    """Streams, because the validator's frames do not state their size; stops at MAX_ACCOUNT."""
    with zstandard.ZstdDecompressor().stream_reader(data) as reader:
        raw = reader.read(MAX_ACCOUNT + 1)
    if len(raw) > MAX_ACCOUNT:
        raise ValueError("account too large")
    return raw


def _context(reply: Any) -> tuple[int, Any]:
    try:
        slot = reply["context"]["slot"]
        value = reply["value"]
    except (KeyError, TypeError) as error:
        raise BadReply("the RPC node sent a reply without its slot") from error
    return whole(slot), value
