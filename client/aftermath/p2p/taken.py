"""Whether a relay takes an endpoint of this machine, for checks before a run.

Decided: what counts is that the relay has taken it, since one that answers a ping may still turn it away. The endpoint
has a key of its own, and nobody is told of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import iroh

from aftermath.p2p.discovery import Whereabouts
from aftermath.p2p.iroh import ENDPOINT_CLOSE_S, bound, whereabouts


async def taken_by(relay: str, host: str | None, seconds: float) -> Whereabouts | None:
    """Where an endpoint at this interface is found once the relay has it; None if it has not within `seconds`.

    Raises UsageError, BindFailed.
    """
    endpoint = await bound(secrets.token_bytes(32), host, 0, relay, "local")
    try:
        async with asyncio.timeout(seconds):
            await endpoint.online()
        return whereabouts(endpoint)
    except TimeoutError:
        return None
    finally:
        with contextlib.suppress(TimeoutError, iroh.IrohError):
            async with asyncio.timeout(ENDPOINT_CLOSE_S):
                await endpoint.close()
