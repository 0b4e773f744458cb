"""Members without trainers on a real embedded network.

They take a run through its rounds with instructions only. `python -m ui.web.scripted_members`
starts a live run for development of the page, and prints its network's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from solders.keypair import Keypair

from aftermath.chain.endpoints import endpoint
from aftermath.chain.member import SolanaMember
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import Refused
from aftermath.localnet import EmbeddedEngine
from aftermath.rules import bitmap
from aftermath.rules.committee import levels_to_attest
from aftermath.rules.consensus import pack_fingerprints
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from chain.funded_network import SCHEMA_HASH, FundedNetwork, network_config

STEP_SECONDS = 0.05


class ScriptedMembers:
    """Members of these tiers in one run, by seat."""

    def __init__(
        self, funded: FundedNetwork, run_id: str, members: Sequence[tuple[int, SolanaMember]]
    ) -> None:
        self.funded = funded
        self.run_id = run_id
        self.states_steps: int | None = None
        """The step that all members state with what they attest, if not the round's."""
        self._members = list(members)

    async def run(self) -> Run:
        """Read the run now."""
        return await self.funded.coordinator.run(self.run_id)

    async def join(self, *, stateless: bool = True) -> None:
        """Let all members ask for a seat, one after the other."""
        for tier, member in self._members:
            weight = 30 // (tier + 1)
            await member.join(
                p2p=member.wallet,
                tier=tier,
                weight=weight,
                schema_hash=SCHEMA_HASH,
                stateless=stateless,
            )

    async def reach(self, *states: RunState, height: int = 0) -> Run:
        """Act until the run is in one of these states, in that round or a later one."""
        async with asyncio.timeout(60):
            while (run := await self.run()).state not in states or run.current.height < height:
                await self.act(run)
                await asyncio.sleep(STEP_SECONDS)
        return run

    async def act(self, run: Run) -> None:
        """Do what this state needs, as the member whose task it is."""
        seats = (await self.funded.coordinator.members(self.run_id)).seats
        for tier, member in self._members:
            seat = next(
                (
                    number
                    for number, seat in enumerate(seats)
                    if seat.used and seat.signer == member.wallet
                ),
                None,
            )
            if seat is not None:
                with contextlib.suppress(Refused):
                    await self._act(run, tier, member, seat)
        with contextlib.suppress(Refused):
            await self._members[0][1].tick()

    async def _act(self, run: Run, tier: int, member: SolanaMember, seat: int) -> None:
        if run.state is RunState.WARMUP and run.seed_is_drawn:
            await member.warmup_witness(seat, run.round_id)
        elif run.state.training and not bitmap.contains(run.current.attested, seat):
            judged = run.round(run.config.judged(run.current.height))
            participation = judged.roster if judged is not None and judged.batch else 0
            results = {seat: bytes([1]) * 32 for seat in bitmap.seats(participation)}
            marks = (
                pack_fingerprints(results, judged.roster, run.current.salt)
                if judged and participation
                else bytes(320)
            )
            step = run.current.step
            loss = (
                1.4 + 0.05 * tier + 4.2 * math.exp(-step / 12) + 0.06 * math.sin(step * (tier + 2))
            )
            metadata = {
                "loss": loss,
                "tokens_per_sec": 5200.0 / (tier + 1),
                "bytes_per_sec": 90_000.0,
            }
            stated = step if self.states_steps is None else self.states_steps
            await member.witness(seat, run.round_id, participation, marks, step=stated, **metadata)
        elif run.state is RunState.COOLDOWN:
            view = await member.view(fresh=True)
            levels = levels_to_attest(view.run, view.members, seat)
            if levels:
                await member.attest(
                    seat, run.round_id, {level: bytes([level + 1]) * 32 for level in levels}
                )


@asynccontextmanager
async def scripted_members(
    run_id: str, tiers: Sequence[int], *, name: str = "", slot_ms: int = 20, **config: int
) -> AsyncIterator[ScriptedMembers]:
    """Start a network and a run on it, which members of these tiers can join."""
    owner = Wallet(Keypair())
    wallets = [Wallet(Keypair()) for _ in tiers]
    network = await EmbeddedEngine().start(
        replace(network_config(owner, *wallets), slot_ms=slot_ms)
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(network.close)
        pool = await stack.enter_async_context(RpcPool([endpoint(network.rpc_url, network.ws_url)]))
        funded = FundedNetwork(network, pool, owner)
        await _open(funded, run_id, name, config)
        members = []
        for tier, wallet in zip(tiers, wallets, strict=True):
            member = SolanaMember(pool, wallet, run_id, client_version="")
            members.append((tier, await stack.enter_async_context(member)))
        yield ScriptedMembers(funded, run_id, members)


async def _open(funded: FundedNetwork, run_id: str, name: str, config: dict[str, int]) -> None:
    coordinator = await funded.configured_run(run_id, **config)
    description = f"{name}: scripted members" if name else ""
    metadata = {
        "name": name or run_id,
        "description": description,
        "num_parameters": 1000,
        "vocab_size": 320,
    }
    schema = {"hash": SCHEMA_HASH, "tier_widths": [64, 32, 16]}
    await coordinator.update(run_id, metadata=metadata, schema=schema)
    await funded.admit_all()
    await coordinator.set_paused(run_id, False)


async def show() -> None:
    """Run members for as long as this process lives."""
    rules = {"init_min_clients": 6, "rounds_per_epoch": 12, "cooldown_time": 6, "total_steps": 400}
    async with scripted_members(
        "demo", (0, 0, 1, 1, 1, 2, 2), name="Seven unequal computers", **rules
    ) as members:
        print(
            f"rpc={members.funded.network.rpc_url} ws={members.funded.network.ws_url}", flush=True
        )
        await members.join()
        while True:
            run = await members.run()
            await members.act(run)
            if run.state is RunState.COOLDOWN:
                with contextlib.suppress(Refused):
                    await members.join(stateless=False)
            await asyncio.sleep(STEP_SECONDS)


if __name__ == "__main__":
    asyncio.run(show())
