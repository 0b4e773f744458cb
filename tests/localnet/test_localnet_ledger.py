"""Test the ledger with real processes and files: kill -9, a full disk, damage, and two owners."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from solana.exceptions import SolanaRpcException
from solana.rpc.async_api import AsyncClient
from solana.rpc.core import RPCException
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from aftermath.localnet import LedgerError, LocalnetConfig, LocalnetError, VirtualTime, serve
from aftermath.localnet.ledger import DATABASE, Ledger, holds_chain, is_of_older_format
from aftermath.localnet.node import EmbeddedNode
from localnet.localnet_processes import start
from localnet.localnet_requests import (
    SOL,
    deploy,
    fund,
    health,
    memo,
    move,
    recent,
    sign,
    transfer_new,
)
from localnet.localnet_requests import rpc as call

PAYERS = 4


@contextmanager
def localnet(ledger: Path, *arguments: str) -> Iterator[tuple[str, int]]:
    """Yield (RPC URL, pid) of a process with that ledger. Kill the process at the end."""
    process, rpc, _ = start("--ledger", str(ledger), *arguments)
    try:
        yield rpc, process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def flood(
    client: AsyncClient, payer: Keypair, to: Pubkey, acknowledged: dict[Signature, int]
) -> None:
    """Send transfers until the server is gone. Record the acknowledged ones."""
    number = 0
    try:
        while True:
            number += 1
            tx = sign([move(payer, to, SOL // 1000 + number)], await recent(client), payer)
            signature = (await client.send_transaction(tx)).value
            acknowledged[signature] = SOL // 1000 + number
    except SolanaRpcException:
        return


@asynccontextmanager
async def reopened(ledger: Path) -> AsyncIterator[AsyncClient]:
    """Start a network in this process on the ledger of an earlier one."""
    running = await serve(LocalnetConfig(rpc_port=0, ledger=ledger))
    async with AsyncClient(running.rpc_url) as client:
        yield client
    await running.close()


@pytest.mark.slow
async def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    to = Keypair().pubkey()
    payers = [Keypair() for _ in range(PAYERS)]
    acknowledged = dict[Signature, int]()
    with localnet(tmp_path / "ledger") as (rpc, pid):
        async with AsyncClient(rpc) as client:
            genesis = (await client.get_genesis_hash()).value
            for payer in payers:
                await fund(client, payer.pubkey(), 100 * SOL)
            floods = [
                asyncio.create_task(flood(client, payer, to, acknowledged)) for payer in payers
            ]
            while len(acknowledged) < 80:
                await asyncio.sleep(0.01)
            slot = (await client.get_slot()).value

            os.kill(pid, signal.SIGKILL)
            await asyncio.gather(*floods)
    async with reopened(tmp_path / "ledger") as client:
        assert (await client.get_genesis_hash()).value == genesis
        assert (await client.get_slot()).value > slot
        known = list(acknowledged)
        for first in range(0, len(known), 256):
            statuses = (await client.get_signature_statuses(known[first : first + 256])).value
            assert all(status is not None and status.err is None for status in statuses)
        everything = (await client.get_signatures_for_address(to, limit=1000)).value
        assert set(known) <= {one.signature for one in everything}
        assert (await client.get_balance(to)).value >= sum(acknowledged.values())
        transaction = (await client.get_transaction(known[0])).value
        assert transaction is not None


async def test_blockhashes_duplicates_and_programs_survive(tmp_path: Path, memo_elf: bytes) -> None:
    payer = Keypair()
    program = Keypair()
    async with reopened(tmp_path / "ledger") as client:
        await fund(client, payer.pubkey())
        await deploy(client, payer, program, memo_elf)
        blockhash = await recent(client)
        sent = sign([memo(program.pubkey(), b"before")], blockhash, payer)
        transaction = sign([memo(program.pubkey(), b"after")], blockhash, payer)
        await client.send_transaction(sent)
        balance = (await client.get_balance(payer.pubkey())).value
        transactions = (await client.get_transaction_count()).value
    for _ in range(2):
        async with reopened(tmp_path / "ledger") as client:
            assert (await client.get_balance(payer.pubkey())).value == balance
            assert (await client.get_transaction_count()).value == transactions
            with pytest.raises(RPCException, match="already been processed"):
                await client.send_transaction(sent)
    async with reopened(tmp_path / "ledger") as client:
        await client.send_transaction(transaction)
        listed = (await client.get_signatures_for_address(payer.pubkey())).value
        assert [one.signature for one in listed[:2]] == [
            transaction.signatures[0],
            sent.signatures[0],
        ]


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs prlimit to fill a process's disk"
)
async def test_ledger_on_full_disk_raises_and_changes_nothing(tmp_path: Path) -> None:
    payer = Keypair()
    to = Keypair().pubkey()
    with localnet(tmp_path / "ledger", "--slot-ms", "60000") as (rpc, pid):
        async with AsyncClient(rpc) as client:
            await fund(client, payer.pubkey())
            balance = (await client.get_balance(payer.pubkey())).value
            tx = sign([move(payer, to, SOL)], await recent(client), payer)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
            for _ in range(2):
                with pytest.raises(RPCException, match="the chain is unchanged"):
                    await client.send_transaction(tx)
            assert "cannot be written" in (await call(rpc, "getHealth"))["error"]["message"]
            assert await health(rpc) == "unknown"
            assert (await client.get_balance(payer.pubkey())).value == balance
            assert (await client.get_account_info(to)).value is None
            assert (await client.get_signature_statuses([tx.signatures[0]])).value == [None]
            resource.prlimit(
                pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
            await client.send_transaction(tx)
            assert (await call(rpc, "getHealth"))["result"] == "ok"
    async with reopened(tmp_path / "ledger") as client:
        assert (await client.get_balance(to)).value == SOL
        assert (await client.get_balance(payer.pubkey())).value == balance - SOL - 5000


async def grown(ledger: Path, transfers: int) -> tuple[Keypair, int]:
    """Return (payer, its balance) of a ledger with that many transfers after the airdrop."""
    running = await serve(LocalnetConfig(rpc_port=0, ledger=ledger, time=VirtualTime()))
    payer = Keypair()
    async with AsyncClient(running.rpc_url) as client:
        await fund(client, payer.pubkey())
        for _ in range(transfers):
            await transfer_new(client, payer)
        balance = (await client.get_balance(payer.pubkey())).value
    await running.close()
    return payer, balance


def spoil(folder: Path, statement: str, *values: object) -> None:
    """Execute a statement on a ledger that no process has open."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE)) as database, database:
        database.execute(statement, values)


def write_text(folder: Path) -> None:
    (folder / DATABASE).write_text("years of work, but not a database\n" * 100)


def write_other_database(folder: Path) -> None:
    (folder / DATABASE).unlink()
    spoil(folder, "CREATE TABLE notes (line TEXT)")


def cut_off(folder: Path) -> None:
    path = folder / DATABASE
    os.truncate(path, path.stat().st_size // 2)


def overwrite_pages(folder: Path) -> None:
    path = folder / DATABASE
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\x55" * (len(data) - 4096))


def write_old_format(folder: Path) -> None:
    (folder / DATABASE).unlink()
    for name in ("snapshot-000000", "journal-000000"):
        (folder / name).write_bytes(b"written by an earlier version")


@pytest.mark.parametrize(
    ("change", "message", "fix"),
    [
        (write_text, "is damaged: file is not a database", "from a copy"),
        (write_other_database, "is not a ledger", "another directory"),
        (cut_off, "is damaged", "from a copy"),
        (overwrite_pages, "is damaged", "from a copy"),
        (
            lambda folder: spoil(folder, "DELETE FROM chain"),
            "is damaged: it holds no chain",
            "from a copy",
        ),
        (
            lambda folder: spoil(folder, "UPDATE chain SET eras = x'00'"),
            "is damaged",
            "from a copy",
        ),
        (
            lambda folder: spoil(folder, "UPDATE accounts SET account = x'00'"),
            "is damaged",
            "from a copy",
        ),
        (
            lambda folder: spoil(folder, "UPDATE accounts SET key = 5 WHERE rowid = 1"),
            "is damaged",
            "from a copy",
        ),
        (
            lambda folder: spoil(folder, "UPDATE history SET landed = x'c1'"),
            "is damaged",
            "from a copy",
        ),
        (
            lambda folder: spoil(folder, "DROP TABLE history"),
            "cannot be read: no such table",
            "permissions",
        ),
        (
            lambda folder: spoil(folder, "PRAGMA user_version = 4"),
            "has format 4, .* reads format 3",
            "--reset",
        ),
        (write_old_format, "an older version wrote it", "--reset"),
    ],
)
async def test_ledger_with_unfit_file_is_refused_unchanged(
    tmp_path: Path, change: Callable[[Path], None], message: str, fix: str
) -> None:
    await grown(tmp_path, 1)
    change(tmp_path)
    before = files(tmp_path)
    with pytest.raises(LedgerError, match=message) as caught:
        await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))
    assert fix in caught.value.fix
    assert "--ledger" in caught.value.fix
    assert files(tmp_path) == before


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("snapshot-000003", True), ("snapshot-100-9xYz.tar.zst", False), ("journal-000000", False)],
)
def test_older_ledger_format_is_recognised_by_snapshots(
    tmp_path: Path, name: str, expected: bool
) -> None:
    (tmp_path / name).touch()
    assert is_of_older_format(tmp_path) is expected
    assert holds_chain(tmp_path) is expected


async def test_ledger_killed_before_first_commit_is_new(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.recover() is None
    ledger.close()
    assert (tmp_path / DATABASE).exists()
    await (await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))).close()


async def test_ledger_open_in_another_program_is_refused(tmp_path: Path) -> None:
    await grown(tmp_path, 1)
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match="cannot be read: database is locked"):
            await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))


async def test_ledger_keeps_accounts_of_runtime(tmp_path: Path) -> None:
    """SPL Token comes with the runtime.

    The ledger stores its account once a transaction has changed it.
    """
    token = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
    balances = []
    for _ in range(2):
        running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=VirtualTime()))
        async with AsyncClient(running.rpc_url) as client:
            balances.append(running.bank.balance(token))
            await fund(client, token, SOL)
            balances.append(running.bank.balance(token))
        await running.close()
    assert balances[1] == balances[0] + SOL
    assert balances[2] == balances[1]


async def test_unwritable_ledger_warns_operator_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = EmbeddedNode(LocalnetConfig(ledger=tmp_path, time=VirtualTime()))
    assert node._ledger is not None
    assert node._ledger._connection is not None
    node._ledger._connection.execute("PRAGMA query_only = ON")
    for _ in range(2):
        with pytest.raises(LocalnetError, match="cannot be written"):
            await node.provide(Keypair().pubkey(), SOL)
    assert caplog.text.count("Free space on its disk") == 1
    await node.close()


async def test_forget_with_unwritable_ledger_keeps_accounts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = EmbeddedNode(LocalnetConfig(ledger=tmp_path, time=VirtualTime()))
    key = Keypair().pubkey()
    await node.provide(key, SOL)
    assert node._ledger is not None
    assert node._ledger._connection is not None
    node._ledger._connection.execute("PRAGMA query_only = ON")
    node.forget([key])
    assert node.bank.balance(key) == SOL
    assert "accounts not deleted" in caplog.text
    node._ledger._connection.execute("PRAGMA query_only = OFF")
    node.forget([key])
    assert node.bank.account(key) is None
    await node.close()
    again = EmbeddedNode(LocalnetConfig(ledger=tmp_path, time=VirtualTime()))
    assert again.bank.account(key) is None
    await again.close()


async def test_ledger_shared_by_two_networks_is_refused(tmp_path: Path) -> None:
    running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))
    with pytest.raises(LedgerError, match=r"in use by another process\n.*--save-state-dir"):
        await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))
    await running.close()
    await (await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))).close()


async def test_uncreatable_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LedgerError, match="cannot be opened"):
        await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path / "file"))
