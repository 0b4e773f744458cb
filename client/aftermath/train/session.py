"""One `aftermath-solana train` process, from settings to exit status: opens the ports, runs the member, closes them.

The real clock, sockets and signals live here and nowhere else in the room. Ctrl-C (or SIGTERM) leaves the run on
chain and closes everything within two seconds; a failure is one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import torch
from rich.console import Console

from aftermath.chain.member import SolanaMember, open_member
from aftermath.chain.wallet import identity_secret, load_wallet
from aftermath.p2p.discovery import local_discovery_dir
from aftermath.p2p.iroh import IrohTransport, open_iroh
from aftermath.p2p.transport import TransportError
from aftermath.run.errors import AftermathError, ChainError
from aftermath.train.context import Context
from aftermath.train.cooldown import Archive
from aftermath.train.feed import RunFeed
from aftermath.train.member import Member
from aftermath.train.origin import Origin
from aftermath.train.outfit import check_tier, data_of, schema_of
from aftermath.train.replica import pick_device
from aftermath.train.settings import TrainSettings
from aftermath.train.worker import ThreadWorker
from aftermath.watch.events import ConsoleLines, Events, JsonLines, Sink
from aftermath.watch.terminal import TerminalView

_LEAVE_SECONDS = 1.2  # of the two that Ctrl-C may take
_CLOSE_SECONDS = 0.6


class RealClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_member(settings: TrainSettings) -> int:
    """Take part in a run until it is finished or the user stops; the process's exit status."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    with contextlib.ExitStack() as stack:
        status = asyncio.run(_session(settings, events_of(settings, stack)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a computation may still hold its thread; nothing of it is wanted any more


def events_of(settings: TrainSettings, stack: contextlib.ExitStack) -> Events:
    """The sinks the settings ask for."""
    sinks: list[Sink] = []
    if settings.logs == "json":
        sinks.append(JsonLines(sys.stdout))
    elif settings.logs == "console":
        sinks.append(ConsoleLines(Console()))
    else:
        sinks.append(stack.enter_context(TerminalView(settings.run_id, settings.matformer_tier)))
    if settings.write_log:
        sinks.append(JsonLines(settings.write_log))
    if settings.events_dir:
        sinks.append(JsonLines(settings.events_dir / f"{time.time_ns()}-{os.getpid()}.jsonl"))
    started = time.monotonic()
    return Events(lambda: time.monotonic() - started, sinks)


async def _session(settings: TrainSettings, events: Events) -> int:
    own = asyncio.current_task()
    assert own is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, own.cancel)
    try:
        async with _ports(settings, events) as member:
            try:
                await member.live()
            finally:
                with contextlib.suppress(ChainError, TimeoutError):
                    await asyncio.wait_for(member.leave(), _LEAVE_SECONDS)
    except asyncio.CancelledError:
        return 0
    except (AftermathError, TransportError, ValueError) as error:
        events.emit("error", message=str(error))
        if settings.logs != "console":
            print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.asynccontextmanager
async def _ports(settings: TrainSettings, events: Events) -> AsyncIterator[Member]:
    """Open chain and transport, check that we fit the run, and hand out the member."""
    wallet = load_wallet(settings.wallet_private_key_path)
    secret = identity_secret(settings.run_id, wallet, settings.identity_secret_key_path)
    chain = await open_member(
        settings.run_id,
        wallet,
        rpc=[(settings.rpc, settings.ws_rpc), (settings.rpc_2, settings.ws_rpc_2), (settings.rpc_3, settings.ws_rpc_3)],
        coordinator_program_id=settings.coordinator_program_id,
        authorizer_program_id=settings.authorizer_program_id,
        authorizer=settings.authorizer,
        max_priority_fee=settings.max_priority_fee,
    )
    try:
        transport = await _open_transport(settings, secret)
        try:
            yield await _member(settings, events, chain, transport, secret)
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(transport.close(), _CLOSE_SECONDS)
    finally:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(chain.close(), _CLOSE_SECONDS)


async def _open_transport(settings: TrainSettings, secret: bytes) -> IrohTransport:
    directory: Path | None = settings.discovery_dir
    if settings.iroh_discovery == "local" and directory is None:
        directory = local_discovery_dir(settings.run_id)
    return await open_iroh(
        secret,
        bind_port=settings.bind_p2p_port,
        bind_host=settings.bind_p2p_interface,
        relay=settings.iroh_relay,
        discovery=settings.iroh_discovery,
        discovery_dir=directory,
    )


async def _member(
    settings: TrainSettings, events: Events, chain: SolanaMember, transport: IrohTransport, secret: bytes
) -> Member:
    run, model = await chain.run(), await chain.model()
    compute = ThreadWorker("replica")
    schema = await compute(lambda: schema_of(model, settings.run_id))
    check_tier(settings.matformer_tier, schema, settings.run_id)
    origin = Origin(
        schema,
        settings.matformer_tier,
        settings.matformer_load_strategy,
        pick_device(settings.device),
        settings.micro_batch_size,
    )
    context = Context(
        run_id=settings.run_id,
        chain=chain,
        transport=transport,
        feed=RunFeed(run),
        clock=RealClock(),
        events=events,
        compute=compute,
        decode=ThreadWorker("decode"),
        p2p_secret=secret,
        schema=schema,
        tier=settings.matformer_tier,
        data=data_of(model, schema),
        hash_replicas=settings.events_dir is not None,
    )
    await chain.ensure_funds()
    weight = await compute(lambda: origin.measure_weight(model.max_seq_len))
    archive = Archive(
        settings.checkpoint_dir,
        settings.hub_repo,
        settings.hub_token.get_secret_value() if settings.hub_token else None,
        settings.keep_steps if settings.delete_old_steps else None,
    )
    return Member(context, origin, archive, weight=weight, parallel=settings.max_concurrent_parameter_requests)
