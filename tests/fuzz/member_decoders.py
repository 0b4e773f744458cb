"""Decoders of messages to and from a centralized server, and of its user's files."""

from __future__ import annotations

import base64
import json
from collections import Counter
from typing import Any

import msgspec
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from aftermath.base.bounded import Malformed
from aftermath.base.errors import ConfigError
from aftermath.chain.addresses import run_addresses
from aftermath.chain.instructions import CoordinatorInstructions
from aftermath.chain.programs import coordinator_program
from aftermath.chain.wallet import Wallet
from aftermath.config.document import parse_as
from aftermath.localnet.config import LocalnetConfig
from aftermath.localnet.errors import JsonRpcError
from aftermath.localnet.node import EmbeddedNode
from aftermath.p2p.discovery import Whereabouts
from aftermath.rules.run import RoundId
from aftermath.server.account_funding import Accounts
from aftermath.server.connection import ServerConnection
from aftermath.server.handshake import (
    Challenge,
    Denied,
    Welcome,
    parse_challenge,
    parse_verdict,
    sign_answer,
    verify_answer,
)
from aftermath.server.option_files import ServerError, load_allowlist
from aftermath.server.rpc_methods import RpcMethods, parse_whereabouts
from aftermath.server.server import PROGRAM
from aftermath.server.sessions import Sessions
from aftermath.server.state_file import StateFile
from config.config_cases import SEED
from fuzz.decoder import Decode, Decoder, now, through_file

ME = Keypair.from_seed(bytes([1]) * 32)
PEER = Keypair.from_seed(bytes([2]) * 32)
CHALLENGE = Challenge("demo", str(Hash.default()), "ab" * 32)
HERE = Whereabouts(("192.0.2.1:7", "[2001:db8::1]:8"), "https://relay.example")
RUN = run_addresses(PROGRAM, "demo").run


def answers() -> tuple[list[bytes], Decode]:
    """Return valid and changed signatures, half of each. A changed signature is never valid for a
    key.
    """
    real = sign_answer(CHALLENGE, ME, PEER)

    def decode(data: bytes) -> object:
        keys = verify_answer(CHALLENGE, data)
        assert keys == (bytes(ME.pubkey()), bytes(PEER.pubkey()))
        return keys

    return [real], decode


def greetings() -> tuple[list[bytes], Decode]:
    return [msgspec.json.encode(CHALLENGE)], parse_challenge


def verdicts() -> tuple[list[bytes], Decode]:
    return [msgspec.json.encode(one) for one in (Welcome(), Denied("no", "go"))], parse_verdict


def transactions() -> tuple[list[bytes], Decode]:
    """Decode the bytes of transactions, as a member sends them."""
    node = EmbeddedNode(LocalnetConfig())
    methods_of_run = RpcMethods(node, PROGRAM, RUN, Accounts(node, PROGRAM, RUN, lambda _: True))
    ix = CoordinatorInstructions(coordinator_program(), ME.pubkey())
    steps = [ix.leave_run("demo", RoundId(1, 2, 3))], [ix.tick("demo"), ix.tick("demo")]
    signed_transactions = [
        VersionedTransaction(Message.new_with_blockhash(s, ME.pubkey(), Hash.default()), [ME])
        for s in steps
    ]

    def decode(data: bytes) -> object:
        tx = methods_of_run.check_transaction(
            [base64.b64encode(data).decode(), {"encoding": "base64"}], ME.pubkey()
        )
        keys = tx.message.account_keys
        assert keys[0] == ME.pubkey()
        assert all(
            keys[one.program_id_index] != Pubkey.default() for one in tx.message.instructions
        )
        return tx

    return [bytes(one) for one in signed_transactions], decode


def calls() -> tuple[list[bytes], Decode]:
    """Decode messages of an admitted member. Each gets an answer; no exception may escape."""
    node = EmbeddedNode(LocalnetConfig())
    sessions = Sessions(None)
    connection = _Outlet()
    client = sessions.add(ME.pubkey(), bytes(PEER.pubkey()), connection)
    methods_of_run = RpcMethods(node, PROGRAM, RUN, Accounts(node, PROGRAM, RUN, lambda _: True))
    methods = methods_of_run.methods_for(
        ME.pubkey(),
        "192.0.2.1",
        connection,
        lambda at: sessions.announce(client, at, connection),
        lambda transaction: sessions.set_withdraw_transaction(client, transaction),
    )
    # it waits for the event loop; its input is decoded by the decoder below
    del methods["sendTransaction"]
    rpc = node.rpc(methods)
    requests: list[tuple[str, list[Any]]] = [
        ("getLatestBlockhash", [{"commitment": "confirmed"}]),
        ("getMultipleAccounts", [[str(RUN), str(PROGRAM)], {"encoding": "base64"}]),
        ("accountSubscribe", [str(RUN), {"encoding": "base64+zstd"}]),
        ("accountUnsubscribe", [1]),
        ("announceWhereabouts", [msgspec.to_builtins(HERE)]),
        (
            "simulateTransaction",
            [base64.b64encode(transactions()[0][0]).decode(), {"encoding": "base64"}],
        ),
        ("keepLastWill", [base64.b64encode(transactions()[0][0]).decode(), {"encoding": "base64"}]),
    ]
    seeds = [
        {"jsonrpc": "2.0", "id": 1, "method": name, "params": params} for name, params in requests
    ]
    return [json.dumps(seed).encode() for seed in seeds], lambda data: now(rpc.answer(data))


class _Outlet:
    def __init__(self) -> None:
        self.lengths: Counter[int] = Counter()

    def put(self, text: str) -> None:
        self.lengths[len(text)] += 1


def pushes() -> tuple[list[bytes], Decode]:
    """Decode messages that a server pushes to a member."""
    link = ServerConnection("localhost:1", None, "demo", Wallet(ME), PEER)
    fields = {"peer": "ab" * 32, "at": msgspec.to_builtins(HERE)}
    seeds = [
        {"jsonrpc": "2.0", "method": "whereaboutsNotification", "params": fields},
        {"jsonrpc": "2.0", "method": "whereaboutsNotification", "params": {**fields, "at": None}},
        {"jsonrpc": "2.0", "id": 5, "result": 1},
    ]
    return [json.dumps(seed).encode() for seed in seeds], link._dispatch


def whereabouts() -> tuple[list[bytes], Decode]:
    return [json.dumps([msgspec.to_builtins(HERE)]).encode()], lambda data: parse_whereabouts(
        _json(data)
    )


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def state_files() -> tuple[list[bytes], Decode]:
    text = f'run_id = "demo"\nrun_state = "WaitingForMembers"\n{SEED}\n[progress]\nepoch = 0\nstep = 1\n'
    return [text.encode()], lambda data: parse_as(
        data.decode(errors="replace"), "state.toml", StateFile
    )


def lists() -> tuple[list[bytes], Decode]:
    return [f"# ours\n{ME.pubkey()}  # me\n\n{PEER.pubkey()}\n".encode()], through_file(
        "allow", load_allowlist
    )


MEMBERS = [
    Decoder("answer to a challenge", answers, (Malformed,)),
    Decoder("challenge", greetings, (Malformed,)),
    Decoder("verdict", verdicts, (Malformed,)),
    Decoder("transaction of a member", transactions, (JsonRpcError,)),
    Decoder("call of a member", calls),
    Decoder("message of the server", pushes, (Malformed,)),
    Decoder("whereabouts", whereabouts, (JsonRpcError,)),
    Decoder("state file", state_files, (ConfigError,)),
    Decoder("list of identities", lists, (ServerError,)),
]
