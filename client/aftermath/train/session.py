"""One `aftermath-solana train` process, from its settings to its end: opens the ports, runs the member, closes them.

The real clock, the date and sockets live here and nowhere else among its parts. Ctrl-C (or SIGTERM) leaves the run on
chain and ends the process within two seconds (`interrupts`); a failure is one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from solders.pubkey import Pubkey

from aftermath import __version__
from aftermath.base.directories import cache_directory
from aftermath.base.wait import cancel
from aftermath.base.worker import ThreadWorker, Worker
from aftermath.chain.admission import check_funds, check_version
from aftermath.chain.member import SolanaMember
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import CoordinatorError, NoSuchRun
from aftermath.coordinator.ports import Clock
from aftermath.coordinator.view import View
from aftermath.data.source import Source, SourceAway
from aftermath.member.archive import Archive
from aftermath.member.attention import Attention
from aftermath.member.feed import RunFeed
from aftermath.member.member import Member
from aftermath.member.ports import Ports, Role, Workers
from aftermath.member.speed import measured_weight
from aftermath.member.wishes import Wishes
from aftermath.p2p.discovery import Directory, local_discovery_dir
from aftermath.p2p.iroh import IrohTransport, check_interface, open_iroh
from aftermath.p2p.named import addresses_of, peers_named
from aftermath.p2p.relay import AUTO, DISABLED, N0
from aftermath.ranks.launch import Launched, launched, threads_of
from aftermath.ranks.lead import Lead, led_by
from aftermath.ranks.place import Place
from aftermath.ranks.tensor import check_tensor_parallelism
from aftermath.replica.arithmetic import PLAIN, Arithmetic
from aftermath.replica.exactness import exact_device
from aftermath.replica.origin import Origin
from aftermath.replica.outlineshare import OutlineShare
from aftermath.replica.pass_size import PassSize
from aftermath.replica.passes import arithmetic_of
from aftermath.replica.replica import Replica
from aftermath.rules.state import DataType
from aftermath.train.choices import check_choices, evaluations_of, hub_of, place_named, prompt_of
from aftermath.train.ending import known
from aftermath.train.interrupts import CLOSE_SECONDS, Interrupts
from aftermath.train.keeping import check_directory, check_hub, gradients_place, keeping_advice
from aftermath.train.kernels import ready_kernels
from aftermath.train.lock import only_process
from aftermath.train.machine import looked_at
from aftermath.train.newcomer import Newcomer
from aftermath.train.outfit import check_tier, data_of
from aftermath.train.reach import Reach, on_solana
from aftermath.train.settings import TrainSettings
from aftermath.train.sinks import collects_figures, events_of
from aftermath.train.tier import AUTO_TIER, check_alone, chosen_for
from aftermath.watch import kinds
from aftermath.watch.events import Events, LogWarnings
from aftermath.watch.standing import Standing, standing

_SHOW = 1.0  # seconds between two looks at where the run stands
_ASK_AGAIN = 10.0  # seconds between two looks for data that is away


class RealClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class _Named:
    """What the options name, looked at in this order before anything is opened or written."""

    reach: Reach
    place: Place
    arithmetic: Arithmetic
    """Of the passes on these devices."""


def run_member(settings: TrainSettings, reach: Callable[[TrainSettings], Reach] = on_solana) -> None:
    """Take part in a run until it is finished or the user stops. Raises what made that impossible; a computation may
    still hold its thread, so the process should be ended at once.
    """
    runner = asyncio.Runner()  # never closed: that waits for threads and tasks, and the process ends here anyway
    named = _named(settings, reach)
    if threads := threads_of(named.place, settings.threads):
        torch.set_num_threads(threads)
    if settings.matformer_tier == AUTO_TIER:
        choice = runner.run(chosen_for(settings, reach(settings), named.arithmetic))
        print(f"--matformer-tier auto: tier {choice.tier}; {choice.why}", file=sys.stderr, flush=True)
        settings = settings.model_copy(update={"matformer_tier": choice.tier})
        check_hub(settings)
    with contextlib.ExitStack() as stack:
        events = events_of(settings, stack)
        _introduce(settings, named.reach.wallet, events)
        _log_to(events)
        if collects_figures(settings):
            stack.enter_context(looked_at(events, settings.checkpoint_dir or Path()))
        runner.run(_session(settings, named, events))


def _named(settings: TrainSettings, reach: Callable[[TrainSettings], Reach] = on_solana) -> _Named:
    check_hub(settings)
    check_choices(settings)
    check_interface(settings.bind_p2p_interface)
    place = place_named(settings)
    check_alone(settings.matformer_tier, place)
    exact_device(settings.device)
    found = reach(settings)
    arithmetic = arithmetic_of(place.devices[0], settings.precision, settings.compile if place.alone else "off")
    return _Named(found, place, arithmetic)


def _introduce(settings: TrainSettings, wallet: Wallet, events: Events) -> None:
    """The first event: a log says by itself what it is the log of."""
    events.emit(
        kinds.Started(
            run_id=settings.run_id,
            tier=settings.matformer_tier,
            wallet=str(wallet.pubkey),
            version=__version__,
        )
    )


def _log_to(events: Events) -> None:
    ours = logging.getLogger("aftermath")
    ours.addHandler(LogWarnings(events))
    ours.propagate = False  # else it would be said twice, the second time into the middle of the terminal view


async def _session(settings: TrainSettings, named: _Named, events: Events) -> None:
    """Live as a member until the run is finished or a signal comes; raises what made that impossible."""
    interrupts = Interrupts(lambda: events.emit(kinds.Leaving()))
    try:
        await interrupts.run(_life(settings, named, events, interrupts))
    except Exception as error:
        if (failure := known(error, settings)) is None:
            raise
        events.emit(kinds.Error(message=str(failure)))
        raise failure from error


async def _life(settings: TrainSettings, named: _Named, events: Events, interrupts: Interrupts) -> None:
    async with _ports(settings, named, events) as (member, ranks):
        there = True
        try:
            await (ranks.while_all_run(member.live()) if ranks else member.live())
        except NoSuchRun:
            there = False  # nothing is left to leave
            raise
        finally:
            if there:
                await _leave(member, events, interrupts.leaving())


async def _leave(member: Member, events: Events, seconds: float) -> None:
    try:
        await asyncio.wait_for(member.leave(), seconds)
    except (CoordinatorError, TimeoutError):
        events.emit(
            kinds.Warning(message="the chain could not be told that this member leaves: the others will drop it")
        )


@contextlib.asynccontextmanager
async def _ports(
    settings: TrainSettings, named: _Named, events: Events
) -> AsyncIterator[tuple[Member, Launched | None]]:
    """Open chain and transport, check that we fit the run, and hand out the member and its other ranks, if any."""
    reach, pool, wallet = named.reach, named.reach.pool, named.reach.wallet
    chain = SolanaMember(
        pool,
        wallet,
        settings.run_id,
        client_version=__version__,
        authorizer=reach.authorizer,
        program_id=reach.program_id,
        max_priority_fee=settings.max_priority_fee,
        max_bond=settings.max_bond,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(gradients_place(settings))
        await stack.enter_async_context(pool)
        stack.enter_context(
            only_process(
                cache_directory("locks"),
                cluster=await pool.genesis(),
                program=str(chain.program_id),
                run_id=settings.run_id,
                wallet=str(wallet.pubkey),
            )
        )
        await stack.enter_async_context(chain)
        if reach.beside is not None:
            stack.push_async_callback(cancel, [asyncio.create_task(reach.beside(chain))])
        transport = await _open_transport(settings, reach.secret, here=pool.is_local, directory=reach.directory)
        stack.push_async_callback(_close, transport)
        ranks = None
        if not named.place.alone:
            ranks = stack.enter_context(launched(named.place, threads_of(named.place, settings.threads)))
        made = _member(settings, events, chain, transport, named, ranks, stack)
        yield await (ranks.while_all_run(made) if ranks else made), ranks


async def _close(transport: IrohTransport) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(transport.close(), CLOSE_SECONDS)


async def _open_transport(
    settings: TrainSettings, secret: bytes, *, here: bool, directory: Directory | None = None
) -> IrohTransport:
    """The peers' transport. `here`: whoever keeps the run is on this machine, so `auto` expects the peers on it too;
    with a `directory` nobody else is asked for them.
    """
    relay = DISABLED if here or directory else N0
    discovery: Literal["local", "n0"] = "local" if here or directory else "n0"
    if settings.iroh_relay != AUTO:
        relay = settings.iroh_relay
    if settings.iroh_discovery != "auto":
        discovery = settings.iroh_discovery
    place = settings.discovery_dir or (local_discovery_dir(settings.run_id) if discovery == "local" else None)
    named = await asyncio.to_thread(addresses_of, peers_named(settings.peer)) if settings.peer else None
    return await open_iroh(
        secret,
        bind_port=settings.bind_p2p_port,
        bind_host=settings.bind_p2p_interface,
        relay=relay,
        discovery=discovery,
        discovery_dir=place if directory is None else None,
        directory=directory,
        named=named,
    )


async def _member(
    settings: TrainSettings,
    events: Events,
    chain: SolanaMember,
    transport: IrohTransport,
    named: _Named,
    ranks: Launched | None,
    stack: contextlib.AsyncExitStack,
) -> Member:
    view = await chain.view()
    model = view.model
    # who will not be let in should not wait for what follows
    await chain.authorization()
    check_version(settings.run_id, model.client_version, __version__)
    await check_funds(named.reach.pool, Pubkey(chain.wallet), await chain.bond_due())
    compute = ThreadWorker("replica")
    clock = RealClock()
    newcomer = Newcomer(settings.run_id, settings.matformer_tier, chain, transport, clock, events)
    outline, schema = await newcomer.outline(compute)
    check_tier(settings.matformer_tier, schema, settings.run_id)
    check_tensor_parallelism(schema.state.config, settings.matformer_tier, named.place.tensor)
    check_directory(settings, schema.state)
    if advice := keeping_advice(settings):
        events.emit(kinds.Warning(message=advice))
    device, pass_size = named.place.devices[0], PassSize(settings.micro_batch_size, settings.activation_checkpointing)
    make: Callable[..., Replica] = Replica
    if ranks is not None:
        device = torch.device("cpu")  # of what the ranks do not hold
        given = schema.state.config, settings.matformer_tier, pass_size, named.arithmetic
        make = led_by(await compute(lambda: Lead(ranks.join(), *given)))
    origin = Origin(
        schema,
        settings.matformer_tier,
        settings.matformer_load_strategy,
        device,
        pass_size,
        time.monotonic,
        named.arithmetic if ranks is None else PLAIN,
        make,
    )
    feed = RunFeed(view)
    if events.looked_at:
        stack.push_async_callback(cancel, [asyncio.create_task(_show(feed, chain, events))])
    ports = Ports(chain, feed, transport, clock, Attention(clock), events)
    role = Role(settings.run_id, schema, settings.matformer_tier, named.reach.secret)
    read = ThreadWorker("data")
    decode, upload, write, state = (ThreadWorker(name) for name in ("decode", "upload", "write", "state"))
    workers = Workers(compute, decode, upload, write, read, state)
    wishes = Wishes(
        hash_replicas=settings.events_dir is not None,
        gradients_dir=settings.write_gradients_dir,
        optim_stats_steps=settings.optim_stats_steps,
        optimizer_state_dir=settings.optimizer_state_dir,
        prompt=await compute(lambda: prompt_of(settings, outline, schema)),
        evaluations=await compute(lambda: evaluations_of(settings, outline, schema)),
    )
    data = await _data(events, clock, read, lambda: data_of(model, schema))
    archive = Archive(
        settings.checkpoint_dir,
        hub_of(settings),
        settings.keep_steps if settings.delete_old_steps else None,
        outline.companions,
    )
    if device.type == "cpu":
        await ready_kernels(events, compute)
    weight = await measured_weight(ports, role, compute, origin, model.max_seq_len)
    await compute(lambda: origin.warm_up(model.max_seq_len, model.data_type == DataType.FINETUNING))
    OutlineShare(transport, outline)
    parallel = settings.max_concurrent_parameter_requests
    return Member(ports, role, workers, data, origin, archive, wishes, weight=weight, parallel=parallel)


async def _show(feed: RunFeed, chain: SolanaMember, events: Events) -> None:
    """Say how to tell where the run stands; working that out is for whoever shows it, on a thread of its own."""
    while True:
        with contextlib.suppress(CoordinatorError):  # its time is not known yet
            events.look(partial(_standing, feed.view, chain.now()))
        await asyncio.sleep(_SHOW)


def _standing(view: View, now: int) -> Standing:
    return standing(view.run, view.model, view.members, now)


async def _data(events: Events, clock: Clock, read: Worker, opened: Callable[[], Source]) -> Source:
    """The run's sequences, as soon as whoever serves them answers."""
    told = False
    while True:
        try:
            return await read(opened)
        except SourceAway as error:
            if not told:
                events.emit(kinds.Warning(message=f"{error.message}; this member joins when it can be had"))
            told = True
        await clock.sleep(_ASK_AGAIN)
