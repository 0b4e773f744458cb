"""Networks to test against: one process per engine and session, reached over real sockets only."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solders.keypair import Keypair
from solders.litesvm import LiteSVM

from aftermath.localnet import validator_binary
from aftermath.localnet.ledger import COMPACT_BYTES
from localnet.chainwork import MEMO_ID, PRELOADED_ID, Urls, fund


@pytest.fixture(scope="session")
def memo_so(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled memo program, which LiteSVM carries: it logs its data and refuses invalid UTF-8."""
    account = LiteSVM().get_account(MEMO_ID)
    assert account is not None
    path = tmp_path_factory.mktemp("programs") / "memo.so"
    path.write_bytes(account.data)
    return path


Started = tuple[subprocess.Popen[str], str, str]


def start(*arguments: str) -> Started:
    """A localnet process and its two URLs."""
    return spawn("-m", "aftermath.localnet", "--rpc-port", "0", *arguments)


def start_odd(
    ledger: Path, *, wall_seconds: float = 0, slot_ms: int = 400, compact_bytes: int = COMPACT_BYTES
) -> Started:
    """A localnet process (see `odd_network`) and its two URLs."""
    script = Path(__file__).with_name("odd_network.py")
    return spawn(str(script), str(ledger), str(wall_seconds), str(slot_ms), str(compact_bytes))


def spawn(*arguments: str) -> Started:
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    ready = re.fullmatch(r"localnet ready rpc=(\S+) ws=(\S+)\n", line)
    if ready is None:
        process.wait(30)
        assert process.stderr is not None
        raise AssertionError(f"no ready line but {line!r}: {process.stderr.read()}")
    return process, ready.group(1), ready.group(2)


@pytest.fixture(scope="session")
def memo_elf(memo_so: Path) -> bytes:
    return memo_so.read_bytes()


@pytest.fixture(scope="module", params=["embedded", pytest.param("validator", marks=pytest.mark.slow)])
def network(request: pytest.FixtureRequest, memo_so: Path) -> Iterator[Urls]:
    """A network of either engine (the validator in the slow pass) with the memo program preloaded at PRELOADED_ID.

    It ends with its module: an idle validator takes half a core from the tests that follow.
    """
    if request.param == "validator" and validator_binary() is None:
        pytest.skip("solana-test-validator not found (PATH, AFTERMATH_VALIDATOR or ~/.cache/aftermath/bin)")
    process, rpc, ws = start("--engine", request.param, "--program", f"{PRELOADED_ID}={memo_so}")
    try:
        yield Urls(request.param, rpc, ws)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
async def client(network: Urls) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(network.rpc, commitment=Confirmed, timeout=30) as open_client:
        yield open_client


@pytest.fixture
async def payer(client: AsyncClient) -> Keypair:
    """A fresh account with 10 SOL."""
    keypair = Keypair()
    await fund(client, keypair.pubkey())
    return keypair
