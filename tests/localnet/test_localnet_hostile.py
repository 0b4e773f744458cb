"""Test that any input gets a JSON-RPC answer and changes neither the chain's money nor its pace."""

from __future__ import annotations

import asyncio
import base64
import json
import socket as sockets
import struct
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from solana.rpc.async_api import AsyncClient
from solders.keypair import Keypair

from aftermath.localnet import LocalnetConfig, LocalnetError, VirtualTime, pubsub, serve
from aftermath.localnet.bank import Bank, faucet_of, open_chain
from aftermath.localnet.commit import Committer
from aftermath.localnet.json_rpc import Rpc
from aftermath.localnet.read_methods import ReadMethods
from aftermath.localnet.server import MAX_BODY_BYTES
from aftermath.localnet.transaction_methods import TransactionMethods
from localnet.localnet_requests import SOL, fund, move, post, recent, rpc, sign


def offline() -> tuple[Bank, Rpc, list[str]]:
    """Return a chain without sockets, its RPC, and the names of all methods."""
    bank, _ = open_chain(None, VirtualTime(), 400, [])
    reading = ReadMethods(bank)
    sending = TransactionMethods(
        bank, Committer(bank, None), reading, faucet_of(bank.slots.genesis)
    )
    handlers = {**reading.methods(), **sending.methods()}
    return bank, Rpc(bank, handlers), sorted(handlers)


BANK, RPC, METHODS = offline()
PAYER = Keypair()
asyncio.run(
    RPC.answer(
        json.dumps(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "requestAirdrop",
                "params": [str(PAYER.pubkey()), 1000 * SOL],
            }
        ).encode()
    )
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=50)
    | st.sampled_from(
        [
            str(PAYER.pubkey()),
            str(Keypair().sign_message(b"")),
            "confirmed",
            "base64",
            "AAAA",
            "all",
        ]
    )
)
KEYS = (
    "encoding commitment dataSlice offset length filters memcmp dataSize bytes minContextSlot limit before until "
    "sigVerify replaceRecentBlockhash accounts addresses skipPreflight maxSupportedTransactionVersion"
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(KEYS.split()), inner, max_size=4
    )


values = st.recursive(scalars, nested, max_leaves=12)


def ask(body: bytes) -> Any:
    answer = asyncio.run(RPC.answer(body))
    return json.loads(answer) if answer else None


@given(st.sampled_from(METHODS), st.lists(values, max_size=3) | values)
def test_random_parameters_get_an_answer(method: str, params: Any) -> None:
    answer = ask(
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    )
    assert answer["id"] == 1
    assert ("result" in answer) != ("error" in answer)
    if "error" in answer:
        assert answer["error"]["code"] != -32603 or method == "requestAirdrop", answer


@given(st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()))
def test_random_body_gets_an_error(body: bytes) -> None:
    answer = ask(body)
    for one in answer if isinstance(answer, list) else [answer]:
        assert one["error"]["code"] in (-32700, -32600)


def money() -> int:
    """Return all lamports that were ever created, less the fees that transactions burnt."""
    accounts = [*BANK.owned_by(SYSTEM)]
    return sum(account.lamports for _, account in accounts if account is not None)


SYSTEM = next(iter({BANK.account(PAYER.pubkey()).owner}))  # type: ignore[union-attr]


@given(st.data())
def test_damaged_transaction_moves_no_money(data: st.DataObject) -> None:
    tx = sign([move(PAYER, Keypair().pubkey(), SOL)], BANK.slots.latest, PAYER)
    wire = bytearray(bytes(tx))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] ^= data.draw(st.integers(1, 255))
    if bytes(wire) == bytes(tx):
        return
    before = money()
    options = {"encoding": "base64", "skipPreflight": data.draw(st.booleans())}
    for method in ("sendTransaction", "simulateTransaction"):
        params = [base64.b64encode(bytes(wire)).decode(), options]
        answer = ask(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        )
        assert answer.get("error", {}).get("code") in (None, -32602, -32002), answer
    assert money() == before


async def test_http_and_websocket_limits_are_enforced() -> None:
    running = await serve(LocalnetConfig(rpc_port=0))
    try:
        async with aiohttp.ClientSession() as session:
            large = (
                b'{"jsonrpc":"2.0","id":1,"method":"getHealth","params":["'
                + b"x" * MAX_BODY_BYTES
                + b'"]}'
            )
            json_type = {"Content-Type": "application/json"}
            async with session.post(running.rpc_url, data=large, headers=json_type) as response:
                assert response.status == 413
            async with session.post(
                running.rpc_url, data=b"{}", headers={"Content-Type": "text/plain"}
            ) as response:
                assert response.status == 415
            async with session.get(running.rpc_url) as response:
                assert response.status == 405
            async with session.get(f"{running.rpc_url}/health") as response:
                assert (response.status, await response.text()) == (200, "ok")
            async with session.ws_connect(running.ws_url) as socket:
                await socket.send_str("x" * (pubsub.MAX_MESSAGE_BYTES + 1))
                assert (await socket.receive()).type in (
                    aiohttp.WSMsgType.CLOSE,
                    aiohttp.WSMsgType.CLOSED,
                )
        assert (await post(running.rpc_url, []))["error"]["code"] == -32600
        assert (await rpc(running.rpc_url, "getHealth"))["result"] == "ok"
    finally:
        await running.close()


async def test_websocket_is_served_on_rpc_port_too() -> None:
    running = await serve(LocalnetConfig(rpc_port=0))
    async with aiohttp.ClientSession() as session, session.ws_connect(running.rpc_url) as socket:
        await socket.send_json({"jsonrpc": "2.0", "id": 1, "method": "slotSubscribe"})
        number = (await socket.receive_json())["result"]
        assert (await socket.receive_json())["params"]["subscription"] == number
        await socket.send_json(
            {"jsonrpc": "2.0", "id": 2, "method": "slotUnsubscribe", "params": [number]}
        )
        while "id" not in (answer := await socket.receive_json()):
            pass
        assert answer["result"] is True
    await running.close()


LETTER = (
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
)


async def test_disconnecting_client_causes_no_error(caplog: pytest.LogCaptureFixture) -> None:
    running = await serve(LocalnetConfig(rpc_port=0))
    loop = asyncio.get_running_loop()
    for data in [UPGRADE, LETTER] * 5:
        hasty = sockets.socket()
        hasty.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
        hasty.setblocking(False)
        await loop.sock_connect(hasty, ("127.0.0.1", running.rpc_port))
        await loop.sock_sendall(hasty, data)
        if data is LETTER:
            await asyncio.sleep(0.01)  # until its body is waited for
        hasty.close()
        assert (await rpc(running.rpc_url, "getHealth"))["result"] == "ok"
    assert not running._connections
    await running.close()
    assert caplog.text == ""


async def test_lagging_subscriber_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub, "MAX_BACKLOG", 1_000)
    time = VirtualTime()
    running = await serve(LocalnetConfig(rpc_port=0, time=time))
    loop = asyncio.get_running_loop()
    subscriptions = 400
    lazy = sockets.socket()
    lazy.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    lazy.setblocking(False)
    await loop.sock_connect(lazy, ("127.0.0.1", running.rpc_port))
    await loop.sock_sendall(lazy, UPGRADE)
    for number in range(subscriptions):
        await loop.sock_sendall(
            lazy, _masked({"jsonrpc": "2.0", "id": number, "method": "slotSubscribe"})
        )
    async with aiohttp.ClientSession() as session, session.ws_connect(running.ws_url) as keen:
        await keen.send_json({"jsonrpc": "2.0", "id": 1, "method": "slotSubscribe"})
        assert "result" in await keen.receive_json()
        assert len(running._connections) == 2
        slots = 0
        while (
            len(running._connections) == 2
        ):  # each slot is worth about 50 kB to the lazy one, which reads nothing
            time.advance(0.4)
            slots += 1
            assert (await keen.receive_json())["params"]["result"]["slot"] == slots + 1
        assert (await rpc(running.rpc_url, "getSlot"))["result"] == slots + 1
    lazy.close()
    await running.close()


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def _masked(body: dict[str, Any]) -> bytes:
    """Return a client's text frame of less than 126 bytes, masked with zeros."""
    data = json.dumps(body).encode()
    return bytes((0x81, 0x80 | len(data), 0, 0, 0, 0)) + data


async def test_occupied_port_is_named() -> None:
    running = await serve(LocalnetConfig(rpc_port=0))
    try:
        with pytest.raises(LocalnetError, match=f"port {running.rpc_port} is in use") as caught:
            await serve(LocalnetConfig(rpc_port=running.rpc_port))
        assert "another with --port" in caught.value.fix
        with pytest.raises(LocalnetError, match=f"port {running.rpc_port} is in use"):
            await serve(LocalnetConfig(rpc_port=running.rpc_port - 1))
    finally:
        await running.close()


async def test_invalid_programs_are_named(tmp_path: Any) -> None:
    wrong = tmp_path / "wrong.so"
    wrong.write_text("not a program")
    key = Keypair().pubkey()
    with pytest.raises(LocalnetError, match="no ELF header"):
        await serve(LocalnetConfig(rpc_port=0, programs=[(key, wrong)]))
    with pytest.raises(LocalnetError, match="cannot be read"):
        await serve(LocalnetConfig(rpc_port=0, programs=[(key, tmp_path / "absent.so")]))


async def test_configured_airdrops_are_credited(tmp_path: Any) -> None:
    key = Keypair().pubkey()
    for _ in range(2):
        running = await serve(
            LocalnetConfig(rpc_port=0, ledger=tmp_path, airdrops=[(key, 3 * SOL)])
        )
        assert (await rpc(running.rpc_url, "getBalance", str(key)))["result"]["value"] == 3 * SOL
        await running.close()
    with pytest.raises(LocalnetError, match="airdrop"):
        await serve(LocalnetConfig(rpc_port=0, airdrops=[(key, 10**18)]))


async def test_batch_of_transfers_lands_in_order() -> None:
    running = await serve(LocalnetConfig(rpc_port=0))
    payer = Keypair()
    to = Keypair().pubkey()
    async with AsyncClient(running.rpc_url) as client:
        await fund(client, payer.pubkey())
        blockhash = await recent(client)
        calls = []
        for number in range(50):
            wire = bytes(sign([move(payer, to, SOL // 100 + number)], blockhash, payer))
            params = [base64.b64encode(wire).decode(), {"encoding": "base64"}]
            calls.append(
                {"jsonrpc": "2.0", "id": number, "method": "sendTransaction", "params": params}
            )
        answers = await post(running.rpc_url, calls)
        assert [one["id"] for one in answers] == list(range(50))
        assert all("result" in one for one in answers)
        assert (await client.get_balance(to)).value == sum(
            SOL // 100 + number for number in range(50)
        )
    await running.close()
