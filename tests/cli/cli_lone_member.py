"""A member without a trainer. It takes a run on a real network through one epoch with instructions
only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from aftermath.chain.endpoints import endpoint
from aftermath.chain.member import SolanaMember
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import load_wallet
from aftermath.coordinator.errors import Refused
from aftermath.rules.consensus import pack_fingerprints
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from cli.cli_runs import Shell

STEP_SECONDS = 0.05
QUICK = {
    "init_min_clients = 3": "init_min_clients = 1",
    "min_clients = 2": "min_clients = 1",
    "rounds_per_epoch = 16": "rounds_per_epoch = 2",
    "waiting_for_members_extra_time = 2": "waiting_for_members_extra_time = 1",
    "cooldown_time = 15": "cooldown_time = 120",
}
TOLD = {"loss": 1.0, "tokens_per_sec": 1.0, "bytes_per_sec": 1.0}


def quick_config(
    run_dir: Path, tmp_path: Path, more: Mapping[str, str] = MappingProxyType({})
) -> Path:
    text = (run_dir / "config.toml").read_text()
    for usual, quick in {**QUICK, **more}.items():
        assert usual in text
        text = text.replace(usual, quick, 1)
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


async def join(shell: Shell, run_id: str, max_bond: int) -> None:
    wallet = load_wallet(shell.wallet)
    async with (
        RpcPool([endpoint(shell.rpc)]) as pool,
        SolanaMember(pool, wallet, run_id, client_version="", max_bond=max_bond) as chain,
    ):
        schema_hash = (await chain.view()).model.schema_hash
        await chain.join(
            p2p=wallet.public, tier=0, weight=1, schema_hash=schema_hash, stateless=True
        )


async def leave(shell: Shell, run_id: str) -> None:
    async with (
        RpcPool([endpoint(shell.rpc)]) as pool,
        SolanaMember(pool, load_wallet(shell.wallet), run_id, client_version="") as chain,
    ):
        await chain.leave()


async def one_epoch(
    rpc: str,
    wallet_path: Path,
    run_id: str,
    level_hashes: Mapping[int, bytes],
    in_round: Callable[[], None] = lambda: None,
) -> Run:
    """Join, witness every round as the only member, and attest these level hashes. Return the run
    in Cooldown.

    Call `in_round` before each attempt to witness a round. The round lasts until it returns.
    """
    wallet = load_wallet(wallet_path)
    async with (
        RpcPool([endpoint(rpc)]) as pool,
        SolanaMember(pool, wallet, run_id, client_version="") as chain,
        asyncio.timeout(240),  # seconds, for a machine that is busy with other tests
    ):
        schema_hash = (await chain.view()).model.schema_hash
        await chain.join(
            p2p=wallet.public, tier=0, weight=1, schema_hash=schema_hash, stateless=True
        )
        while (run := (await chain.view(fresh=True)).run).state is not RunState.COOLDOWN:
            if run.state is RunState.ROUND_TRAIN:
                in_round()
            with contextlib.suppress(Refused):
                await _act(chain, run)
            await asyncio.sleep(STEP_SECONDS)
        await chain.attest(0, run.round_id, level_hashes)
        return (await chain.view(fresh=True)).run


async def _act(chain: SolanaMember, run: Run) -> None:
    """Do what the only member must do in this state."""
    if run.state is RunState.WAITING_FOR_MEMBERS:
        await chain.tick()
    elif run.state is RunState.WARMUP and not run.seed_is_drawn:
        await chain.tick()  # as a member does, because nobody is elected earlier
    elif run.state is RunState.WARMUP:
        await chain.warmup_witness(0, run.round_id)
    elif run.current.attested:
        await chain.tick()  # once the round has lasted its minimum time
    else:
        now = run.current
        before = run.round(now.height - 1)
        participation = before.roster if before is not None and before.batch else 0
        results = {0: bytes(31) + b"\1"}
        fingerprints = (
            pack_fingerprints(results, before.roster, now.salt)
            if before and participation
            else bytes(320)
        )
        await chain.witness(0, run.round_id, participation, fingerprints, step=now.step, **TOLD)
