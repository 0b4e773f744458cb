"""Measure the peer-to-peer transport on loopback: blob throughput and announcement round trips.

python benchmarks/p2p.py [--json]
"""

# How it is measured:
# - Each holder is a process of its own. It serves the same bytes through our transport and
#   through asyncio TCP, so both are measured in one run on one machine.
# - Our figure includes encryption, authentication and the BLAKE3 check. TCP's is the bare copy.
# - In a round trip, one peer announces, every other peer answers with an announcement, and the
#   first one has all answers.

import argparse
import asyncio
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import iroh

from aftermath.p2p.iroh import IrohTransport, open_iroh

SIZE = 64 << 20
REPEATS = 5
ROUND_TRIPS = 50
PIECE = 1 << 20


def secret(number: int) -> bytes:
    """Return a repeatable key per peer."""
    return hashlib.sha256(f"p2p benchmark {number}".encode()).digest()


def identity(number: int) -> bytes:
    """Return the id of `secret(number)`."""
    return bytes(iroh.SecretKey.from_bytes(secret(number)).public().to_bytes())


def content() -> bytes:
    """Return the blob: repeatable, without structure."""
    return hashlib.shake_128(b"p2p benchmark").digest(SIZE)


async def open_peer(number: int, directory: Path) -> IrohTransport:
    """Return a transport on loopback."""
    return await open_iroh(
        secret(number),
        bind_host="127.0.0.1",
        relay="disabled",
        discovery="local",
        discovery_dir=directory,
    )


async def hold(number: int, directory: Path) -> None:
    """Serve the blob both ways until killed, in a holder's process. Print the TCP port."""
    data = content()

    async def over_tcp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        view = memoryview(data)
        for offset in range(0, SIZE, PIECE):
            writer.write(view[offset : offset + PIECE])
            await writer.drain()
        writer.close()

    transport = await open_peer(number, directory)
    transport.publish(data)
    transport.set_members([identity(0)])
    server = await asyncio.start_server(over_tcp, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@asynccontextmanager
async def holder(number: int, directory: Path) -> AsyncIterator[int]:
    """Start a holder's process and yield its TCP port."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--hold",
        str(number),
        str(directory),
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        yield int(await child.stdout.readline())
    finally:
        child.kill()
        await child.wait()


async def tcp_seconds(port: int) -> float:
    """Return the seconds to copy the blob over plain asyncio TCP."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4 * PIECE)
    received = 0
    while chunk := await reader.read(PIECE):
        received += len(chunk)
    writer.close()
    assert received == SIZE
    return time.perf_counter() - began


async def fetch_seconds(transport: IrohTransport, digest: bytes, holders: list[bytes]) -> float:
    """Return the seconds to fetch and verify the blob."""
    began = time.perf_counter()
    blob = await transport.fetch(digest, SIZE, holders, 120)
    assert len(blob) == SIZE
    return time.perf_counter() - began


async def measure_blobs() -> dict[str, float]:
    """Return the median MB/s (10^6 bytes) with one and three holders, and over TCP."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        async with AsyncExitStack() as stack:
            transport = await open_peer(0, directory)
            stack.push_async_callback(transport.close)
            ports = [
                await stack.enter_async_context(holder(number, directory)) for number in (1, 2, 3)
            ]
            ids = [identity(number) for number in (1, 2, 3)]
            transport.set_members(ids)
            while len(transport.reachable()) < 3:
                await asyncio.sleep(0.01)
            data = content()
            digest = transport.publish(data)
            transport.retract(digest)
            seconds: dict[str, list[float]] = {"tcp": [], "holders_1": [], "holders_3": []}
            for _ in range(REPEATS):
                seconds["tcp"].append(await tcp_seconds(ports[0]))
                seconds["holders_1"].append(await fetch_seconds(transport, digest, ids[:1]))
                seconds["holders_3"].append(await fetch_seconds(transport, digest, ids))
    return {name: SIZE / 1e6 / statistics.median(taken) for name, taken in seconds.items()}


async def measure_announcements(peers: int) -> dict[str, float]:
    """Return the milliseconds until all peers have answered an announcement: median and 95th
    percentile.
    """
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            nodes = [await open_peer(number, Path(folder) / "run") for number in range(peers)]
            for node in nodes:
                stack.push_async_callback(node.close)
                node.set_members([one.node_id for one in nodes])
            while any(len(node.reachable()) < peers - 1 for node in nodes):
                await asyncio.sleep(0.01)
            answering = [asyncio.create_task(answer(node, nodes[0].node_id)) for node in nodes[1:]]
            taken = await round_trips(nodes[0], peers - 1)
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)
    return {"median": statistics.median(taken), "p95": sorted(taken)[int(0.95 * len(taken))]}


async def answer(node: IrohTransport, asker: bytes) -> None:
    """Answer every announcement of `asker` with one of our own."""
    async for announcement in node.announcements():
        if announcement.sender == asker:
            await node.announce(b"answer " + announcement.data)


async def round_trips(asker: IrohTransport, others: int) -> list[float]:
    """Return the milliseconds of each round trip."""
    replies = asker.announcements()
    taken = []
    for number in range(ROUND_TRIPS):
        began = time.perf_counter()
        await asker.announce(b"%d" % number)
        for _ in range(others):
            await anext(replies)
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


async def measure() -> dict[str, object]:
    """Return all figures."""
    blobs = await measure_blobs()
    return {
        "blob_bytes": SIZE,
        "blob_mb_per_s": {name: round(speed, 1) for name, speed in blobs.items()},
        "ratio_to_tcp": {
            name: round(blobs[name] / blobs["tcp"], 3) for name in ("holders_1", "holders_3")
        },
        "announcement_round_trip_ms": {
            str(peers): {
                name: round(value, 2)
                for name, value in (await measure_announcements(peers)).items()
            }
            for peers in (3, 8)
        },
    }


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--hold", nargs=2, metavar=("NUMBER", "DIR"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hold:
        asyncio.run(hold(int(arguments.hold[0]), Path(arguments.hold[1])))
        return
    figures = asyncio.run(measure())
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
