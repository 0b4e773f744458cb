"""What a member's connection to a server does where it breaks."""

from __future__ import annotations

import asyncio
import gc
import ssl
from typing import Any

import pytest
from solders.keypair import Keypair

from aftermath.central.link import Link
from aftermath.central.reach import CentralPool
from aftermath.chain.endpoints import shown
from aftermath.chain.wallet import Wallet

_WALLET = Wallet(Keypair())


async def test_a_connection_that_breaks_while_a_call_is_sent_leaves_no_complaint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    link = Link("127.0.0.1:1", None, "mine", Wallet(Keypair()), Keypair())

    class Broken:
        async def send(self, _: str) -> None:
            for reply in link._waiting.values():
                reply.set_exception(ConnectionError("the connection to the server broke"))
            raise ConnectionError("it broke")

    async def connected() -> Broken:
        return Broken()

    monkeypatch.setattr(link, "_connected", connected)
    with pytest.raises(ConnectionError, match="it broke"):
        await link._call("anything", [])
    gc.collect()
    await asyncio.sleep(0)
    assert not complaints


@pytest.mark.parametrize("port", [20000, 65535])
@pytest.mark.parametrize("tls", [False, True])
async def test_what_is_said_of_the_server_names_the_address_that_is_spoken_to(port: int, tls: bool) -> None:
    link = Link(f"train.example:{port}", ssl.create_default_context() if tls else None, "mine", _WALLET, Keypair())
    async with CentralPool(link, patience=1.0, seed=0) as pool:
        (at,) = pool.endpoints
    assert at.shown == f"http{'s' if tls else ''}://train.example:{port}"
    assert shown(at.ws) == f"ws{'s' if tls else ''}://train.example:{port}"
