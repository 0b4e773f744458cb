"""Test that the ledger survives kills, and stays small in long runs and with large accounts."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from solana.rpc.async_api import AsyncClient
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.chain.wallet import Wallet
from aftermath.localnet import LocalnetConfig, RunningLocalnet, VirtualTime, serve
from aftermath.localnet.ledger import MARK_SLOTS, Ledger
from aftermath.localnet.slots import MAX_PROCESSING_AGE
from chain.funded_network import PROGRAMS, RICH
from localnet import ledger_writer
from localnet.localnet_requests import SOL, fund, move, recent, sign, transfer_new
from localnet.virtual_run import LoneMember

ROUNDS = 6
ATTESTATION_BYTES = 40_000
"""The pages of 4 KiB that one attestation changes; the program's accounts have 80,000 bytes."""
KILLS = 4


def state(running: RunningLocalnet) -> dict[Pubkey, Account | None]:
    return dict(running.bank.accounts())


def disk_bytes(folder: Path, names: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.glob(names))


async def test_attestation_writes_only_changed_pages(tmp_path: Path) -> None:
    """Measure the writes of a real run, and continue it after a restart."""
    clock = VirtualTime()
    wallet = Wallet(Keypair())
    gifts = [(wallet.pubkey, RICH)]
    running = await serve(
        LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock, programs=PROGRAMS, airdrops=gifts)
    )
    member = LoneMember(running, clock, wallet)
    await member.open(rounds=2 * ROUNDS)
    await member.reach_rounds()
    bytes_before = disk_bytes(tmp_path, "*-wal")
    landed = running.bank.transactions
    for _ in range(ROUNDS):
        run = await member.witness()
    assert run.current.height == ROUNDS
    written = disk_bytes(tmp_path, "*-wal") - bytes_before
    assert written / (running.bank.transactions - landed) < ATTESTATION_BYTES
    await member.close()
    expected = state(running)
    await running.close()
    again = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock))
    assert state(again) == expected
    await again.close()


def test_ledger_of_long_run_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old transactions make room for new ones, and the database and its log stop growing."""
    monkeypatch.setattr("aftermath.localnet.ledger.HISTORY_BYTES", 100_000)
    ledger = Ledger(tmp_path)
    ledger.recover()
    ledger.start(ledger_writer.chain(0), [(ledger_writer.KEY, ledger_writer.account(0))])
    sizes = []
    for number in range(MARK_SLOTS, 1201, MARK_SLOTS):
        batch = range(number - MARK_SLOTS + 1, number + 1)
        ledger.append([ledger_writer.entry(one) for one in batch])
        ledger.mark(number)
        sizes.append(disk_bytes(tmp_path))
    ledger.close()
    # 150 transactions could be sent again, and the log of changes grows to 1,000 pages of 4 KiB.
    limit = (MAX_PROCESSING_AGE + MARK_SLOTS) * len(ledger_writer.META)
    assert max(sizes) < limit * 2 + 1_000 * 4_300
    assert disk_bytes(tmp_path) < limit * 2
    again = Ledger(tmp_path)
    recovered = again.recover()
    again.close()
    assert recovered is not None
    assert recovered.chain == ledger_writer.chain(1200)
    first = 1200 - MAX_PROCESSING_AGE
    assert recovered.history == [ledger_writer.entry(number)[0] for number in range(first, 1201)]


async def test_resendable_transaction_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction with a valid blockhash stays after a restart, whatever the history's limit."""
    monkeypatch.setattr("aftermath.localnet.ledger.HISTORY_BYTES", 1)
    clock = VirtualTime()
    payer = Keypair()
    running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock))
    async with AsyncClient(running.rpc_url) as client:
        await fund(client, payer.pubkey())
        tx = sign([move(payer, Keypair().pubkey(), SOL // 10)], await recent(client), payer)
        await client.send_transaction(tx)
        for _ in range(20):
            await transfer_new(client, payer)
        clock.advance(15)
    await running.close()
    again = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock))
    assert again.bank.check(tx) == "AlreadyProcessed"
    await again.close()


@pytest.mark.slow
def test_killed_writer_loses_no_acknowledged_append(tmp_path: Path) -> None:
    """Kill the writer many times on one ledger.

    At most one append per kill was not acknowledged.
    """
    moments = random.Random(7)
    count = 0
    for _ in range(KILLS):
        command = [sys.executable, ledger_writer.__file__, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert int(process.stdout.readline()) == count
            lines = [process.stdout.readline() for _ in range(moments.randint(10, 200))]
            time.sleep(moments.uniform(0, 0.02))  # within an append
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().split()
        acknowledged = int(lines[-1])
        ledger = Ledger(tmp_path)
        recovered = ledger.recover()
        ledger.close()
        assert recovered is not None
        count = recovered.chain.transactions
        assert count in (acknowledged, acknowledged + 1)
        assert recovered.accounts == [(ledger_writer.KEY, ledger_writer.account(count))]
        assert recovered.history == [
            ledger_writer.entry(number)[0] for number in range(1, count + 1)
        ]
    assert count > KILLS


def test_ledger_copy_between_statements_is_whole(tmp_path: Path) -> None:
    """The copy is what a process that is killed at that moment leaves on disk."""
    place = tmp_path / "ledger"
    ledger = Ledger(place)
    ledger.recover()
    assert ledger._connection is not None
    copies: list[tuple[Path, int]] = []
    acknowledged = -1

    def copy(statement: str) -> None:
        target = tmp_path / f"{len(copies):03d}"
        shutil.copytree(place, target)
        copies.append((target, acknowledged))

    ledger._connection.set_trace_callback(copy)
    ledger.start(ledger_writer.chain(0), [(ledger_writer.KEY, ledger_writer.account(0))])
    acknowledged = 0
    for number in range(1, 4):
        ledger.append([ledger_writer.entry(number)])
        acknowledged = number
        ledger.mark(number)
    ledger.close()
    assert len(copies) > 20
    for folder, least in copies:
        left = Ledger(folder)
        recovered = left.recover()
        left.close()
        if recovered is None:
            assert least == -1, folder
            continue
        count = recovered.chain.transactions
        assert count == max(least, 0), folder
        assert recovered.accounts == [(ledger_writer.KEY, ledger_writer.account(count))], folder
        assert len(recovered.history) == count, folder
