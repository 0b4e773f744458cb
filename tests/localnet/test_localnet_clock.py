"""Test machines with a wrong clock: chain time never goes back, and health reports the stall."""

from __future__ import annotations

import asyncio
import struct
import time
from pathlib import Path

import pytest
from solana.rpc.async_api import AsyncClient
from solders.keypair import Keypair
from solders.sysvar import CLOCK

from aftermath.localnet import LocalnetConfig, RealTime, VirtualTime, serve
from localnet.localnet_requests import fund, health, recent, rpc, transfer_new

HOUR = 3600.0
START = 1_700_000_000.0


class SettableTime(VirtualTime):
    """A time source that breaks its promise never to decrease."""

    def set_back(self, seconds: float) -> None:
        self._now -= seconds


async def reading(client: AsyncClient) -> tuple[int, int]:
    """Return (slot, unix time) of the Clock sysvar."""
    account = (await client.get_account_info(CLOCK)).value
    assert account is not None
    slot, *_, now = struct.unpack("<QqQQq", account.data)
    return slot, now


async def test_localnet_after_clock_set_back_continues(tmp_path: Path) -> None:
    """The clock is right, then an hour behind, then right again."""
    readings = [(0, int(time.time()))]
    payer = Keypair()
    for wall_seconds in (0.0, -HOUR, 0.0):
        clock = RealTime(wall=lambda back=wall_seconds: time.time() + back)  # type: ignore[misc]
        running = await serve(
            LocalnetConfig(rpc_port=0, ledger=tmp_path / "ledger", time=clock, slot_ms=20)
        )
        async with AsyncClient(running.rpc_url) as client:
            readings.append(await reading(client))
            start = readings[-1][0]
            deadline = time.monotonic() + 20
            while (await client.get_slot()).value < start + 5:
                assert time.monotonic() < deadline, f"the slots stand still at {start}"
                await asyncio.sleep(0.02)
            readings.append(await reading(client))
            assert (await rpc(running.rpc_url, "getHealth"))["result"] == "ok"
            await fund(client, payer.pubkey())
            await transfer_new(client, payer)
        await running.close()
    assert readings == sorted(readings, key=lambda one: one[0])
    assert readings == sorted(readings, key=lambda one: one[1])
    assert readings[-1][1] < time.time() + 60


async def test_slots_of_another_length_do_not_move_chain_time(tmp_path: Path) -> None:
    clock = VirtualTime(START)
    known = dict[int, int]()
    before = (0, 0)
    for length in (400, 60_000, 100, 400):
        running = await serve(
            LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock, slot_ms=length)
        )
        async with AsyncClient(running.rpc_url) as client:
            slot, now = await reading(client)
            assert slot > before[0]
            assert before[1] <= now
            clock.advance(600)
            before = await reading(client)
            known |= [(slot, now), before]
            assert {slot: (await client.get_block_time(slot)).value for slot in known} == known
        assert before == (slot + 600_000 // length, now + 600)
        await running.close()
    assert before[1] <= clock.now() + 26 * 60  # the slots that a start skips are at most one mark's


async def test_health_reports_stalled_slots() -> None:
    clock = SettableTime(START)
    running = await serve(LocalnetConfig(rpc_port=0, time=clock))
    clock.advance(100)
    assert (await rpc(running.rpc_url, "getHealth"))["result"] == "ok"
    clock.set_back(40)
    error = (await rpc(running.rpc_url, "getHealth"))["error"]
    assert error == {
        "code": -32005,
        "message": "Node is behind by 100 slots",
        "data": {"numSlotsBehind": 100},
    }
    assert await health(running.rpc_url) == "behind"
    clock.advance(40)
    assert (await rpc(running.rpc_url, "getHealth"))["result"] == "ok"
    assert await health(running.rpc_url) == "ok"
    await running.close()


async def test_health_reports_stopped_clock_task(caplog: pytest.LogCaptureFixture) -> None:
    class Breaks:
        def on_slot(self, slot: int, parent: int) -> None:
            raise RuntimeError("a listener's fault")

        def on_transaction(self, executed: object) -> None: ...

    clock = VirtualTime(START)
    running = await serve(LocalnetConfig(rpc_port=0, time=clock))
    await asyncio.sleep(0)
    running.bank.listeners.append(Breaks())
    clock.advance(1)
    await asyncio.sleep(0.01)
    assert "slots have stopped" in (await rpc(running.rpc_url, "getHealth"))["error"]["message"]
    with pytest.raises(RuntimeError, match="listener"):
        await running.close()


async def test_blockhash_stays_valid_after_clock_went_back(tmp_path: Path) -> None:
    clock = VirtualTime(START)
    payer = Keypair()
    running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock))
    async with AsyncClient(running.rpc_url) as client:
        await fund(client, payer.pubkey())
        blockhash = await recent(client)
    await running.close()
    again = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=VirtualTime(START - HOUR)))
    assert (await rpc(again.rpc_url, "isBlockhashValid", str(blockhash)))["result"]["value"] is True
    await again.close()
