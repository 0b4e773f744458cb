"""An embedded network for each file, in this process, with the memo program preloaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solders.keypair import Keypair
from solders.litesvm import LiteSVM

from aftermath.localnet import LocalnetConfig, serve
from chain.jumping_loop import JumpingLoop, LoopTime, mark_for_module_loop
from localnet.localnet_processes import Urls
from localnet.localnet_requests import MEMO_ID, PRELOADED_ID, fund

NETWORK_FIXTURES = {"network", "client", "payer", "socket"}


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    item: pytest.Function,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Let time pass only for tests on the network in this process; others start networks as
    processes.
    """
    is_slow = item.get_closest_marker("slow") is not None
    jumps = not is_slow and NETWORK_FIXTURES & set(item.fixturenames)
    return {"loop": JumpingLoop if jumps else asyncio.SelectorEventLoop}


def pytest_pycollect_makeitem(name: str, obj: object) -> None:
    mark_for_module_loop(name, obj, NETWORK_FIXTURES)


@pytest.fixture(scope="session")
def memo_elf() -> bytes:
    """Return the compiled memo program that comes with LiteSVM.

    It logs its data and refuses invalid UTF-8.
    """
    account = LiteSVM().get_account(MEMO_ID)
    assert account is not None
    return account.data


@pytest.fixture(scope="session")
def memo_so(memo_elf: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "memo.so"
    path.write_bytes(memo_elf)
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def network(memo_so: Path) -> AsyncIterator[Urls]:
    """Return a network of any engine. test_localnet_validator.py runs the tests that use it on the
    real validator.
    """
    running = await serve(
        LocalnetConfig(rpc_port=0, programs=[(PRELOADED_ID, memo_so)], time=LoopTime())
    )
    yield Urls("embedded", running.rpc_url, running.ws_url)
    await running.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(network: Urls) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(network.rpc_url, commitment=Confirmed, timeout=30) as open_client:
        yield open_client


@pytest_asyncio.fixture(loop_scope="module")
async def payer(client: AsyncClient) -> Keypair:
    """Return a new account with 10 SOL."""
    keypair = Keypair()
    await fund(client, keypair.pubkey())
    return keypair
