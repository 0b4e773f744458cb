"""A member's connection to a server that breaks, or to a foreign server."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from solders.keypair import Keypair

from aftermath.chain import rpc
from aftermath.chain.endpoints import shown
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import Unavailable
from aftermath.server.client_backend import ServerRpcPool
from aftermath.server.connection import ServerConnection
from aftermath.server.tls_trust import TlsTrust

_WALLET = Wallet(Keypair())


async def test_connection_broken_during_call_logs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    link = ServerConnection("127.0.0.1:1", None, "mine", Wallet(Keypair()), Keypair())

    class Broken:
        async def send(self, _: str) -> None:
            for reply in link._replies.values():
                reply.set_exception(ConnectionError("the connection to the server broke"))
            raise ConnectionError("it broke")

    async def connected() -> Broken:
        return Broken()

    monkeypatch.setattr(link, "_connected", connected)
    with pytest.raises(ConnectionError, match="it broke"):
        await link._call("anything", [])
    gc.collect()
    await asyncio.sleep(0)
    assert not errors


@pytest.mark.parametrize("port", [20000, 65535])
@pytest.mark.parametrize("tls", [False, True])
async def test_connection_messages_name_server_address(port: int, tls: bool) -> None:
    link = ServerConnection(
        f"train.example:{port}", TlsTrust.by(None) if tls else None, "mine", _WALLET, Keypair()
    )
    async with ServerRpcPool(link, patience=1.0, seed=0) as pool:
        (at,) = pool.endpoints
    assert at.shown == f"http{'s' if tls else ''}://train.example:{port}"
    assert shown(at.ws) == f"ws{'s' if tls else ''}://train.example:{port}"


@asynccontextmanager
async def answering(says: str | None) -> AsyncIterator[str]:
    """Yield the address of a foreign server: a website (None), or a websocket that sends `says`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if says is None:
            return web.Response(text="a website")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(says)
        await socket.receive()
        return socket

    site = web.Application()
    site.router.add_get("/", answer)
    runner = web.AppRunner(site)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a call after its first try: the backoff is longer than the call's patience."""
    monkeypatch.setattr(rpc, "BACKOFF_FIRST", 60.0)


@pytest.mark.parametrize(
    "says",
    [None, "", "hello", "{}", '{"type": "challenge", "run_id": "mine"}', "[" * 5000],
    ids=["a website", "nothing", "text", "an object", "half a challenge", "too deep"],
)
@pytest.mark.usefixtures("one_try")
async def test_foreign_server_error_differs_from_no_server(says: str | None) -> None:
    async with answering(says) as address:
        link = ServerConnection(address, None, "mine", _WALLET, Keypair())
        async with ServerRpcPool(link, patience=1.5, seed=0) as pool:
            with pytest.raises(
                Unavailable, match="it does not greet as an aftermath-centralized server does"
            ) as caught:
                await pool.genesis()
    assert "If the server has a certificate, pass --tls-ca FILE or --tls" in caught.value.fix


@pytest.mark.usefixtures("one_try")
async def test_server_without_tls_is_recognised_with_certificate(tmp_path: Path) -> None:
    certificate = tmp_path / "cert.pem"
    async with answering(None) as address:
        for trust in (TlsTrust.by(None), TlsTrust(ssl.create_default_context(), certificate)):
            async with ServerRpcPool(
                ServerConnection(address, trust, "mine", _WALLET, Keypair()), patience=1.5, seed=0
            ) as pool:
                with pytest.raises(
                    Unavailable, match="does not speak TLS as a server with a certificate"
                ) as caught:
                    await pool.genesis()
            assert (
                str(certificate) if trust.certificate else "one that this machine trusts (--tls)"
            ) in caught.value.fix
