"""What the journal costs and how it stays small: changed bytes only, compacted while the network runs, and nothing that
was acknowledged is lost by a crash or a full disk in the middle of it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solana.rpc.async_api import AsyncClient
from solana.rpc.core import RPCException
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from aftermath.chain.wallet import Wallet
from aftermath.localnet import LocalnetConfig, RunningLocalnet, VirtualTime, serve
from aftermath.localnet.delta import SMALL, apply, change
from aftermath.localnet.ledger import Ledger
from chain.networks import PROGRAMS, RICH
from localnet import compaction_crash
from localnet.chainwork import SOL, blank_account, fund, health, move, recent, rpc, send, sign, transfer_new
from localnet.coordinated import LoneMember
from localnet.processes import start_compacting

ROUNDS = 6
ATTESTATION_BYTES = 2_500
"""The signed transaction (about 750 bytes), its logs and what the program changed; the accounts have 80,000 bytes."""

OWNER = Pubkey.new_unique()
accounts = st.none() | st.builds(
    lambda lamports, data: Account(lamports, data, OWNER, False), st.integers(1, 2**63), st.binary(max_size=3 * SMALL)
)


@given(accounts, accounts, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=9))
def test_a_change_turns_the_old_account_into_the_new(
    old: Account | None, new: Account | None, edits: list[tuple[int, int]]
) -> None:
    edited = new
    if old is not None:
        data = bytearray(old.data)
        for where, value in edits:
            if data:
                data[where % len(data)] = value
        edited = Account(old.lamports, bytes(data), OWNER, False)
    for target in (new, edited):
        held = {} if old is None else {b"key": bytearray(bytes(old))}
        apply(held, [(b"key", change(old, target))])
        assert held == ({} if target is None else {b"key": bytearray(bytes(target))})


@pytest.mark.parametrize("ranges", [[(500, b"x")], [(0, b"x" * 501)], [(-1, b"x")]])
def test_a_range_outside_the_account_is_refused(ranges: list[tuple[int, bytes]]) -> None:
    held = {b"key": bytearray(500)}
    for key in (b"key", b"other"):
        with pytest.raises(ValueError, match="outside"):
            apply(held, [(key, ranges)])
    assert held == {b"key": bytearray(500)}


def state(running: RunningLocalnet) -> dict[bytes, bytes]:
    return {one.key: one.account for one in running.bank.stored()}


def disk_bytes(folder: Path, names: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.glob(names))


async def test_an_attestation_is_journalled_by_what_it_changed(tmp_path: Path) -> None:
    """On a real run: bytes per transaction, and the accounts that a restart reads back."""
    clock, wallet = VirtualTime(), Wallet(Keypair())
    gifts = [(wallet.pubkey, RICH)]
    running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock, programs=PROGRAMS, airdrops=gifts))
    member = LoneMember(running, clock, wallet)
    await member.open(rounds=2 * ROUNDS)
    await member.reach_rounds()
    before, landed = disk_bytes(tmp_path, "journal-*"), running.bank.transactions
    for _ in range(ROUNDS):
        run = await member.witness()
    assert run.current.height == ROUNDS
    assert (disk_bytes(tmp_path, "journal-*") - before) / (running.bank.transactions - landed) < ATTESTATION_BYTES
    await member.close()
    held = state(running)
    await running.close()
    again = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock))
    assert state(again) == held
    await again.close()


async def test_the_ledger_stays_bounded_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aftermath.localnet.ledger.COMPACT_BYTES", 4_000)
    monkeypatch.setattr("aftermath.localnet.ledger.HISTORY_BYTES", 8_000, raising=False)
    clock, payer, to = VirtualTime(), Keypair(), Keypair().pubkey()
    running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock))
    sizes = []
    async with AsyncClient(running.rpc_url) as client:
        await fund(client, payer.pubkey())
        for _ in range(6):
            for _ in range(8):
                await transfer_new(client, payer, to)
            clock.advance(60.5)
            sizes.append(disk_bytes(tmp_path))
    assert max(sizes) < 4_000 + 8_000 + 8 * 1_000
    held, landed = state(running), running.bank.transactions
    await running.close()
    again = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock))
    assert state(again) == held
    assert again.bank.transactions == landed
    await again.close()


async def test_what_could_be_sent_again_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the history may be: a transaction whose blockhash is still good must be known after a restart."""
    monkeypatch.setattr("aftermath.localnet.ledger.COMPACT_BYTES", 4_000)
    monkeypatch.setattr("aftermath.localnet.ledger.HISTORY_BYTES", 1, raising=False)
    clock, payer = VirtualTime(), Keypair()
    running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock))
    async with AsyncClient(running.rpc_url) as client:
        await fund(client, payer.pubkey())
        tx = sign([move(payer, Keypair().pubkey(), SOL // 10)], await recent(client), payer)
        await client.send_transaction(tx)
        for _ in range(20):
            await transfer_new(client, payer)
    await running.close()
    again = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock))
    assert again.bank.check(tx) == "AlreadyProcessed"
    await again.close()


async def test_a_journal_that_cannot_be_made_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compaction is put off before its snapshot could outlive what the running journal still gets."""
    monkeypatch.setattr("aftermath.localnet.ledger.COMPACT_BYTES", 2_000)
    clock, payer, in_the_way = VirtualTime(), Keypair(), tmp_path / "journal-000001"
    running = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock))
    in_the_way.mkdir()
    async with AsyncClient(running.rpc_url) as client:
        await fund(client, payer.pubkey())
        for _ in range(8):
            await transfer_new(client, payer)
    held = state(running)
    await running.close()
    in_the_way.rmdir()
    again = await serve(LocalnetConfig(rpc_port=0, ledger=tmp_path, time=clock))
    assert state(again) == held
    await again.close()


def test_kill_9_at_every_system_call_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Appends and compactions, the process dying before and after each call that touches the disk."""
    said = subprocess.run(
        [sys.executable, compaction_crash.__file__, tmp_path], capture_output=True, text=True, timeout=120, check=True
    )
    runs = [line.rsplit(" ", 1) for line in said.stdout.splitlines()]
    assert len(runs) > 2 * 3 * compaction_crash.ROUNDS
    for place, acknowledged in runs:
        ledger = Ledger(Path(place))
        found = ledger.recover()
        least = int(acknowledged)
        if found is None:
            assert least == -1, place
        else:
            count = found.chain.transactions
            assert least <= count <= max(least, 0) + 1, place
            assert found.accounts == {compaction_crash.KEY: compaction_crash.account(count)}, place
            ledger.start(compaction_crash.chain(count), [])
            ledger.append([compaction_crash.entry(count + 1)])
        ledger.close()
    assert int(runs[-1][1]) == compaction_crash.ROUNDS


async def transfer_on(client: AsyncClient, payer: Keypair, sent: list[Signature], most: int) -> None:
    for _ in range(most):
        sent.append((await transfer_new(client, payer))[0])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prlimit to fill a process's disk")
async def test_a_disk_too_full_for_a_snapshot_loses_nothing(tmp_path: Path) -> None:
    """The compaction is put off, the journal fills the rest, then transactions are refused; killed, all is there."""
    folder, payer, sent = tmp_path / "ledger", Keypair(), list[Signature]()
    process, url, _ = start_compacting(folder, compact_bytes=6_000)
    async with AsyncClient(url) as client:
        await fund(client, payer.pubkey(), 1000 * SOL)
        await send(client, [blank_account(payer, large := Keypair(), 30_000)], payer, large)
        (snapshot,) = folder.glob("snapshot-*")
        size = snapshot.stat().st_size
        assert size > 30_000
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size + 1_500, resource.RLIM_INFINITY))
        with pytest.raises(RPCException, match="the chain is unchanged"):
            await transfer_on(client, payer, sent, 200)
        assert "cannot be written" in (await rpc(url, "getHealth"))["error"]["message"]
        assert await health(url) == "unknown"
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        sent.append((await transfer_new(client, payer))[0])
        assert (await rpc(url, "getHealth"))["result"] == "ok"
        process.kill()
    assert "snapshot postponed" in process.communicate()[1]
    running = await serve(LocalnetConfig(rpc_port=0, ledger=folder, slot_ms=60_000))
    async with AsyncClient(running.rpc_url) as client:
        assert all((await client.get_signature_statuses(sent)).value)
    await running.close()
