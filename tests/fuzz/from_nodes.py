"""What RPC nodes send: replies, pushes, and the accounts in them."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import zstandard
from solders.hash import Hash
from solders.keypair import Keypair
from solders.rpc.requests import SendRawTransaction
from solders.system_program import TransferParams, transfer

from aftermath.base.bounded import json_value
from aftermath.base.errors import AccountError
from aftermath.chain import accounts, fees, loader, rpc, sender, views
from aftermath.chain.clock import ChainClock
from aftermath.chain.endpoints import endpoint, reply_to
from aftermath.chain.failures import BadReply, RpcError, TransactionFailed
from aftermath.chain.programs import authorizer_program, coordinator_program, error_tables
from aftermath.chain.refusals import lacks_funds, lamports_short, refused
from aftermath.chain.rpc import RpcPool
from aftermath.chain.socket import AccountSocket, Push
from fuzz.decoder import Decode, Decoder

RECORDED = Path(__file__).parents[1] / "rules/accounts"
KEY = Keypair.from_seed(bytes(32)).pubkey()
TRANSFER = transfer(TransferParams(from_pubkey=KEY, to_pubkey=KEY, lamports=1))
TABLES = error_tables(coordinator_program(), authorizer_program())
SENT = SendRawTransaction(b"a transaction")
BAD = (ValueError, BadReply, RpcError)


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.bin").read_bytes()


def account(raw: bytes, encoding: str = "base64") -> dict[str, Any]:
    text = b64encode(raw).decode()
    return {"lamports": 5, "owner": str(KEY), "executable": False, "rentEpoch": 2**64 - 1, "data": [text, encoding]}


def replies(read: Callable[[Any], object], *results: Any) -> tuple[list[bytes], Decode]:
    """Replies to request 1, as the pool understands them; what is made of a refused transaction belongs to it."""
    logs = ["Program log: x", "Transfer: insufficient lamports 1, need 2"]
    failed = {"err": {"InstructionError": [1, {"Custom": 6000}]}, "logs": logs}
    error = {"code": -32002, "message": "no", "data": failed}
    seeds = [{"jsonrpc": "2.0", "id": 1, "result": result} for result in results]
    seeds += [{"jsonrpc": "2.0", "id": 1, "error": error}, {"jsonrpc": "2.0", "id": 1, "error": {"code": 1}}]

    def decode(data: bytes) -> object:
        try:
            return rpc._understood(reply_to(1, json_value(data)), read, SENT)
        except TransactionFailed as failure:
            lacks_funds(failure), lamports_short(failure)
            return refused(failure, [TRANSFER, TRANSFER, TRANSFER], TABLES)

    return [json.dumps(seed).encode() for seed in seeds], decode


def account_replies() -> tuple[list[bytes], Decode]:
    context = {"context": {"slot": 5}}
    packed = zstandard.compress(bytes(100))
    values = [account(b"some bytes"), account(packed, "base64+zstd"), None]
    return replies(accounts.parse_reply, *[{**context, "value": value} for value in values])


def listed() -> tuple[list[bytes], Decode]:
    return replies(accounts._listed, [{"pubkey": str(KEY), "account": account(b"some bytes")}] * 2)


def blockhash() -> tuple[list[bytes], Decode]:
    value = {"blockhash": str(Hash.default()), "lastValidBlockHeight": 400}
    return replies(sender.latest_blockhash, {"context": {"slot": 5}, "value": value})


def simulated() -> tuple[list[bytes], Decode]:
    value = {"err": None, "logs": ["one"], "unitsConsumed": 400, "accounts": None}
    return replies(
        sender.simulated_units, {"value": value}, {"value": {**value, "err": {"InstructionError": [0, "x"]}}}
    )


def pushes() -> tuple[list[bytes], Decode]:
    """A confirmation and a notification, read up to the Run account in it."""
    pool = RpcPool([endpoint("http://127.0.0.1:9")])

    def on_push(push: Push) -> None:
        if push.account is not None:
            try:
                views.parse_run(push.account.data)
            except AccountError:
                pass

    def decode(data: bytes) -> object:
        socket = AccountSocket(pool, KEY, on_push, lambda: None)
        socket._asked = 1
        if b"params" in data:
            socket._subscription = 3
        socket._handle(data)
        return None

    value = account(zstandard.compress(recorded("run")), "base64+zstd")
    params = {"subscription": 3, "result": {"context": {"slot": 5}, "value": value}}
    seeds = [
        {"jsonrpc": "2.0", "id": 1, "result": 3},
        {"jsonrpc": "2.0", "method": "accountNotification", "params": params},
        {"jsonrpc": "2.0", "method": "accountNotification", "params": {**params, "result": None}},
    ]
    return [json.dumps(seed).encode() for seed in seeds], decode


def held(data: bytes) -> accounts.AccountData:
    return accounts.AccountData(1, 1, loader.LOADER, False, data)


def authorizations() -> tuple[list[bytes], Decode]:
    program = authorizer_program()
    discriminator = program._program.coder.accounts.acc_name_to_discriminator["Authorization"]
    body = bytes([254]) + bytes(64) + struct.pack("<I", 8) + b"JoinRun!" + b"\x01" + struct.pack("<I", 1) + bytes(32)
    return [discriminator + body + bytes(60)], lambda data: program.account("Authorization", data)


def clock(data: bytes) -> int:
    now = ChainClock(lambda: 1.5)
    now.observe_sysvar(data)
    return now.now()


def attestations() -> tuple[list[bytes], Decode]:
    start, length = views.witness_round_range(1, 5)
    return [recorded("witnesses")[start : start + length]], partial(views.parse_witness_round, count=5)


BUFFER = struct.pack("<IB", 1, 1) + bytes(32) + b"elf"
PROGRAM = struct.pack("<IQB", 3, 9, 1) + bytes(32) + b"elf"
ACCOUNT = (AccountError,)
NODES = [
    Decoder("genesis", lambda: replies(rpc.genesis_hash, str(Hash.default())), BAD),
    Decoder("number", lambda: replies(accounts.whole, 7, 2**64 - 1), BAD),
    Decoder("account", account_replies, BAD),
    Decoder("accounts of a program", listed, BAD),
    Decoder("blockhash", blockhash, BAD),
    Decoder("simulation", simulated, BAD),
    Decoder("prices", lambda: replies(fees.recent_prices, [{"slot": 1, "prioritizationFee": 4}]), BAD),
    Decoder("push", pushes, (BadReply,)),
    Decoder("run account", lambda: ([recorded("run")], views.parse_run), ACCOUNT),
    Decoder("model account", lambda: ([recorded("model")], views.parse_model), ACCOUNT),
    Decoder("membership account", lambda: ([recorded("membership")], views.parse_membership), ACCOUNT),
    Decoder("members account", lambda: ([recorded("members")], views.parse_members), ACCOUNT),
    Decoder("attestations", attestations, ACCOUNT),
    Decoder("authorization account", authorizations, ACCOUNT),
    Decoder("buffer", lambda: ([BUFFER], lambda data: loader.parse_buffer(held(data))), ACCOUNT),
    Decoder("program data", lambda: ([PROGRAM], lambda data: loader.parse_programdata(held(data))), ACCOUNT),
    Decoder("clock sysvar", lambda: ([struct.pack("<QqQQq", 1, 2, 3, 4, 1 << 30)], clock), (BadReply,)),
]
