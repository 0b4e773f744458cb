"""What a member's connection to a server does where it breaks."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from solders.keypair import Keypair

from aftermath.central.link import Link
from aftermath.chain.wallet import Wallet


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
