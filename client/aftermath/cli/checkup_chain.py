"""What `doctor` looks at on the cluster: its nodes and clock, the run, and what the run asks of the wallet.

Decided: nothing is asked for and nothing is spent, no test money either; `train` would ask a local network for that.
Where no node answers, that is said once, and the rest is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from aftermath.base.errors import AftermathError
from aftermath.cli.checkup import Check, Finding, Subject, broken, dubious, fine

SKEW_SECONDS = 60.0
"""What clocks may differ: the chain's is behind by seconds, and certificates are minded by minutes."""
SOCKET_SECONDS = 5.0


async def rpc(subject: Subject) -> Finding | None:
    """Whether every node answers, how fast, and whether all are of one cluster."""
    if subject.chain is None:
        return None
    from aftermath.chain.rpc import RpcPool
    from aftermath.coordinator.errors import Unavailable

    told, away = [], []
    for endpoint in subject.chain.pool.endpoints:
        async with RpcPool([endpoint], patience=subject.chain.pool.patience) as alone:
            try:
                await alone.genesis()  # which opens the connection
                started = time.monotonic()
                await alone.genesis()
            except Unavailable as error:
                away.append(error)
                continue
            told.append(f"{endpoint.shown} answers in {(time.monotonic() - started) * 1e3:.0f} ms")
    if not told:
        subject.answers = False
        return broken(away[0].message, away[0].fix)
    await subject.chain.pool.check()
    if away:
        return dubious("; ".join([*told, *(error.message for error in away)]), away[0].fix)
    return fine("; ".join(told))


async def server(subject: Subject) -> Finding:
    """Whether the server answers, how fast, and whether it lets the key in."""
    assert subject.chain is not None
    pool = subject.chain.pool
    try:
        await pool.genesis()  # which opens the connection
        started = time.monotonic()
        await pool.genesis()
    except AftermathError:
        subject.answers = False
        raise
    return fine(
        f"{pool.endpoints[0].shown} answers in {(time.monotonic() - started) * 1e3:.0f} ms, and lets the key in"
    )


async def websocket(subject: Subject) -> Finding | None:
    """Whether the nodes push changes; where they do not, runs are polled."""
    if subject.chain is None:
        return None
    from aftermath.chain.addresses import CLOCK
    from aftermath.chain.endpoints import shown
    from aftermath.chain.rpc import RpcPool
    from aftermath.chain.socket import AccountSocket

    told, away = [], []
    for endpoint in subject.chain.pool.endpoints:
        async with RpcPool([endpoint]) as alone:
            socket = AccountSocket(alone, CLOCK, lambda _: None, lambda: None)
            started = time.monotonic()
            listening = asyncio.create_task(socket.run())
            try:
                async with asyncio.timeout(SOCKET_SECONDS):
                    await socket.ready.wait()
                told.append(f"{shown(endpoint.ws)} subscribes in {(time.monotonic() - started) * 1e3:.0f} ms")
            except TimeoutError:
                away.append(f"{shown(endpoint.ws)} does not")
            finally:
                listening.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await listening
    said = "; ".join([*told, *away])
    if away:
        return dubious(f"{said}: the run would be polled, which is slower", "Check --ws-rpc, or name another node")
    return fine(said)


async def clock(subject: Subject) -> Finding | None:
    """How far this machine's clock is from the chain's."""
    if subject.chain is None:
        return None
    from aftermath.chain.accounts import fetch
    from aftermath.chain.addresses import CLOCK
    from aftermath.chain.clock import ChainClock

    _, account = await fetch(subject.chain.pool, CLOCK)
    if account is None:
        return dubious("the cluster tells no time", "Name another node with --rpc")
    chain = ChainClock(time.monotonic)
    chain.observe_sysvar(account.data)
    ahead = time.time() - chain.now()
    said = f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead >= 0 else 'behind'} the chain's"
    if abs(ahead) > SKEW_SECONDS:
        return dubious(said, "Set it by the network: timedatectl set-ntp true; members go by the chain's clock")
    return fine(said)


async def run(subject: Subject) -> Finding | None:
    """Whether the program and the run are there and of this version, and the run takes this client."""
    if subject.chain is None or subject.run_id is None:
        return None
    from aftermath import __version__
    from aftermath.chain.admission import check_verdicts, check_version
    from aftermath.coordinator.view import View
    from aftermath.events.progress import state_words

    run, model, members = await subject.chain.coordinator.snapshot(subject.run_id)
    subject.view = View(run, members, model)
    check_version(subject.run_id, model.client_version, __version__)
    check_verdicts(run)
    taken = f"clients of {model.client_version}" if model.client_version else "clients of any version"
    return fine(f"run {subject.run_id} is {state_words(run.state.name)} and takes {taken}; this is {__version__}")


async def admission(subject: Subject) -> Finding | None:
    """Whether the program would let the wallet join now."""
    if subject.chain is None or subject.view is None or subject.wallet is None:
        return None
    from solders.pubkey import Pubkey

    from aftermath.chain.addresses import run_addresses
    from aftermath.chain.memberships import check_bond, membership_of
    from aftermath.chain.options import public_key
    from aftermath.cli.authorization import GRANT, as_delegate
    from aftermath.cli.can_join import obstacles

    chain, view, own = subject.chain, subject.view, subject.wallet.pubkey
    named = public_key(subject.authorizer) if subject.authorizer is not None else None
    found = await chain.authorizer.admitting(
        Pubkey.from_bytes(view.run.join_authority),
        own,
        run_addresses(chain.coordinator.program_id, view.run.run_id).run,
        named,
    )
    held = await membership_of(chain.pool, chain.coordinator.program_id, view.run, own)
    check_bond(view.run, held, subject.max_bond)
    if reasons := obstacles(view, bytes(own), held, authorized=found is not None, named=named):
        ask = "Ask who owns the run; can-join says whether it is mended"
        fix = ask if found else f"{GRANT} --authorizer {own}; {as_delegate(named)}"
        return broken(f"{own} may not join: {'; '.join(reason.message for reason in reasons)}", fix)
    return fine(f"{own} may join")


async def balance(subject: Subject) -> Finding | None:
    """Whether the wallet can pay what a start takes."""
    if subject.chain is None or subject.wallet is None:
        return None
    from aftermath.chain.admission import FEES_IN_HAND
    from aftermath.chain.memberships import lacking, membership_of
    from aftermath.chain.refusals import no_funds, sol

    chain, own = subject.chain, subject.wallet.pubkey
    wanted = FEES_IN_HAND
    if subject.view is not None:
        held = await membership_of(chain.pool, chain.coordinator.program_id, subject.view.run, own)
        wanted += lacking(subject.view.run, held)
    has = await chain.balance(own)
    if has >= wanted:
        return fine(f"{own} has {sol(has)}; a start takes {sol(wanted)} at most")
    if chain.pool.is_local:
        return fine(f"{own} has {sol(has)} of {sol(wanted)}; train asks the local network for the rest")
    refusal = no_funds(own, has, wanted)
    return broken(refusal.message, refusal.fix)


async def model(subject: Subject) -> Finding | None:
    """Whether the run's model, tier and data can be had here."""
    if subject.view is None or subject.wallet is None:
        return None
    from aftermath.cli.can_join import on_this_machine

    if not subject.view.model.configured:  # of which another check tells
        return None
    own = bytes(subject.wallet.pubkey)
    refusals, warnings = await asyncio.to_thread(
        on_this_machine, subject.view, own, subject.tier or 0, subject.device, subject.access()
    )
    if refusals:
        return broken("; ".join(one.message for one in refusals), ". ".join(one.fix for one in refusals if one.fix))
    if warnings:
        return dubious("; ".join(warnings))
    return fine("the run's model, tier and data are those of the chain")


async def reach(subject: Subject) -> Finding | None:
    """Which local files the run reads, and which addresses it contacts."""
    if subject.view is None or not subject.view.model.configured:
        return None
    from aftermath.train.reached import reached_by

    reached = await asyncio.to_thread(reached_by, subject.view.model, subject.access())
    return fine(f"the run {'; '.join(reached.lines()) or 'reads no files and contacts no addresses'}")


SERVER: tuple[tuple[str, Check], ...] = (("server", server),)
ON_A_SERVER: tuple[tuple[str, Check], ...] = (
    ("clock", clock),
    ("run", run),
    ("admission", admission),
    ("model", model),
    ("reach", reach),
)
NODES: tuple[tuple[str, Check], ...] = (("rpc", rpc),)
ON_THE_CLUSTER: tuple[tuple[str, Check], ...] = (
    ("websocket", websocket),
    ("clock", clock),
    ("run", run),
    ("balance", balance),
    ("admission", admission),
    ("reach", reach),
    ("model", model),
)
