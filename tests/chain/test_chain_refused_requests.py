"""Tests of requests that a gateway refuses: the client honours Retry-After, and the fix fits the
refusal.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from aftermath.chain.endpoints import endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.coordinator.errors import Unavailable
from chain.scripted_node import Answer, Node, get_slot, serving, status


def timed(answer: Answer, times: list[float]) -> Answer:
    """Record the time of the request, and return the answer."""

    async def reply(body: dict[str, Any]) -> web.Response:
        times.append(asyncio.get_running_loop().time())
        return await answer(body)

    return reply


async def test_retry_after_delays_every_call_to_node() -> None:
    node = Node()
    times = list[float]()
    async with serving(node) as where, RpcPool(where) as pool:
        assert await pool.call(get_slot) == 7
        node.always = timed(status(429, Retry_After="3"), times)
        calls = [pool.call(get_slot, patience=7.0) for _ in range(2)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
    waves = [second - first for first, second in pairwise(times) if second - first > 0.5]
    assert len(waves) == 2
    assert all(wave >= 2.99 for wave in waves)


async def test_node_with_retry_after_leaves_calls_to_fallback() -> None:
    primary = Node()
    fallback = Node()
    primary.script = [status(429, Retry_After="60")]
    async with serving(primary, fallback) as where, RpcPool(where) as pool:
        for _ in range(3):
            assert await pool.call(get_slot) == 7
    assert (primary.count("getSlot"), fallback.count("getSlot")) == (1, 3)


async def test_retry_after_of_years_ends_after_minute() -> None:
    node = Node()
    node.script = [status(503, Retry_After="999999999")]
    async with serving(node) as where, RpcPool(where) as pool:
        started = asyncio.get_running_loop().time()
        assert await pool.call(get_slot, patience=90.0) == 7
        assert 59.9 < asyncio.get_running_loop().time() - started < 62.0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (status(401), "HTTP 401.*Check the API key"),
        (status(403), "HTTP 403.*Check the API key"),
        (status(429), "HTTP 429[\\s\\S]*limits the request rate"),
        (status(404), "HTTP 404.*Check the path"),
        (
            status(301, Location="https://rpc.example/?key=hidden"),
            r"redirect to https://rpc\.example\).*--rpc https",
        ),
        (status(308, Location="https://[::1]:7/x"), r"--rpc https://\[::1\]:7"),
        (status(301), "HTTP 301.*Check that it runs"),
        (status(500), "HTTP 500.*Check that it runs"),
    ],
)
async def test_refused_request_has_fix_for_its_reason(answer: Answer, expected: str) -> None:
    node = Node()
    node.always = answer
    async with serving(node) as where, RpcPool(where, patience=1.0) as pool:
        with pytest.raises(Unavailable, match=f"(?s){expected}") as caught:
            await pool.call(get_slot)
    assert "hidden" not in str(caught.value)
    assert ("localnet" in caught.value.fix) is ("Check that it runs" in expected)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://127.0.0.1:9", "a local network: aftermath-solana localnet"),
        ("https://rpc.invalid", "that this machine is on the internet"),
    ],
)
async def test_unreachable_node_fix_fits_its_address(address: str, expected: str) -> None:
    async with RpcPool([endpoint(address)], patience=0.1) as pool:
        with pytest.raises(Unavailable) as caught:
            await pool.call(get_slot)
    assert expected in caught.value.fix
    assert ("localnet" in caught.value.fix) == ("127.0.0.1" in address)
