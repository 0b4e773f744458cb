"""Tests of the host names that the observer accepts: a site whose name resolves to this machine can
read nothing.
"""

from __future__ import annotations

import pytest
from aiohttp import WSServerHandshakeError

from ui.web.observer_client import Viewer, observing

NOWHERE = "http://127.0.0.1:9"
OWN = (
    "127.0.0.1",
    "localhost:8600",
    "LOCALHOST",
    "[::1]:8600",
    "192.168.1.5:8600",
    "observer.example.org",
)
FOREIGN = (
    "evil.example",
    "evil.example:8600",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "[bad",
    "a@evil",
)


async def status(viewer: Viewer, path: str, host: str) -> int:
    async with viewer.session.get(viewer.url + path, headers={"Host": host}) as reply:
        assert "Content-Security-Policy" in reply.headers
        return reply.status


async def test_observer_answers_only_under_its_own_names() -> None:
    async with observing(NOWHERE, names=("Observer.Example.org",)) as viewer:
        assert {host: await status(viewer, "/", host) for host in OWN} == dict.fromkeys(OWN, 200)
        for path in ("/", "/main.js", "/api/runs", "/nothing"):
            assert {host: await status(viewer, path, host) for host in FOREIGN} == dict.fromkeys(
                FOREIGN, 403
            )


async def test_observer_socket_is_refused_under_foreign_name() -> None:
    async with observing(NOWHERE) as viewer:
        with pytest.raises(WSServerHandshakeError, match="403"):
            await viewer.live("/live", Host="evil.example", Origin="http://evil.example")
