"""The ledger: kill -9, full disk, damage, two owners. Real processes and files."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import struct
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
from solana.exceptions import SolanaRpcException
from solana.rpc.async_api import AsyncClient
from solana.rpc.core import RPCException
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from aftermath.localnet import LedgerError, LocalnetConfig, VirtualTime, serve
from aftermath.localnet.journal import Journal, read_records
from aftermath.localnet.records import Entry, Head, Mark
from localnet.chainwork import SOL, deploy, fund, memo, move, recent, send, sign, transfer_new
from localnet.processes import start

PAYERS = 4


@contextmanager
def localnet(ledger: Path, *arguments: str) -> Iterator[tuple[str, int]]:
    """A process with that ledger, killed (never asked) at the end: (RPC URL, pid)."""
    process, rpc, _ = start("--ledger", str(ledger), *arguments)
    try:
        yield rpc, process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def flood(client: AsyncClient, payer: Keypair, to: Pubkey, acknowledged: dict[Signature, int]) -> None:
    """Transfers without end; those that were answered are noted. Ends when the server is gone."""
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
    """A network in this process on a ledger that another one left."""
    running = await serve(LocalnetConfig(rpc_port=0, ledger=ledger))
    async with AsyncClient(running.rpc_url) as client:
        yield client
    await running.close()


async def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    to, payers, acknowledged = Keypair().pubkey(), [Keypair() for _ in range(PAYERS)], dict[Signature, int]()
    with localnet(tmp_path / "ledger") as (rpc, pid):
        async with AsyncClient(rpc) as client:
            genesis = (await client.get_genesis_hash()).value
            for payer in payers:
                await fund(client, payer.pubkey(), 100 * SOL)
            floods = [asyncio.create_task(flood(client, payer, to, acknowledged)) for payer in payers]
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
        found = (await client.get_transaction(known[0])).value
        assert found is not None


async def test_blockhashes_duplicates_and_programs_survive(tmp_path: Path, memo_elf: bytes) -> None:
    payer, program = Keypair(), Keypair()
    async with reopened(tmp_path / "ledger") as client:
        await fund(client, payer.pubkey())
        await deploy(client, payer, program, memo_elf)
        blockhash = await recent(client)
        sent = sign([memo(program.pubkey(), b"before")], blockhash, payer)
        kept = sign([memo(program.pubkey(), b"after")], blockhash, payer)
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
        await client.send_transaction(kept)
        listed = (await client.get_signatures_for_address(payer.pubkey())).value
        assert [one.signature for one in listed[:2]] == [kept.signatures[0], sent.signatures[0]]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prlimit to fill a process's disk")
async def test_a_full_disk_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    payer, to = Keypair(), Keypair().pubkey()
    with localnet(tmp_path / "ledger", "--slot-ms", "60000") as (rpc, pid):
        async with AsyncClient(rpc) as client:
            await fund(client, payer.pubkey())
            balance = (await client.get_balance(payer.pubkey())).value
            tx = sign([move(payer, to, SOL)], await recent(client), payer)
            journal = tmp_path / "ledger" / "journal-000000"
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (journal.stat().st_size + 100, resource.RLIM_INFINITY))
            with pytest.raises(RPCException, match="the chain is unchanged"):
                await client.send_transaction(tx)
            assert (await client.get_balance(payer.pubkey())).value == balance
            assert (await client.get_account_info(to)).value is None
            assert (await client.get_signature_statuses([tx.signatures[0]])).value == [None]
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await client.send_transaction(tx)
    async with reopened(tmp_path / "ledger") as client:
        assert (await client.get_balance(to)).value == SOL
        assert (await client.get_balance(payer.pubkey())).value == balance - SOL - 5000


async def grown(ledger: Path, transfers: int) -> tuple[Keypair, int]:
    """A ledger with that many transfers after the airdrop: (payer, its balance)."""
    running = await serve(LocalnetConfig(rpc_port=0, ledger=ledger, time=VirtualTime()))
    payer = Keypair()
    async with AsyncClient(running.rpc_url) as client:
        await fund(client, payer.pubkey())
        for _ in range(transfers):
            await transfer_new(client, payer)
        balance = (await client.get_balance(payer.pubkey())).value
    await running.close()
    return payer, balance


def lengthen(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_an_unfinished_record_is_dropped_with_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    payer, balance = await grown(tmp_path, 2)
    journal = tmp_path / "journal-000000"
    lengthen(journal, b"\x50\x01\x00\x00short")
    with caplog.at_level(logging.WARNING):
        running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=VirtualTime()))
    assert running.bank.balance(payer.pubkey()) == balance
    await running.close()
    assert "dropped 9 bytes" in caplog.text


async def test_a_damaged_record_stops_the_start(tmp_path: Path) -> None:
    await grown(tmp_path, 3)
    journal = tmp_path / "journal-000000"
    data = bytearray(journal.read_bytes())
    data[100] ^= 1
    journal.write_bytes(data)
    with pytest.raises(LedgerError, match=r"journal-000000 is damaged at byte 49\n"):
        await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))
    data[100] ^= 1
    journal.write_bytes(data)
    await (await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))).close()


async def test_a_damaged_snapshot_stops_the_start(tmp_path: Path) -> None:
    await grown(tmp_path, 1)
    snapshot = tmp_path / "snapshot-000000"
    snapshot.write_bytes(snapshot.read_bytes()[:-30])
    with pytest.raises(LedgerError, match="damaged"):
        await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def without_records(folder: Path) -> None:
    (folder / "journal-000000").write_bytes(b"")


def without_the_journal(folder: Path) -> None:
    (folder / "journal-000000").unlink()


def of_another_chain(folder: Path) -> None:
    journal = Journal(folder / "journal-000000", Head(bytes(32), 0))
    journal.append([Mark(1000)])
    journal.close()


def that_does_not_follow(folder: Path) -> None:
    path = folder / "journal-000000"
    head, *records = read_records(path, repair=False)
    landed = next(one.landed for one in records if isinstance(one, Entry))
    assert isinstance(head, Head)
    journal = Journal(path, head)
    journal.append([Entry(landed, [(bytes(32), [(0, b"of an account that is not there")])])])
    journal.close()


def of_the_first_format(folder: Path) -> None:
    """As the first release wrote it: eras are pairs, journals have no head."""
    chain = [4, 1, bytes(32), [[1, 1_700_000_000.0]], 5, 3]
    payload = msgspec.msgpack.encode(chain)
    prefix = struct.pack("<II", len(payload), zlib.crc32(payload))
    (folder / "snapshot-000000").write_bytes(prefix + struct.pack("<I", zlib.crc32(prefix)) + payload)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without_records, "journal-000000 is not a journal of this chain, or was cut off at its start"),
        (without_the_journal, "journal-000000 is missing"),
        (of_another_chain, "journal-000000 is not a journal of this chain"),
        (that_does_not_follow, "journal-000000 does not follow from its snapshot"),
        (of_the_first_format, "has format 1; this version writes format 2"),
    ],
)
async def test_a_ledger_that_does_not_fit_together(tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    await grown(tmp_path, 1)
    spoil(tmp_path)
    before = files(tmp_path)
    with pytest.raises(LedgerError, match=said) as caught:
        await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))
    assert "--ledger" in caught.value.fix
    assert files(tmp_path) == before


async def test_an_account_that_the_runtime_brought_along_is_journalled_whole(tmp_path: Path) -> None:
    """SPL Token has some hundred kilobytes that no snapshot holds: ranges of it would follow from nothing."""
    token = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
    held = []
    for _ in range(2):
        running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=VirtualTime()))
        async with AsyncClient(running.rpc_url) as client:
            held.append(running.bank.balance(token))
            await fund(client, token, SOL)
            held.append(running.bank.balance(token))
        await running.close()
    assert held[1] == held[0] + SOL
    assert held[2] == held[1]


async def test_two_networks_cannot_share_a_ledger(tmp_path: Path) -> None:
    running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))
    with pytest.raises(LedgerError, match=r"in use by another process\n.*--save-state-dir"):
        await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))
    await running.close()
    await (await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path))).close()


async def test_compaction_keeps_state_and_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aftermath.localnet.ledger.COMPACT_BYTES", 2_000)
    payer, balance = await grown(tmp_path, 16)
    assert "snapshot-000000" not in names(tmp_path)
    assert sum(name.startswith("snapshot") for name in names(tmp_path)) == 1
    running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=VirtualTime()))
    assert running.bank.balance(payer.pubkey()) == balance
    async with AsyncClient(running.rpc_url) as client:
        assert len((await client.get_signatures_for_address(payer.pubkey())).value) == 17
        await send(client, [move(payer, Keypair().pubkey(), SOL)], payer)
    await running.close()


async def test_a_ledger_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LedgerError, match="cannot be opened"):
        await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path / "file"))
