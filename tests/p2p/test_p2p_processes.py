"""Test peers as real processes that are killed or frozen in mid-transfer and restarted."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from blake3 import blake3

from aftermath.p2p import connection_table
from aftermath.p2p.peer_connection import SILENT_PROBES
from p2p.nodes import content, identity, until

SIZE = 6 << 20
SERVED = 2 << 20
Spawn = Callable[[int, int], Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def spawn(tmp_path: Path) -> AsyncIterator[Spawn]:
    """Yield a function that starts serving peers (seed, bytes before blocking) of members with
    seeds 1 to 3.

    Kill them afterwards.
    """
    children: list[asyncio.subprocess.Process] = []

    async def start(seed: int, block_at: int) -> asyncio.subprocess.Process:
        script = Path(__file__).with_name("serving_peer.py")
        arguments = [str(tmp_path / "run"), str(seed), "1,2,3", str(SIZE), str(block_at)]
        child = await asyncio.create_subprocess_exec(
            sys.executable, str(script), *arguments, stdout=asyncio.subprocess.PIPE
        )
        children.append(child)
        assert await line(child) == "ready"
        return child

    yield start
    for child in children:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def line(child: asyncio.subprocess.Process) -> str:
    """Return the child's next line."""
    assert child.stdout is not None
    return (await asyncio.wait_for(child.stdout.readline(), 60)).decode().strip()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_killed_holder_is_resumed_from_another(opened, spawn, how, monkeypatch):
    monkeypatch.setattr(connection_table, "PROBE_S", 0.5)
    node = await opened(1)
    victim_seed, other_seed = sorted((2, 3), key=identity)
    victim = await spawn(victim_seed, SERVED)
    node.set_members([identity(seed) for seed in (1, 2, 3)])
    holders = [identity(victim_seed), identity(other_seed)]
    await until(lambda: holders[0] in node.reachable())
    data = content(SIZE)
    task = asyncio.create_task(node.fetch(blake3(data).digest(), SIZE, holders, 120))
    assert await line(victim) == "half"
    await until(lambda: node.stats().received["blob"] == SERVED)
    victim.send_signal(how)
    await spawn(other_seed, 0)
    assert await task == data
    stats = node.stats()
    assert stats.received["blob"] == SIZE, "the second holder sends only what the first did not"
    assert stats.retries >= 1
    await until(lambda: holders[0] not in node.reachable(), 60)
    if how == signal.SIGSTOP:
        victim.send_signal(signal.SIGCONT)
        await until(lambda: holders[0] in node.reachable(), 60)


@pytest.mark.slow
async def test_restarted_peer_reconnects_and_repeats_messages(opened, spawn):
    node = await opened(1)
    node.set_members([identity(seed) for seed in (1, 2)])
    reader = node.announcements()
    child = await spawn(2, 0)
    assert (await asyncio.wait_for(anext(reader), 60)).data == b"alive"
    child.kill()
    await child.wait()
    # Both may have dialled at the start, so that a second connection brought the message again.
    before = node.stats()
    await spawn(2, 0)
    await until(lambda: node.stats().connects > before.connects, 60)
    await until(lambda: node.stats().duplicates > before.duplicates, 60)
    data = content(SIZE)
    assert await node.fetch(blake3(data).digest(), SIZE, [identity(2)], 60) == data


@pytest.mark.slow
async def test_peer_with_busy_python_is_not_considered_dead(opened, spawn, monkeypatch):
    """It is frozen twice as long as a peer that answers no probe is kept."""
    monkeypatch.setattr(connection_table, "PROBE_S", 0.5)
    node = await opened(1)
    await spawn(2, 0)
    node.set_members([identity(2)])
    seconds = 2 * SILENT_PROBES * connection_table.PROBE_S
    assert await node.request(identity(2), "freeze", b"%f" % seconds, 10, 60) == b"thawed"
    assert node.stats().disconnects == 0
