"""Where there are several nodes, none alone refuses for good what a member asks of the chain: another is asked too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from aftermath.chain.endpoints import Endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.coordinator.errors import Refusal, Refused
from aftermath.rules import bitmap
from chain.faults import answer, meddling
from chain.networks import Place
from chain.test_chain_member import RUN, join, member_of

REFUSED = {"InstructionError": [2, {"Custom": 6000 + 99}]}
"""Of no error that the program has, so that it is final."""
CONTEXT = {"context": {"slot": 1}}
Lie = Callable[[dict[str, Any]], Awaitable[web.StreamResponse | None]]


async def simulations_fail(body: dict[str, Any]) -> web.StreamResponse | None:
    if body["method"] != "simulateTransaction":
        return None
    return answer(body, CONTEXT | {"value": {"err": REFUSED, "logs": [], "unitsConsumed": 1}})


async def transactions_fail(body: dict[str, Any]) -> web.StreamResponse | None:
    if body["method"] != "getSignatureStatuses":
        return None
    status = {"slot": 1, "confirmations": 1, "err": REFUSED, "confirmationStatus": "confirmed"}
    return answer(body, CONTEXT | {"value": [status for _ in body["params"][0]]})


@pytest.mark.parametrize("lie", [simulations_fail, transactions_fail])
async def test_what_one_node_refuses_for_good_is_sent_by_another(embedded: Place, lie: Lie) -> None:
    await embedded.open_run(RUN)
    async with meddling(embedded.network.rpc_url, lie) as url:
        nodes = [Endpoint(one, embedded.network.ws_url) for one in (url, embedded.network.rpc_url)]
        async with RpcPool(nodes) as pool, member_of(embedded, pool) as member:
            await join(member)
            members = (await member.view(fresh=True)).members
            assert bitmap.contains(members.pending, members.find(member.wallet) or 0)


async def test_what_all_refuse_for_good_is_refused(embedded: Place) -> None:
    await embedded.open_run(RUN)
    async with (
        meddling(embedded.network.rpc_url, simulations_fail) as url,
        RpcPool([Endpoint(url, embedded.network.ws_url)] * 2) as pool,
        member_of(embedded, pool) as member,
    ):
        with pytest.raises(Refused) as caught:
            await join(member)
        assert caught.value.reason is Refusal.FINAL


async def test_another_node_may_say_that_it_is_done(embedded: Place) -> None:
    """Who has a seat already and is told by one node that it may have none is told so by the other."""
    await embedded.open_run(RUN)
    async with meddling(embedded.network.rpc_url, simulations_fail) as url:
        nodes = [Endpoint(one, embedded.network.ws_url) for one in (url, embedded.network.rpc_url)]
        async with RpcPool(nodes) as pool, member_of(embedded, pool) as member:
            with pytest.raises(Refused) as caught:
                await member.tick()
            assert caught.value.name == "NothingToTick"
