"""An embedded network for each file, and a funded wallet and a run id for each test on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest
import pytest_asyncio

from aftermath.localnet import EmbeddedEngine, RunningLocalnet
from chain.funded_network import FundedNetwork, fund_network, network_config, share_tls_context
from chain.jumping_loop import JumpingLoop, mark_for_module_loop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Skip waiting time only in tests whose peers are all in this process. Slow tests use other
    processes.
    """
    is_slow = item.get_closest_marker("slow") is not None
    return {"loop": asyncio.SelectorEventLoop if is_slow else JumpingLoop}


def pytest_pycollect_makeitem(name: str, obj: object) -> None:
    mark_for_module_loop(name, obj, {"embedded", "funded"})


@pytest.fixture(scope="module", autouse=True)
def shared_tls_context() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share_tls_context(patch)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def network() -> AsyncIterator[RunningLocalnet]:
    running = await EmbeddedEngine().start(network_config())
    yield running
    await running.close()


@pytest_asyncio.fixture(loop_scope="module")
async def embedded(network: RunningLocalnet) -> AsyncIterator[FundedNetwork]:
    """Return the file's network with a new wallet."""
    async with fund_network(network) as funded:
        yield funded


@pytest.fixture
def funded(embedded: FundedNetwork) -> FundedNetwork:
    """Return a network of any engine. test_chain_validator.py runs some tests with this fixture on
    the real validator.
    """
    return embedded
