"""Test the shaping of a member's line with a virtual clock, and between real endpoints."""

import asyncio
from pathlib import Path

import pytest

from aftermath.base.errors import UsageError
from aftermath.p2p.iroh import open_iroh
from aftermath.p2p.line_faults import (
    GOOD_LINE,
    PACKET,
    SHAPED_PIECE,
    LineFaults,
    MemberLine,
    bandwidth_of,
    line_faults,
)
from aftermath.sim.virtual_time import run_virtual
from p2p.nodes import content, identity, join, secret, until

ME = identity(1)
MEGABYTE = 1_000_000


def line_of(faults: LineFaults, member: bytes = ME) -> MemberLine:
    """Return a line on the running loop's clock."""
    return MemberLine(faults, member, asyncio.get_running_loop().time)


async def seconds_of(*waits) -> float:
    """Return the virtual seconds until all of these have ended."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    await asyncio.gather(*waits)
    return loop.time() - started


def test_latency_delays_each_message_once() -> None:
    async def scenario() -> None:
        line = line_of(LineFaults(latency_s=0.05))
        assert await seconds_of(*(line.send(100) for _ in range(3))) == pytest.approx(0.05)
        assert await seconds_of(line.upload(MEGABYTE), line.download(MEGABYTE)) == 0

    run_virtual(scenario())


def test_upload_rate_is_shared_by_all_streams() -> None:
    async def scenario() -> None:
        line = line_of(LineFaults(up=2 * MEGABYTE, down=4 * MEGABYTE))
        uploads = (line.upload(MEGABYTE) for _ in range(4))
        assert await seconds_of(*uploads) == pytest.approx(2.0)
        assert await seconds_of(line.send(MEGABYTE)) == pytest.approx(0.5)
        downloads = (line.download(MEGABYTE) for _ in range(4))
        assert await seconds_of(*downloads) == pytest.approx(1.0)

    run_virtual(scenario())


def test_idle_line_accumulates_no_bytes() -> None:
    async def scenario() -> None:
        line = line_of(LineFaults(up=MEGABYTE))
        await asyncio.sleep(100)
        assert await seconds_of(line.upload(MEGABYTE)) == pytest.approx(1.0)

    run_virtual(scenario())


def test_lost_packet_costs_a_round_trip() -> None:
    async def scenario() -> None:
        line = line_of(LineFaults(latency_s=0.1, loss=0.5))
        waits = [await seconds_of(line.upload(PACKET)) for _ in range(400)]
        assert {round(wait / 0.2, 6) for wait in waits} >= {0.0, 1.0, 2.0}
        assert sum(waits) / len(waits) == pytest.approx(0.2, rel=0.3)

    run_virtual(scenario())


def test_losses_depend_on_seed_and_member() -> None:
    async def drawn(faults: LineFaults, member: bytes) -> list[float]:
        line = line_of(faults, member)
        return [await seconds_of(line.upload(100 * PACKET)) for _ in range(20)]

    async def scenario() -> None:
        faults = LineFaults(latency_s=0.1, loss=0.01)
        first = await drawn(faults, ME)
        assert await drawn(faults, ME) == pytest.approx(first)
        assert await drawn(faults, identity(2)) != pytest.approx(first)
        other = LineFaults(latency_s=0.1, loss=0.01, seed=1)
        assert await drawn(other, ME) != pytest.approx(first)

    run_virtual(scenario())


def test_good_line_sends_whole_pieces_at_once() -> None:
    assert GOOD_LINE.upload_piece(1 << 20) == GOOD_LINE.download_piece(1 << 20) == 1 << 20
    shaped = MemberLine(LineFaults(up=1.0, down=1.0), ME)
    assert shaped.upload_piece(1 << 20) == shaped.download_piece(1 << 20) == SHAPED_PIECE
    assert shaped.upload_piece(9) == 9


def test_options_without_faults_give_none() -> None:
    assert line_faults(latency_ms=0, loss_percent=0.0, bandwidth=None, seed=3) is None
    assert line_faults(latency_ms=50, loss_percent=1.0, bandwidth="20/100.5", seed=3) == LineFaults(
        0.05, 0.01, 2_500_000.0, 12_562_500.0, 3
    )


@pytest.mark.parametrize(
    "text", ["", "20", "20/", "a/b", "0/10", "-1/10", "1e3/10", "20/0.1", "inf/1"]
)
def test_malformed_bandwidth_is_refused_with_example(text: str) -> None:
    with pytest.raises(UsageError, match="is not UP/DOWN") as caught:
        bandwidth_of("--bandwidth", text)
    assert "--bandwidth 20/100" in str(caught.value.fix)


async def test_shaped_endpoints_deliver_late_and_exact(tmp_path: Path) -> None:
    faults = LineFaults(latency_s=0.02, loss=0.01, up=2.0 * MEGABYTE, down=8.0 * MEGABYTE)
    nodes = [
        await open_iroh(
            secret(seed),
            bind_host="127.0.0.1",
            relay="disabled",
            discovery="local",
            discovery_dir=tmp_path / "run",
            faults=faults,
        )
        for seed in (1, 2)
    ]
    try:
        join(nodes)
        await until(lambda: all(node.reachable() for node in nodes))
        first, second = nodes
        data = content(MEGABYTE)
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert await second.fetch(first.publish(data), len(data), [first.node_id], 30) == data
        assert loop.time() - started >= 0.5
        announcements = second.announcements()
        await first.announce(b"hello")
        assert (await anext(announcements)).data == b"hello"
    finally:
        await asyncio.gather(*(node.close() for node in nodes))
