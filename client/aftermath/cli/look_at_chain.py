"""What `doctor` looks at on a cluster: its nodes, its clock, the coordinator, the wallet's funds and the run.

Decided: the run is asked what `can-join` asks it, by the same functions; a test network's faucet is left alone.
"""

from __future__ import annotations

import asyncio
import time

from solders.pubkey import Pubkey
from solders.sysvar import CLOCK

from aftermath import __version__
from aftermath.base.errors import AftermathError
from aftermath.base.wait import cancel
from aftermath.chain import loader
from aftermath.chain.accounts import fetch
from aftermath.chain.addresses import run_addresses
from aftermath.chain.admission import FEES_IN_HAND, check_version
from aftermath.chain.clock import ChainClock
from aftermath.chain.memberships import check_bond, lacking, membership_of
from aftermath.chain.refusals import no_funds, sol
from aftermath.chain.rpc import RpcPool
from aftermath.chain.socket import AccountSocket
from aftermath.cli.can_join import obstacles, on_this_machine
from aftermath.cli.connection import Cluster
from aftermath.cli.findings import Findings
from aftermath.coordinator.view import View
from aftermath.programs import COORDINATOR_SO

SLOW_MS = 1000.0
SKEW_SECONDS = 30
"""Chain time may be some seconds behind that of the machine."""
SOCKET_SECONDS = 6.0
_NODE_SECONDS = 5.0
_ANOTHER_RPC = "Name another node with --rpc; fallbacks are --rpc-2 and --rpc-3"


async def look_at_nodes(findings: Findings, pool: RpcPool) -> bool:
    """Every node, each by itself: whether it answers and pushes, how fast, and of which cluster. False if none does."""
    clusters = set()
    for endpoint in pool.endpoints:
        async with RpcPool([endpoint], patience=_NODE_SECONDS) as one:
            try:
                await one.genesis()  # with the connection
                started = time.monotonic()
                clusters.add(await one.genesis())
            except AftermathError as error:
                findings.fail("rpc", f"{endpoint.shown}: {error.message}", error.fix or _ANOTHER_RPC, error.code)
                continue
            took = 1000 * (time.monotonic() - started)
            said = f"{endpoint.shown} answers in {took:.0f} ms"
            if took > SLOW_MS:
                findings.warn("rpc", said, f"A member asks it often. {_ANOTHER_RPC}")
            else:
                findings.ok("rpc", said)
            await _look_at_socket(findings, one)
    if len(clusters) > 1:
        findings.fail("rpc", "the nodes are of different clusters", "Name nodes of one cluster", "wrong-cluster")
    return bool(clusters)


async def _look_at_socket(findings: Findings, pool: RpcPool) -> None:
    began, pushed = time.monotonic(), asyncio.Event()
    shown = pool.endpoints[0].shown
    follower = AccountSocket(pool, CLOCK, lambda push: pushed.set(), lambda: None)
    task = asyncio.create_task(follower.run())
    try:
        async with asyncio.timeout(SOCKET_SECONDS):
            await pushed.wait()
        findings.ok("websocket", f"{shown} pushed a change after {1000 * (time.monotonic() - began):.0f} ms")
    except TimeoutError:
        findings.warn(
            "websocket",
            f"{shown} pushed no change of the clock in {SOCKET_SECONDS:.0f} s: a member would poll, and be late",
            "Name the node's websocket with --ws-rpc, or another node",
        )
    finally:
        await cancel([task])


async def look_at_clock(findings: Findings, pool: RpcPool) -> None:
    """The machine's clock beside the chain's. Members go by the chain's; certificates and logs by the machine's."""
    clock = ChainClock(time.monotonic)
    with findings.failing("clock"):
        _, account = await fetch(pool, CLOCK)
        if account is None:
            findings.warn("clock", "the node does not know the chain's clock", _ANOTHER_RPC)
            return
        clock.observe_sysvar(account.data)
        ahead = time.time() - clock.now()
        said = f"the machine's clock is {abs(ahead):.0f} s {'before' if ahead > 0 else 'behind'} the chain's"
        if abs(ahead) > SKEW_SECONDS:
            findings.warn("clock", said, "Set the clock by NTP (timedatectl set-ntp true), or use another node")
        else:
            findings.ok("clock", said)


async def look_at_program(findings: Findings, chain: Cluster) -> None:
    """Whether the coordinator is there, and is the packaged one."""
    program = chain.coordinator.program_id
    with findings.failing("program"):
        _, account = await fetch(chain.pool, program)
        if account is None or not account.executable:
            findings.fail(
                "program",
                f"there is no program {program} on this cluster",
                "Check --rpc and --coordinator-program-id; a new one is put there by: aftermath-solana deploy",
                "program-not-deployed",
            )
            return
        data = account.data
        if account.owner == loader.LOADER:
            _, stored = await fetch(chain.pool, loader.programdata_address(program))
            data = loader.parse_programdata(stored).data if stored else b""
        packaged = COORDINATOR_SO.read_bytes()
        if data[: len(packaged)] == packaged and not any(data[len(packaged) :]):
            findings.ok("program", f"{program} is the packaged one")
        else:
            findings.warn(
                "program",
                f"{program} is not the packaged one",
                "Its owner upgrades it with aftermath-solana deploy; else use the client that belongs to it",
            )


async def look_at_funds(findings: Findings, pool: RpcPool, wallet: Pubkey, held: int, bond: int) -> None:
    """What the wallet holds beside what joining takes."""
    needed = FEES_IN_HAND + bond
    said = f"{wallet} holds {sol(held)}, and joining takes {sol(needed)}"
    if held >= needed:
        findings.ok("funds", said)
    elif pool.is_local:
        findings.ok("funds", f"{said}: a local network gives it the rest")
    else:
        lack = no_funds(wallet, held, needed)
        findings.fail("funds", lack.message, lack.fix, lack.code)


async def look_at_run(
    findings: Findings,
    chain: Cluster,
    run_id: str,
    user: Pubkey | None,
    delegate_of: Pubkey | None,
    max_bond: int,
    tier: int,
    device: str,
    free: int | None,
) -> None:
    """The run: its version, whether it is open to the wallet, what it takes of this machine, and the tier that fits."""
    with findings.failing("run"):
        run, model, members = await chain.coordinator.snapshot(run_id)
        with findings.failing("version"):
            check_version(run_id, model.client_version, __version__)
            findings.ok("version", f"client {__version__}, and the run takes {model.client_version or 'any'}")
        bond = 0
        if user is not None:
            grantor, place = Pubkey.from_bytes(run.join_authority), run_addresses(chain.coordinator.program_id, run_id)
            admitted = await chain.authorizer.admitting(grantor, user, place.run, delegate_of)
            held = await membership_of(chain.pool, chain.coordinator.program_id, run, user)
            bond = lacking(run, held)
            if reasons := obstacles(run, members, bytes(user), held, authorized=admitted is not None):
                findings.fail("authorization", "; ".join(reasons), "The run's owner or its join authority can help")
            else:
                findings.ok("authorization", f"{user} may join")
            with findings.failing("bond"):
                check_bond(run, held, max_bond)
            await look_at_funds(findings, chain.pool, user, await chain.balance(user), bond)
        view = View(run, members, model)
        unfit, warnings = on_this_machine(view, bytes(user) if user else bytes(32), tier, device)
        for warning in warnings:
            findings.warn("run", warning)
        for refusal in unfit:
            findings.fail("run", refusal.message, refusal.fix, refusal.code)
        if not unfit and not run.halted:
            findings.ok("run", f"{run_id} is {run.state.name.lower()}, with {members.present} members")
        if free is not None and any(model.schema_hash) and not unfit:
            _look_at_tier(findings, view, tier, free)


def _look_at_tier(findings: Findings, view: View, tier: int, free: int) -> None:
    """Whether the tier fits into `free` bytes, and the largest that does."""
    from aftermath.replica.footprint import footprint, largest_that_fits
    from aftermath.train.outfit import outline_of

    try:
        schema = outline_of(view.model, view.run.run_id, lambda said: None)[1]
    except AftermathError:  # which members tell; that was said
        findings.unknown("tier", "what each tier takes is known once the run's model is")
        return
    length = view.model.max_seq_len
    fits = largest_that_fits(schema.state.tiers, free, lambda one: footprint(schema, one, length))
    chosen = footprint(schema, tier, length)
    said = f"tier {tier} takes {chosen.needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
    if chosen.needed <= free:
        largest = "" if fits is None or fits.tier == tier else f"; tier {fits.tier} is the largest that fits"
        findings.ok("tier", said + largest)
    elif fits is None:
        findings.fail("tier", f"{said}: no tier of this run fits", "Free memory, or use another device", "unsuitable")
    else:
        findings.fail("tier", said, f"Hold a smaller model: --matformer-tier {fits.tier} is the largest that fits")
