"""Decoders of messages from RPC nodes: replies, pushes, and the accounts in them."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import zstandard
from solana.rpc.commitment import Confirmed
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.rpc.responses import AccountNotification
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from aftermath.base.errors import AccountError
from aftermath.chain import loader, rpc, views
from aftermath.chain.account_socket import SolanaSession
from aftermath.chain.clock import ChainClock
from aftermath.chain.failures import BadReply, RpcError, TransactionFailed, error_json
from aftermath.chain.node_client import AccountData, NodeClient
from aftermath.chain.programs import authorizer_program, coordinator_program, error_tables
from aftermath.chain.refusals import lacks_funds, lamports_short, refused
from fuzz.decoder import Decode, Decoder, now

RECORDED = Path(__file__).parents[1] / "rules/accounts"
KEY = Keypair.from_seed(bytes(32)).pubkey()
TRANSFER = transfer(TransferParams(from_pubkey=KEY, to_pubkey=KEY, lamports=1))
TABLES = error_tables(coordinator_program(), authorizer_program())
BAD = (ValueError, BadReply, RpcError)


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.bin").read_bytes()


def account(raw: bytes, encoding: str = "base64") -> dict[str, Any]:
    text = b64encode(raw).decode()
    return {
        "lamports": 5,
        "owner": str(KEY),
        "executable": False,
        "rentEpoch": 2**64 - 1,
        "data": [text, encoding],
    }


class Sent(httpx.AsyncBaseTransport):
    """Transport of a node that returns these bytes for every request."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=self._data)


def replies(ask: rpc.Ask[Any], *results: Any) -> tuple[list[bytes], Decode]:
    """Decode replies to request 1, read by the pool, including errors of refused transactions."""
    logs = ["Program log: x", "Transfer: insufficient lamports 1, need 2"]
    failed = {"err": {"InstructionError": [1, {"Custom": 6000}]}, "logs": logs}
    error = {"code": -32002, "message": "no", "data": failed}
    seeds = [{"jsonrpc": "2.0", "id": 1, "result": result} for result in results]
    seeds += [
        {"jsonrpc": "2.0", "id": 1, "error": error},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1}},
    ]
    session = httpx.AsyncClient(transport=Sent(b""), trust_env=False)

    def decode(data: bytes) -> object:
        session._transport = Sent(data)
        client = NodeClient("http://node.example", session, set())
        try:
            return now(rpc.understood(ask(client)))
        except TransactionFailed as failure:
            lacks_funds(failure), lamports_short(failure)
            return refused(failure, [TRANSFER, TRANSFER, TRANSFER], TABLES)

    return [json.dumps(seed).encode() for seed in seeds], decode


def account_replies() -> tuple[list[bytes], Decode]:
    context = {"context": {"slot": 5}}
    values = [account(b"some bytes"), account(zstandard.compress(bytes(100)), "base64+zstd"), None]
    return replies(
        lambda node: node.account(KEY), *[{**context, "value": value} for value in values]
    )


def listed() -> tuple[list[bytes], Decode]:
    accounts = [{"pubkey": str(KEY), "account": account(b"some bytes")}] * 2
    return replies(lambda node: node.program_accounts(KEY, [7]), accounts)


def blockhash() -> tuple[list[bytes], Decode]:
    async def ask(node: NodeClient) -> object:
        latest = (await node.get_latest_blockhash()).value
        return latest.blockhash, latest.last_valid_block_height

    value = {"blockhash": str(Hash.default()), "lastValidBlockHeight": 400}
    return replies(ask, {"context": {"slot": 5}, "value": value})


def statuses() -> tuple[list[bytes], Decode]:
    async def ask(node: NodeClient) -> object:
        (status,) = (await node.get_signature_statuses([Signature.default()])).value
        return status and (
            status.slot,
            status.err and error_json(status.err),
            status.confirmation_status,
        )

    status = {
        "slot": 5,
        "confirmations": 1,
        "status": {"Ok": None},
        "err": None,
        "confirmationStatus": "confirmed",
    }
    err = {"InstructionError": [0, {"Custom": 7}]}
    values = [[status], [{**status, "err": err, "status": {"Err": err}}], [None]]
    return replies(ask, *[{"context": {"slot": 5}, "value": value} for value in values])


def simulated() -> tuple[list[bytes], Decode]:
    value = {"err": None, "logs": ["one"], "unitsConsumed": 400, "accounts": [account(b"")]}
    failed = {**value, "err": {"InstructionError": [0, "InvalidArgument"]}}
    message = Message.new_with_blockhash([TRANSFER], KEY, Hash.default())
    transaction = VersionedTransaction.populate(message, [Signature.default()])
    values = [{"context": {"slot": 5}, "value": one} for one in (value, failed)]
    return replies(lambda node: node.simulate(transaction, [KEY]), *values)


def genesis() -> tuple[list[bytes], Decode]:
    async def ask(node: NodeClient) -> object:
        return str((await node.get_genesis_hash()).value)

    return replies(ask, str(Hash.default()))


def number() -> tuple[list[bytes], Decode]:
    async def ask(node: NodeClient) -> object:
        return (await node.get_slot()).value

    return replies(ask, 7, 2**64 - 1)


def prices() -> tuple[list[bytes], Decode]:
    return replies(lambda node: node.recent_prices([KEY]), [{"slot": 1, "prioritizationFee": 4}])


class Received:
    """Websocket that delivers one given message."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def send(self, _: str) -> None:
        pass

    async def recv(self) -> bytes:
        return self._data

    async def close(self) -> None:
        pass


def pushes() -> tuple[list[bytes], Decode]:
    """Decode a subscription confirmation, and a notification down to its Run account."""

    def decode(data: bytes) -> object:
        session = SolanaSession(Received(data))
        now(session.account_subscribe(KEY, Confirmed, "base64"))
        for message in now(rpc.understood(session.recv())):  # type: ignore[attr-defined]
            if isinstance(message, AccountNotification):
                try:
                    views.parse_run(message.result.value.data)
                except AccountError:
                    pass
        return None

    params = {
        "subscription": 3,
        "result": {"context": {"slot": 5}, "value": account(recorded("run"))},
    }
    seeds = [
        {"jsonrpc": "2.0", "id": 1, "result": 3},
        {"jsonrpc": "2.0", "method": "accountNotification", "params": params},
        {"jsonrpc": "2.0", "method": "accountNotification", "params": {**params, "result": None}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no"}},
    ]
    return [json.dumps(seed).encode() for seed in seeds], decode


def account_data(data: bytes) -> AccountData:
    return AccountData(1, 1, loader.LOADER, False, data)


def authorizations() -> tuple[list[bytes], Decode]:
    program = authorizer_program()
    discriminator = program._program.coder.accounts.acc_name_to_discriminator["Authorization"]
    body = (
        bytes([254])
        + bytes(64)
        + struct.pack("<I", 8)
        + b"JoinRun!"
        + b"\x01"
        + struct.pack("<I", 1)
        + bytes(32)
    )
    return [discriminator + body + bytes(60)], lambda data: program.account("Authorization", data)


def clock(data: bytes) -> int:
    chain = ChainClock(lambda: 1.5)
    chain.observe_sysvar(data)
    return chain.now()


def attestations() -> tuple[list[bytes], Decode]:
    start, length = views.witness_round_range(1, 5)
    return [recorded("witnesses")[start : start + length]], partial(
        views.parse_witness_round, count=5
    )


BUFFER = struct.pack("<IB", 1, 1) + bytes(32) + b"elf"
PROGRAM = struct.pack("<IQB", 3, 9, 1) + bytes(32) + b"elf"
ACCOUNT = (AccountError,)
NODES = [
    Decoder("genesis", genesis, BAD),
    Decoder("number", number, BAD),
    Decoder("account", account_replies, BAD),
    Decoder("accounts of a program", listed, BAD),
    Decoder("blockhash", blockhash, BAD),
    Decoder("statuses", statuses, BAD),
    Decoder("simulation", simulated, BAD),
    Decoder("prices", prices, BAD),
    Decoder("push", pushes, BAD),
    Decoder("run account", lambda: ([recorded("run")], views.parse_run), ACCOUNT),
    Decoder("model account", lambda: ([recorded("model")], views.parse_model), ACCOUNT),
    Decoder(
        "membership account", lambda: ([recorded("membership")], views.parse_membership), ACCOUNT
    ),
    Decoder("members account", lambda: ([recorded("members")], views.parse_members), ACCOUNT),
    Decoder("attestations", attestations, ACCOUNT),
    Decoder("authorization account", authorizations, ACCOUNT),
    Decoder(
        "buffer", lambda: ([BUFFER], lambda data: loader.parse_buffer(account_data(data))), ACCOUNT
    ),
    Decoder(
        "program data",
        lambda: ([PROGRAM], lambda data: loader.parse_programdata(account_data(data))),
        ACCOUNT,
    ),
    Decoder(
        "clock sysvar", lambda: ([struct.pack("<QqQQq", 1, 2, 3, 4, 1 << 30)], clock), (BadReply,)
    ),
]
