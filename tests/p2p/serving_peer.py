"""A peer in its own process, for tests that kill it.

It serves one blob and stops half way, like a busy machine. Arguments: discovery directory, seed,
members' seeds (comma separated), size, bytes to serve before blocking (0: all). It prints "ready"
when it can be asked and "half" when it blocks, and announces "alive". A request on "freeze" blocks
its event loop for the seconds in the body.
"""

import asyncio
import sys
import threading
import time
from pathlib import Path

from blake3 import blake3

from aftermath.p2p.iroh import open_iroh

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from p2p.nodes import content, identity, secret


async def main(directory: str, seed: int, members: list[int], size: int, block_at: int) -> None:
    """Serve until killed."""
    transport = await open_iroh(
        secret(seed),
        bind_host="127.0.0.1",
        relay="disabled",
        discovery="local",
        discovery_dir=Path(directory),
    )
    data = content(size)
    served = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal served
        if block_at and served >= block_at:
            print("half", flush=True)
            threading.Event().wait()
        served += length
        return data[offset : offset + length]

    async def freeze(peer: bytes, body: bytes) -> bytes:
        time.sleep(float(body))  # noqa: ASYNC251 - blocking the loop is the point
        return b"thawed"

    transport.handle("freeze", freeze)
    transport.publish_source(blake3(data).digest(), size, read)
    transport.set_members([identity(member) for member in members])
    await transport.announce(b"alive")
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    folder, own, others, blob_size, stop = sys.argv[1:]
    asyncio.run(
        main(folder, int(own), [int(one) for one in others.split(",")], int(blob_size), int(stop))
    )
