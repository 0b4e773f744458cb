"""An embedded network for each file, and for each test on it a wallet with money and the id of a
run.
"""

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
    """Let time pass only where all that a test waits for is in this process; slow tests reach
    others.
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
    """The file's network with a new wallet."""
    async with fund_network(network) as funded:
        yield funded


@pytest.fixture
def funded(embedded: FundedNetwork) -> FundedNetwork:
    """A network of any engine: test_chain_validator.py runs some tests that use it on the real
    validator.
    """
    return embedded
