"""Let senders abandon handshakes before they are accepted, by a transport in the same process.

Print the CPU milliseconds that the cheapest of these handshakes takes to fail.
"""

import asyncio
import contextlib
import sys
import time
from pathlib import Path

import iroh

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aftermath.p2p.iroh import open_iroh
from aftermath.p2p.wire import ALPN
from p2p.nodes import Rogue

TRIES = 2


async def main(folder: Path) -> None:
    transport = await open_iroh(
        bytes([1]) * 32, relay="disabled", discovery="local", discovery_dir=folder
    )
    host = await Rogue.open(2)
    caller = await Rogue.open(3)
    took = []
    for _ in range(TRIES):
        calling = asyncio.create_task(caller.endpoint.connect(host.endpoint.addr(), ALPN))
        incoming = await host.endpoint.accept_next()
        assert incoming is not None
        calling.cancel()
        await asyncio.wait([calling])
        await asyncio.sleep(0.1)
        began = time.process_time()
        with contextlib.suppress(iroh.IrohError):
            await (await incoming.accept()).connect()
            raise AssertionError("it was not given up")
        took.append(time.process_time() - began)
    print(f"{1000 * min(took):.1f}")
    await transport.close()


asyncio.run(main(Path(sys.argv[1])))
