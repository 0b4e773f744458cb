"""Run one `aftermath-solana train` process: check, open connections, train, leave, close.

PyTorch takes seconds to load, so only functions import it. The admission checks come first and
close their connections again, because the process answers nothing while PyTorch loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from solders.pubkey import Pubkey

from aftermath import __version__
from aftermath.base.concurrency import cancel
from aftermath.base.errors import AftermathError
from aftermath.base.files import cache_directory
from aftermath.base.quiet_interrupts import end_at_once
from aftermath.base.signals import asyncio_handles_interrupts, on_interrupt
from aftermath.base.stdio import say
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import CoordinatorError, NoSuchRun
from aftermath.coordinator.ports import View
from aftermath.events import event_types
from aftermath.events.console import show_debug_logs
from aftermath.events.stream import Events, LogWarnings
from aftermath.events.text import LOADING
from aftermath.member.stake import SAVE_SECONDS, find_loss
from aftermath.member.status_events import StatusEvents
from aftermath.p2p.discovery import Directory, addresses_of, local_discovery_dir, parse_static_peers
from aftermath.p2p.iroh import IrohTransport, open_iroh
from aftermath.p2p.line_faults import line_faults
from aftermath.p2p.relay import AUTO, DISABLED, N0
from aftermath.replica.pass_size import OutOfMemory
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from aftermath.train.admission import Admitted, check_admission, check_options
from aftermath.train.checkpoint_checks import check_hub, gradients_directory
from aftermath.train.connection import MemberBackend, member_of, on_solana
from aftermath.train.interrupts import (
    CLOSE_SECONDS,
    Departure,
    Interrupts,
    ask_on_stderr,
    is_a_person_there,
)
from aftermath.train.kept_seats import SeatRecords
from aftermath.train.lock import only_process
from aftermath.train.machine import report_machine_use
from aftermath.train.settings import TrainSettings
from aftermath.train.sinks import collects_figures, events_of
from aftermath.train.tier import AUTO_TIER

if TYPE_CHECKING:
    from aftermath.member.member import Member
    from aftermath.parallel.launch import RankProcesses
    from aftermath.train.device_options import DeviceSetup


def run_member(
    settings: TrainSettings,
    backend: Callable[[TrainSettings], MemberBackend] = on_solana,
    complete: Callable[[str], str] = str,
) -> None:
    """Take part in a run until it is finished or the user stops. Raises AftermathError.

    `complete` adds this command's options to the commands in a warning. End the process afterwards:
    a computation may still occupy its thread.
    """
    # Never close the runner: that waits for threads and tasks, and the process ends here anyway.
    runner = asyncio.Runner()
    check_options(settings)
    first = backend(settings)
    if settings.matformer_tier == AUTO_TIER:
        admitted = _check_admission(runner, settings, first)
        if (
            admitted.view.run.state is RunState.FINISHED
        ):  # nothing will be trained, so do not measure tiers
            settings = replace(settings, matformer_tier=0)
        else:
            settings = _with_tier(settings, first, admitted)
        first = backend(settings)
    with contextlib.ExitStack() as stack:
        events = events_of(settings, stack, complete)
        _emit_started(settings, first.wallet, first.pool.signs_with, events)
        _log_to(events)
        if collects_figures(settings):
            stack.enter_context(report_machine_use(events, settings.checkpoint_dir or Path()))
        stack.enter_context(_errors_as_events(settings, events))
        admitted = _check_admission(runner, settings, first)
        _emit_run(admitted.view.run, events)
        if admitted.view.run.state is RunState.FINISHED:
            _emit_finished(admitted.view, events, first.wallet.public, settings)
            return
        stack.enter_context(_only_here(settings, first.wallet, admitted))
        stack.enter_context(gradients_directory(settings, admitted.view.run.identity))
        stack.enter_context(_recorded_seat(settings, first.wallet, admitted))
        if "torch" not in sys.modules:  # choosing a tier may have imported it
            events.emit(event_types.Loading())
        _load_torch()
        local = _local_directory(settings, admitted)
        setup = _on_devices(settings, replace(backend(settings), local_directory=local))
        with asyncio_handles_interrupts():
            runner.run(_session(settings, setup, events))


def _check_admission(
    runner: asyncio.Runner, settings: TrainSettings, backend: MemberBackend
) -> Admitted:
    """Check whether the run admits this member. Raises CoordinatorError or Unsuitable if not."""
    with on_interrupt(end_at_once):
        return runner.run(check_admission(settings, backend.pool, member_of(settings, backend)))


def _emit_run(run: Run, events: Events) -> None:
    """Emit the run's owner, because another run may get the same id later."""
    owner = str(Pubkey.from_bytes(run.main_authority))
    events.emit(event_types.RunFound(owner=owner, created=run.created, identity=run.identity))


def _emit_finished(view: View, events: Events, wallet: bytes, settings: TrainSettings) -> None:
    """Emit that the run is finished, and where its model is. Raises ModelLost."""
    notices = StatusEvents(events)
    run = view.run
    model = view.model
    notices.state(run)
    notices.finished(run, model, settings.checkpoint_dir)
    if (lost := find_loss(view, wallet, settings.checkpoint_dir)) is not None:
        raise lost
    notices.never_saved(run, model)


def _load_torch() -> None:
    """Import PyTorch and the modules that need it.

    Ctrl-C ends the process at once during the import, because some modules swallow the exception.
    """
    with on_interrupt(end_at_once):
        # Garbage collection takes a tenth of the import time and frees almost nothing.
        gc.disable()
        try:
            import aftermath.train.assembly
            import aftermath.train.device_options  # noqa: F401
        finally:
            gc.enable()
        gc.freeze()


def _on_devices(settings: TrainSettings, backend: MemberBackend) -> DeviceSetup:
    """Resolve the devices and set the number of threads. Raises UsageError or Unsuitable."""
    import torch

    from aftermath.parallel.launch import threads_of
    from aftermath.train.device_options import device_setup

    setup = device_setup(settings, backend)
    if threads := threads_of(setup.mesh, settings.threads):
        torch.set_num_threads(threads)
    return setup


def _with_tier(
    settings: TrainSettings, backend: MemberBackend, admitted: Admitted
) -> TrainSettings:
    """Return the settings with the tier that suits this machine, for --matformer-tier auto."""
    say(LOADING)
    _load_torch()
    from aftermath.train.access import access_for
    from aftermath.train.requirements import schema_of
    from aftermath.train.tier import choose_tier_here

    view = admitted.view
    setup = _on_devices(settings, backend)
    access = access_for(settings, view.run, on_local_network=backend.pool.is_local)
    schema = schema_of(view.model, settings.run_id, access=access)
    choice = choose_tier_here(view, backend.wallet.public, schema, settings, setup.arithmetic)
    say(f"--matformer-tier auto: tier {choice.tier}; {choice.why}")
    settings = replace(settings, matformer_tier=choice.tier)
    check_hub(settings)
    return settings


def _local_directory(settings: TrainSettings, admitted: Admitted) -> Path:
    """Return the directory where peers of this run on this machine find each other."""
    return local_discovery_dir(
        settings.run_id,
        cluster=admitted.cluster,
        program=str(admitted.program),
        identity=admitted.view.run.identity,
    )


def _only_here(
    settings: TrainSettings, wallet: Wallet, admitted: Admitted
) -> contextlib.AbstractContextManager[None]:
    """Lock this wallet and run. Raises Unsuitable if another process has the lock."""
    return only_process(
        cache_directory("locks"),
        cluster=admitted.cluster,
        program=str(admitted.program),
        run_id=settings.run_id,
        wallet=str(wallet.pubkey),
    )


@contextlib.contextmanager
def _recorded_seat(settings: TrainSettings, wallet: Wallet, admitted: Admitted) -> Iterator[None]:
    """Record the checkpoint directory of this start and, when the member ends, what it saved
    there.
    """
    records = SeatRecords(cluster=admitted.cluster, program=str(admitted.program))
    directory = settings.checkpoint_dir if settings.matformer_tier == 0 else None
    records.update(admitted.view.run, wallet.public, directory)
    try:
        yield
    finally:
        records.update(admitted.view.run, wallet.public, directory)


@contextlib.contextmanager
def _errors_as_events(settings: TrainSettings, events: Events) -> Iterator[None]:
    """Emit a failure of the block as an event, and raise it as an AftermathError."""
    try:
        yield
    except Exception as error:
        if (failure := as_user_error(error, settings)) is None:
            raise
        events.emit(event_types.Error(message=str(failure)))
        raise failure from error


def as_user_error(error: Exception, settings: TrainSettings) -> AftermathError | None:
    """Return an exception as an error with a fix, or None if it is unexpected."""
    if isinstance(error, AftermathError):
        return error
    # This imports torch, so do it only if needed.
    from aftermath.replica.memory import is_out_of_memory

    if is_out_of_memory(error):
        return OutOfMemory(
            f"this machine has too little memory for the model of tier {settings.matformer_tier}",
            "Choose a smaller model: a higher --matformer-tier",
        )
    return None


def _emit_started(
    settings: TrainSettings, wallet: Wallet, key: Literal["wallet", "identity"], events: Events
) -> None:
    """Emit the first event, which names the run and the member of a log."""
    events.emit(
        event_types.MemberStarted(
            run_id=settings.run_id,
            tier=settings.matformer_tier,
            wallet=str(wallet.pubkey),
            version=__version__,
            key=key,
        )
    )


def _log_to(events: Events) -> None:
    logger = logging.getLogger("aftermath")
    logger.addHandler(LogWarnings(events))
    show_debug_logs(logger)
    # Otherwise the root logger would print each message again, into the middle of the screen.
    logger.propagate = False


async def _session(settings: TrainSettings, setup: DeviceSetup, events: Events) -> None:
    """Run the member until the run is finished or a signal arrives.

    Raises what ended the member, or ModelLost if leaving lost training steps.
    """
    departure = Departure(events, can_ask=is_a_person_there(), ask=ask_on_stderr)
    interrupts = Interrupts(departure.on_signal)
    departure.stay = interrupts.wait_for_another
    departure.saves_for = interrupts.saves_for
    await interrupts.run(_life(settings, setup, events, interrupts, departure))
    if departure.lost is not None:
        raise departure.lost.lost()


async def _life(
    settings: TrainSettings,
    setup: DeviceSetup,
    events: Events,
    interrupts: Interrupts,
    departure: Departure,
) -> None:
    async with _ports(settings, setup, events) as (member, ranks):
        departure.member = member
        run_exists = True
        try:
            await (ranks.while_all_run(member.live()) if ranks else member.live())
        except NoSuchRun:
            run_exists = False  # there is no run to leave
            raise
        finally:
            interrupts.saved()
            if run_exists:
                await _leave_and_watch(member, events, interrupts, departure)


async def _leave_and_watch(
    member: Member, events: Events, interrupts: Interrupts, departure: Departure
) -> None:
    """Leave the run, and record in `departure` what it loses with the members that leave."""
    time = asyncio.get_running_loop().time
    end = time() + interrupts.leaving()
    await _leave(member, events, end - time())
    if member.has_unsaved_steps:
        interrupts.saves_for(SAVE_SECONDS)
        departure.lost = await member.loss_after_leaving(departure.lost, seconds=end - time())


async def _leave(member: Member, events: Events, seconds: float) -> None:
    try:
        await asyncio.wait_for(member.leave(), seconds)
    except (CoordinatorError, TimeoutError):
        coordinator = member.coordinator.display_name
        events.emit(
            event_types.Warning(
                message=f"cannot tell {coordinator} that this member leaves; the others will drop it"
            )
        )


@contextlib.asynccontextmanager
async def _ports(
    settings: TrainSettings, setup: DeviceSetup, events: Events
) -> AsyncIterator[tuple[Member, RankProcesses | None]]:
    """Open the chain and the transport. Yield the member, and its other ranks if any."""
    from aftermath.parallel.launch import launch_ranks, threads_of
    from aftermath.train.assembly import assembled

    backend = setup.backend
    pool = setup.backend.pool
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(pool)
        chain = await stack.enter_async_context(member_of(settings, backend))
        if backend.background is not None:
            stack.push_async_callback(cancel, [asyncio.create_task(backend.background(chain))])
        transport = await _open_transport(
            settings,
            backend.secret,
            on_local_network=pool.is_local,
            directory=backend.directory,
            local_directory=backend.local_directory,
        )
        stack.push_async_callback(_close, transport)
        ranks = None
        if not setup.mesh.alone:
            ranks = stack.enter_context(
                launch_ranks(setup.mesh, threads_of(setup.mesh, settings.threads))
            )
        member = assembled(settings, setup, events, chain, transport, ranks, stack)
        yield await (ranks.while_all_run(member) if ranks else member), ranks


async def _close(transport: IrohTransport) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(transport.close(), CLOSE_SECONDS)


async def _open_transport(
    settings: TrainSettings,
    secret: bytes,
    *,
    on_local_network: bool,
    directory: Directory | None = None,
    local_directory: Path | None = None,
) -> IrohTransport:
    """Open the transport to peers.

    `on_local_network` is true on a local network: `auto` then looks for peers on this machine, in
    `local_directory`. If there is a `directory`, it is the only source of addresses.
    """
    relay = DISABLED if on_local_network or directory else N0
    discovery: Literal["local", "n0"] = "local" if on_local_network or directory else "n0"
    if settings.iroh_relay != AUTO:
        relay = settings.iroh_relay
    if settings.iroh_discovery != "auto":
        discovery = settings.iroh_discovery
    discovery_directory = settings.discovery_dir or (
        local_directory if discovery == "local" else None
    )
    static_peers = (
        await asyncio.to_thread(addresses_of, parse_static_peers(settings.peer))
        if settings.peer
        else None
    )
    return await open_iroh(
        secret,
        bind_port=settings.bind_p2p_port,
        bind_host=settings.bind_p2p_interface,
        relay=relay,
        discovery=discovery,
        discovery_dir=discovery_directory if directory is None else None,
        directory=directory,
        static_peers=static_peers,
        faults=line_faults(
            latency_ms=settings.fault_latency_ms,
            loss_percent=settings.fault_packet_loss,
            bandwidth=settings.fault_bandwidth_limit,
            seed=settings.fault_seed,
        ),
    )
