"""One RPC node over HTTP: solana-py's client with replies that are bounded before they are parsed.

`NodeClient` adds what `AsyncClient` lacks: `minContextSlot`, the accounts after a simulation, and
recent priority fees. It makes one request and does not retry; `chain.rpc` does. A `Wire` carries
the bytes, over this machine's network or a simulated one.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import httpx
import msgspec
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solana.rpc.providers.async_http import AsyncHTTPProvider
from solders.account import Account
from solders.account_decoder import UiAccountEncoding, UiDataSliceConfig
from solders.commitment_config import CommitmentLevel
from solders.errors import SerdeJSONError
from solders.pubkey import Pubkey
from solders.rpc.config import (
    RpcAccountInfoConfig,
    RpcContextConfig,
    RpcProgramAccountsConfig,
    RpcSimulateTransactionAccountsConfig,
    RpcSimulateTransactionConfig,
)
from solders.rpc.filter import Memcmp
from solders.rpc.requests import (
    GetAccountInfo,
    GetBalance,
    GetMultipleAccounts,
    GetProgramAccounts,
    GetSignaturesForAddress,
    SimulateVersionedTransaction,
)
from solders.rpc.responses import (
    GetAccountInfoResp,
    GetBalanceResp,
    GetMultipleAccountsResp,
    GetProgramAccountsResp,
    SimulateTransactionResp,
)
from solders.transaction import VersionedTransaction
from websockets.asyncio.client import connect

from aftermath.base.bounded import MAX_JSON_VALUES, json_as
from aftermath.base.proxies import ProxyTransport, proxy_url
from aftermath.chain.endpoints import shown
from aftermath.chain.failures import BadReply, TransactionFailed, error_json, raise_error

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_REPLY = 64 << 20
"""Maximum size of a reply in bytes, after decompression."""
MOST_VALUES = 1 << 15
"""Maximum number of JSON values in a reply to anything but `_LISTS`."""
STILL_SECONDS = 10.0
_LISTS = (GetProgramAccounts, GetSignaturesForAddress)
_MOST_COOKIES = 16  # load balancers set a cookie to keep a client on one node
_GZIP = zlib.MAX_WBITS | 16
_COMMITMENT = CommitmentLevel.Confirmed
_BASE64 = UiAccountEncoding.Base64
MAX_MESSAGE = 1 << 13
"""Maximum size of a websocket message in bytes. A push of the Run account takes about 2,000."""
PING_SECONDS = 5.0
OPEN_SECONDS = 5.0
CLOSE_SECONDS = 0.2  # a node that does not answer must not hold up the end of a process
HTTP_SECONDS = 30.0


class Connection(Protocol):
    """A websocket. It raises websockets' own errors."""

    async def send(self, message: str, /) -> None: ...

    async def recv(self) -> str | bytes: ...

    async def close(self) -> None: ...


class Wire(Protocol):
    """Opens HTTP sessions and websockets to a node."""

    def http(self) -> httpx.AsyncClient: ...

    def websocket(self, url: str) -> AbstractAsyncContextManager[Connection]: ...


class Internet:
    """Opens real connections. Websocket messages are size-limited and not compressed."""

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=HTTP_SECONDS, transport=ProxyTransport())

    def websocket(self, url: str) -> AbstractAsyncContextManager[Connection]:
        return connect(
            url,
            proxy=proxy_url(url),
            compression=None,
            max_size=MAX_MESSAGE,
            open_timeout=OPEN_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            close_timeout=CLOSE_SECONDS,
        )


@dataclass(frozen=True, slots=True)
class AccountData:
    """An account as a node reported it at `slot`. `data` is the requested slice, or all of it."""

    slot: int
    lamports: int
    owner: Pubkey
    executable: bool
    data: bytes

    @classmethod
    def at(cls, slot: int, account: Account) -> AccountData:
        """Return solders' account together with the slot at which it was read."""
        return cls(slot, account.lamports, account.owner, account.executable, account.data)


@dataclass(frozen=True, slots=True)
class Simulation:
    """A transaction that a node simulated without an error."""

    units: int | None
    """Compute units it used, if the node says so."""
    accounts: Sequence[Account | None]
    """The watched accounts as the transaction would leave them."""


class NodeClient(AsyncClient):
    """solana-py's client of the node at `url`, over `session`.

    It records each kind of request that the node has answered in the set `answered`.
    """

    _provider: BoundedProvider

    def __init__(self, url: str, session: httpx.AsyncClient, answered: set[str]) -> None:
        # AsyncClient.__init__ creates an HTTP client of its own: it ignores our proxy rules and
        # loads certificates.
        super(AsyncClient, self).__init__(Confirmed)
        self._provider = BoundedProvider(url, session, answered)
        self._slot = 0
        self._slot_since = float("inf")
        self._still_answers = 0

    def stands_still(self, slot: int, now: float) -> bool:
        """Record the slot of an answer.

        Return whether the node is behind: its slot has not moved for STILL_SECONDS. After two such
        answers the node gets the same time again, because the whole cluster may have stopped.
        """
        if slot > self._slot:
            self._slot = slot
            self._slot_since = now
            self._still_answers = 0
        if now - self._slot_since <= STILL_SECONDS:
            return False
        self._still_answers += 1
        if self._still_answers == 2:
            self._slot_since = now
            self._still_answers = 0
        return True

    async def account(
        self,
        address: Pubkey,
        *,
        offset: int = 0,
        length: int | None = None,
        min_slot: int | None = None,
    ) -> tuple[int, AccountData | None]:
        """Return (slot, account), as of `min_slot` or later. `length` reads that many bytes from
        `offset`.
        """
        window = None if length is None else UiDataSliceConfig(offset, length)
        config = RpcAccountInfoConfig(_BASE64, window, _COMMITMENT, min_slot)
        reply = await self._provider.make_request(
            GetAccountInfo(address, config), GetAccountInfoResp
        )
        slot = reply.context.slot
        return slot, None if reply.value is None else AccountData.at(slot, reply.value)

    async def accounts(
        self, addresses: Sequence[Pubkey], min_slot: int | None = None
    ) -> tuple[int, list[AccountData | None]]:
        """Return (slot, accounts) of up to 100 addresses at one slot, as of `min_slot` or later."""
        config = RpcAccountInfoConfig(_BASE64, None, _COMMITMENT, min_slot)
        request = GetMultipleAccounts(list(addresses), config)
        reply = await self._provider.make_request(request, GetMultipleAccountsResp)
        if len(reply.value) != len(addresses):
            raise BadReply(
                "the RPC node answered getMultipleAccounts with the wrong number of accounts"
            )
        slot = reply.context.slot
        return slot, [
            None if account is None else AccountData.at(slot, account) for account in reply.value
        ]

    async def program_accounts(
        self,
        program: Pubkey,
        filters: Sequence[int | Memcmp],
        *,
        offset: int = 0,
        length: int | None = None,
    ) -> list[tuple[Pubkey, AccountData]]:
        """Return the accounts of `program` that match `filters` (a size, or bytes at an offset).

        Their `slot` is 0, because the reply has none.
        """
        window = None if length is None else UiDataSliceConfig(offset, length)
        config = RpcProgramAccountsConfig(
            RpcAccountInfoConfig(_BASE64, window, _COMMITMENT), list(filters)
        )
        request = GetProgramAccounts(program, config)
        reply = await self._provider.make_request(request, GetProgramAccountsResp)
        return [(keyed.pubkey, AccountData.at(0, keyed.account)) for keyed in reply.value]

    async def lamports(self, address: Pubkey, min_slot: int | None = None) -> int:
        """Return the lamports of an account, 0 if it does not exist, as of `min_slot` or later."""
        request = GetBalance(address, RpcContextConfig(_COMMITMENT, min_slot))
        return (await self._provider.make_request(request, GetBalanceResp)).value

    async def simulate(
        self,
        transaction: VersionedTransaction,
        watched: Sequence[Pubkey] = (),
        min_slot: int | None = None,
    ) -> Simulation:
        """Simulate an unsigned transaction on a blockhash of the node's choice.

        Raises TransactionFailed if the transaction would fail.
        """
        accounts = RpcSimulateTransactionAccountsConfig(list(watched), _BASE64) if watched else None
        config = RpcSimulateTransactionConfig(
            sig_verify=False,
            replace_recent_blockhash=True,
            commitment=CommitmentLevel.Processed,
            accounts=accounts,
            min_context_slot=min_slot,
        )
        request = SimulateVersionedTransaction(transaction, config)
        value = (await self._provider.make_request(request, SimulateTransactionResp)).value
        if value.err is not None:
            raise TransactionFailed(error_json(value.err), value.logs or ())
        if len(value.accounts or ()) != len(watched):
            raise BadReply(
                "the RPC node answered simulateTransaction without the requested accounts"
            )
        return Simulation(value.units_consumed, value.accounts or ())

    async def recent_prices(self, accounts: Sequence[Pubkey]) -> list[int]:
        """Return what recent transactions paid to write these accounts, in micro-lamports per
        compute unit.
        """
        request = _RawRequest(
            "getRecentPrioritizationFees", ([str(address) for address in accounts],)
        )
        raw = await self._provider.make_request_unparsed(request)
        prices: _Prices = json_as(raw, _Prices)
        return [price.price for price in prices.result]


@dataclass(frozen=True)
class _RawRequest:
    """A request that solders has no class for."""

    method: str
    params: tuple[Any, ...]

    def to_json(self) -> str:
        return json.dumps(
            {"jsonrpc": "2.0", "id": 0, "method": self.method, "params": list(self.params)}
        )


class _Price(msgspec.Struct):
    price: int = msgspec.field(name="prioritizationFee")


class _Prices(msgspec.Struct):
    result: list[_Price]


class _Reply(msgspec.Struct):
    """The parts of a JSON-RPC reply. Without `error`, `result` is the answer."""

    id: Any = None
    error: Any = None
    result: msgspec.Raw = msgspec.Raw(b"null")


class BoundedProvider(AsyncHTTPProvider):
    """solana-py's HTTP provider over a session of ours.

    It limits a reply's bytes, nesting and number of values, and reads error replies itself: solders
    0.26 panics on an error without `data`.
    """

    def __init__(self, url: str, session: httpx.AsyncClient, answered: set[str]) -> None:
        # AsyncHTTPProvider.__init__ would create another session
        super(AsyncHTTPProvider, self).__init__(url)
        self.session = session
        self._answered = answered

    async def make_request(self, body: Any, parser: type[T]) -> T:
        """Return the parsed reply.

        Raises BadReply, RpcError, TransactionFailed, httpx.HTTPError (which includes status codes),
        and ValueError for a reply that is too long or not JSON-RPC.
        """
        raw = await self.make_request_unparsed(body)
        if (
            "+zstd" in raw
        ):  # we never request compressed accounts, and solders would unpack gigabytes
            raise BadReply("the RPC node sent a compressed account")
        try:
            parsed: T = parser.from_json(raw)  # type: ignore[attr-defined]
        except SerdeJSONError as error:
            raise BadReply("the RPC node sent a reply that cannot be read") from error
        kind = type(body).__name__
        self._answered.add(kind)
        log.debug("%s answered %s", shown(str(self.endpoint_uri)), kind)
        return parsed

    async def make_request_unparsed(self, body: Any) -> str:
        """Return the reply's JSON, which has a result. Raises like `make_request`."""
        number = next(self._request_counter) + 1
        if len(self.session.cookies.jar) > _MOST_COOKIES:
            self.session.cookies.clear()
        headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
        content = numbered(body, number)
        async with self.session.stream(
            "POST", self.endpoint_uri, content=content, headers=headers
        ) as response:
            response.raise_for_status()
            received = await _received(response)
        reply: _Reply = json_as(
            received, _Reply, MAX_JSON_VALUES if isinstance(body, _LISTS) else MOST_VALUES
        )
        # Only an error may lack an id: a rate limiter in front of a node has not read the request.
        if reply.id != number and (reply.id is not None or reply.error is None):
            raise ValueError("reply to another request")
        if reply.error is not None:
            raise_error(reply.error, type(body).__name__)
        return received.decode()


def numbered(body: Any, number: int) -> str:
    """Return the request's JSON with `number` as its id; solana-py gives every request the id 0."""
    return json.dumps({**json.loads(body.to_json()), "id": number})


async def _received(response: httpx.Response) -> bytearray:
    """Return at most MAX_REPLY bytes. Raises ValueError.

    httpx decompresses a whole chunk before it can be counted, so gzip is unpacked here, and nothing
    else is accepted.
    """
    if response.is_stream_consumed:  # a transport within this process
        return bytearray(response.content)
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise ValueError("reply in an encoding that was not asked for")
    unpacking = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
    received = bytearray()
    async for chunk in response.aiter_raw():
        received += (
            chunk
            if unpacking is None
            else _unpacked(unpacking, chunk, MAX_REPLY + 1 - len(received))
        )
        if len(received) > MAX_REPLY:
            raise ValueError(f"reply of more than {MAX_REPLY} bytes")
    if unpacking is not None and not unpacking.eof:
        raise ValueError("reply that is cut short")
    return received


def _unpacked(unpacking: zlib._Decompress, chunk: bytes, limit: int) -> bytes:
    """Return up to `limit` bytes of a compressed part. Raises ValueError."""
    try:
        unpacked = unpacking.decompress(chunk, limit)
    except zlib.error:
        raise ValueError("reply that cannot be unpacked") from None
    if unpacking.unused_data:
        raise ValueError("reply that continues after its end")
    return unpacked
