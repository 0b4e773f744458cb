"""Tests of a member on the real programs: it joins, warms up, witnesses, attests and leaves, even
after an outage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from solders.keypair import Keypair

from aftermath.chain.endpoints import Endpoint
from aftermath.chain.funding import ensure_funds
from aftermath.chain.member import SolanaMember
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import NoSuchRun, Refused, Unavailable
from aftermath.rules.run import FINGERPRINT_BYTES, Run
from aftermath.rules.state import MemberState, RunState
from chain.faults import proxy
from chain.funded_network import SCHEMA_HASH, FundedNetwork


@asynccontextmanager
async def member_of(
    funded: FundedNetwork, pool: RpcPool | None = None, run_id: str = ""
) -> AsyncIterator[SolanaMember]:
    wallet = Wallet(Keypair())
    await ensure_funds(funded.pool, wallet.pubkey, 1_000_000_000)
    async with SolanaMember(
        pool or funded.pool, wallet, run_id or funded.run_id, client_version="1.0.0"
    ) as member:
        yield member


async def join(member: SolanaMember, **changes: object) -> None:
    wish = {
        "p2p": member.wallet,
        "tier": 0,
        "weight": 10,
        "schema_hash": SCHEMA_HASH,
        "stateless": False,
    }
    await member.join(**{**wish, **changes})  # type: ignore[arg-type]


async def until(
    member: SolanaMember, condition: Callable[[Run], bool], *, tick: bool = True
) -> Run:
    """Tick the run until a state meets `condition`, and return that state."""
    async with asyncio.timeout(30):
        while True:
            run = (await member.view(fresh=True)).run
            if condition(run):
                return run
            if tick:
                try:
                    await member.tick()
                except Refused as refusal:
                    if refusal.name != "NothingToTick":
                        raise
            await asyncio.sleep(0.05)
    raise AssertionError


def at_height(height: int, run: Run) -> bool:
    return run.state is RunState.ROUND_TRAIN and run.current.height == height


async def test_chain_member_completes_epoch(funded: FundedNetwork) -> None:
    await funded.open_run(rounds_per_epoch=2)
    async with member_of(funded) as member:
        now = asyncio.get_running_loop().time
        began = now()
        await join(member)
        seat = (await member.view()).members.find(member.wallet)
        assert seat == 0
        run = await until(member, lambda r: r.state is RunState.WARMUP and r.seed_is_drawn)
        assert (await member.view()).members.seats[0].state is MemberState.HEALTHY
        assert -5 < member.now() - run.state_started_at < 5 + now() - began
        await member.warmup_witness(0, run.round_id)
        with pytest.raises(Refused) as caught:
            await member.warmup_witness(0, run.round_id)
        assert caught.value.name in ("DuplicateWitness", "WrongState")
        for height in range(3):  # two rounds and the drain round
            run = await until(member, partial(at_height, height))
            await witness(member, run)
        run = await until(member, lambda r: r.state is RunState.COOLDOWN)
        await member.attest(0, run.round_id, {0: b"\1" * 32, 1: b"\2" * 32})
        run = (await member.view(fresh=True)).run
        assert run.level_hashes == (b"\1" * 32, b"\2" * 32)
        await member.checkpoint(2, "/tmp/saved", "", run.level_hashes)
        assert (await member.view()).model.checkpoint.repo in ("/tmp/model", "/tmp/saved")
        run = await until(member, lambda r: r.epoch == 1)
        assert (await member.view()).model.checkpoint.repo == "/tmp/saved"
        assert run.finishers == 1
        assert member.costs()["transactions"] > 6
        assert member.costs()["lamports"] >= 5000 * member.costs()["transactions"]
        assert 0 < member.costs()["push_bytes_max"] <= 2048
        await join(member)
        await member.leave()
        with pytest.raises(Refused) as caught:
            await member.leave()
        assert caught.value.name == "NotAMember"


async def witness(member: SolanaMember, run: Run) -> None:
    height = run.current.height
    participation = 0 if height == 0 else run.current.roster
    fingerprints = bytes(FINGERPRINT_BYTES)
    await member.witness(
        0,
        run.round_id,
        participation,
        fingerprints,
        step=run.step,
        loss=float("nan"),
        tokens_per_sec=1e12,
        bytes_per_sec=-1.0,
    )
    closed = (await member.view(fresh=True)).run.round(height)
    assert closed is not None
    (attestation,) = await member.attestations(closed)
    assert (attestation.seat, attestation.participation) == (0, participation)
    with pytest.raises(Refused) as caught:
        await member.witness(
            0,
            run.round_id,
            participation,
            fingerprints,
            step=1,
            loss=1.0,
            tokens_per_sec=1,
            bytes_per_sec=1,
        )
    assert caught.value.name in ("StaleHeight", "WrongState", "DuplicateWitness", "NotElected")


async def test_join_refusals_have_program_error_names(funded: FundedNetwork) -> None:
    await funded.open_run()
    async with member_of(funded) as member:
        for changes, name in (
            ({"schema_hash": bytes(32)}, "SchemaMismatch"),
            ({"tier": 2}, "TierOutOfRange"),
            ({"weight": 0}, "WeightZero"),
            ({"p2p": bytes(32)}, "P2pKeyZero"),
        ):
            with pytest.raises(Refused) as caught:
                await join(member, **changes)
            assert caught.value.name == name


async def test_unauthorized_wallet_error_names_whom_to_ask(funded: FundedNetwork) -> None:
    coordinator = await funded.configured_run()
    await coordinator.set_paused(funded.run_id, False)
    async with member_of(funded) as member:
        with pytest.raises(Refused, match="not admitted") as caught:
            await join(member)
    assert caught.value.name == "NotAuthorized"
    assert str(funded.wallet.pubkey) in caught.value.fix


async def test_unknown_run_is_reported_at_start(funded: FundedNetwork) -> None:
    with pytest.raises(NoSuchRun, match="there is no run 'nowhere'"):
        async with member_of(funded, run_id="nowhere"):
            pass


async def test_model_and_members_are_read_only_when_changed(
    funded: FundedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    await funded.open_run()
    async with member_of(funded) as member:
        reads: list[object] = []
        read = member._reader._read_together

        async def counted(*arguments: object) -> object:
            reads.append(arguments)
            return await read(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(member._reader, "_read_together", counted)
        assert await member.view() is await member.view()
        assert len(reads) == 1
        before = (await member.view()).run
        await join(member)
        await until(member, lambda r: r.members_seq > before.members_seq, tick=False)
        assert (await member.view()).members.find(member.wallet) == 0
        assert len(reads) == 2


async def test_calls_time_out_while_reads_wait_for_node(embedded: FundedNetwork) -> None:
    """Round logic must not hang on a call. Only reads that a member needs to continue wait."""
    await embedded.open_run()
    async with proxy(embedded.rpc_port) as http, proxy(embedded.ws_port) as ws:
        where = Endpoint(f"http://127.0.0.1:{http.port}", f"ws://127.0.0.1:{ws.port}")
        async with RpcPool([where]) as pool, member_of(embedded, pool) as member:
            await http.close()
            await ws.close()
            reading = asyncio.create_task(member.view())
            for call in (join(member), member.leave(), member.tick(), member.view(fresh=True)):
                with pytest.raises(Unavailable):
                    await asyncio.wait_for(call, 60)
            assert not reading.done()
            await http.open()
            await ws.open()
            assert (await asyncio.wait_for(reading, 30)).members.pending == 0


async def test_transactions_survive_outage(funded: FundedNetwork) -> None:
    await funded.open_run()
    async with proxy(funded.rpc_port) as http, proxy(funded.ws_port) as ws:
        where = Endpoint(f"http://127.0.0.1:{http.port}", f"ws://127.0.0.1:{ws.port}")
        async with RpcPool([where]) as pool, member_of(funded, pool) as member:
            await http.close()
            await ws.close()
            joining = asyncio.create_task(join(member))
            await asyncio.sleep(1.0)
            assert not joining.done()
            await http.open()
            await ws.open()
            await asyncio.wait_for(joining, 20)
            await until(member, lambda r: r.members_seq > 0, tick=False)
            assert (await member.view()).members.find(member.wallet) is not None


async def test_other_client_version_is_named(funded: FundedNetwork) -> None:
    """The error names the version even if the owner sets it while the member joins."""
    coordinator = await funded.configured_run()
    async with member_of(funded) as member:
        await member.view()
        await coordinator.update_client_version(funded.run_id, "2.0.0")
        await funded.admit_all()
        await coordinator.set_paused(funded.run_id, False)
        await member.view(fresh=True)
        with pytest.raises(
            Refused, match=r"version 2\.0\.0, and this is version 1\.0\.0"
        ) as caught:
            await join(member)
        assert caught.value.name == "ClientVersionMismatch"
        assert f"update-config --run-id {funded.run_id} --client-version 1.0.0" in caught.value.fix
