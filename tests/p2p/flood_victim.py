"""A member in its own process that tests flood, so its memory, CPU time and tasks can be measured.

Arguments: discovery directory, seed, members' seeds (comma separated). It prints "ready". For each
line that it reads, it prints its current usage as JSON. It answers "echo" and "large", and serves
one blob of a GiB.
"""

import asyncio
import json
import resource
import sys
from pathlib import Path

import psutil

from aftermath.p2p import connection_table
from aftermath.p2p.iroh import IrohTransport, open_iroh

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from p2p.nodes import ECHOED, LARGE_ANSWER, LARGE_BLOB, identity, secret

HEARD = 0


async def echo(peer: bytes, body: bytes) -> bytes:
    return body


async def large(peer: bytes, body: bytes) -> bytes:
    return bytes(LARGE_ANSWER)


async def listen(transport: IrohTransport) -> None:
    global HEARD
    async for _ in transport.announcements():
        HEARD += 1


def taken(transport: IrohTransport) -> dict[str, float]:
    """Return the usage of this process: memory, CPU seconds, tasks, links and counters."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    stats = transport.stats()
    return {
        "memory": psutil.Process().memory_info().rss,
        "cpu": used.ru_utime + used.ru_stime,
        "tasks": len(asyncio.all_tasks()),
        "links": len(transport._links._open),
        "heard": HEARD,
        "answered": stats.received["request"] / ECHOED,
        "looked_at": stats.connects + stats.refused,
        "violations": stats.violations,
        "reachable": len(transport.reachable()),
    }


async def main(directory: str, seed: int, members: list[int]) -> None:
    """Serve until standard input ends."""
    connection_table.PROBE_S = (
        0.75  # a flooder that was killed is found out after three seconds, not eight
    )
    transport = await open_iroh(
        secret(seed),
        bind_host="127.0.0.1",
        relay="disabled",
        discovery="local",
        discovery_dir=Path(directory),
    )
    transport.handle("echo", echo)
    transport.handle("large", large)
    transport.publish_source(bytes(32), LARGE_BLOB, lambda offset, length: bytes(length))
    listening = asyncio.create_task(listen(transport))
    transport.set_members([identity(member) for member in members])
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(taken(transport)), flush=True)
    listening.cancel()
    await transport.close()


if __name__ == "__main__":
    folder, own, others = sys.argv[1:]
    asyncio.run(main(folder, int(own), [int(one) for one in others.split(",")]))
