"""Test that the simulated network keeps the promises of the real one."""

import asyncio
import logging

import pytest

from aftermath.p2p.transport import PeerUnreachable, RequestFailed, RequestRefused
from aftermath.sim.sim_transport import SimNetwork, SimTransport
from aftermath.sim.virtual_time import run_virtual

ONE = bytes([1]) * 32
TWO = bytes([2]) * 32


def pair() -> tuple[SimTransport, SimTransport]:
    network = SimNetwork()
    first = network.open(ONE)
    second = network.open(TWO)
    first.set_members([TWO])
    second.set_members([ONE])
    return first, second


async def ask(asker: SimTransport, topic: str, expected: type[PeerUnreachable], says: str) -> None:
    with pytest.raises(expected, match=says) as caught:
        await asker.request(ONE, topic, b"", 10, 5)
    assert type(caught.value) is expected
    assert "secret" not in str(caught.value)


def test_refusal_is_not_logged_and_failure_once(caplog):
    async def scenario() -> None:
        first, second = pair()

        async def none_now(peer: bytes, body: bytes) -> bytes:
            raise RequestRefused("a secret")

        async def broken(peer: bytes, body: bytes) -> bytes:
            raise ValueError("a detail")

        first.handle("scarce", none_now)
        first.handle("broken", broken)
        for _ in range(3):
            await ask(second, "scarce", RequestRefused, "refused the request")
            await ask(second, "broken", RequestFailed, "failed to answer")
            await ask(second, "absent", RequestFailed, "no usable reply")

    run_virtual(scenario())
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "a detail" in lines[0]


def test_silent_peer_times_out_at_deadline():
    async def scenario() -> float:
        first, second = pair()

        async def never(peer: bytes, body: bytes) -> bytes:
            await asyncio.sleep(1000)
            return b""

        first.handle("silent", never)
        began = asyncio.get_running_loop().time()
        await ask(second, "silent", PeerUnreachable, "gave no answer on 'silent' within 5.0 s")
        return asyncio.get_running_loop().time() - began

    assert run_virtual(scenario()) < 6
