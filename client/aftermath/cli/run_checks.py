"""Checks of a cluster and a run: nodes, clock, admission of a wallet, and whether the run fits this
machine.

They read and send nothing. Only `balance` asks a local network for test money, if the subject
allows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from typing import TYPE_CHECKING

from aftermath.base.errors import AftermathError
from aftermath.cli.findings import Finding, Subject, broken, dubious, fine

if TYPE_CHECKING:
    from aftermath.coordinator.errors import Refused
    from aftermath.coordinator.ports import View

SKEW_SECONDS = 60.0
"""Tolerated difference. The chain's clock lags by seconds, and TLS certificates tolerate minutes.
"""
SOCKET_SECONDS = 5.0


async def rpc(subject: Subject) -> Finding | None:
    """Check that every node answers, and that all are of one cluster."""
    if subject.chain is None:
        return None
    from aftermath.chain.rpc import RpcPool
    from aftermath.coordinator.errors import Unavailable

    answers = []
    failures = []
    for endpoint in subject.chain.pool.endpoints:
        async with RpcPool([endpoint], patience=subject.chain.pool.patience) as single:
            try:
                await (
                    single.genesis()
                )  # opens the connection, so that only the second call is timed
                started = time.monotonic()
                await single.genesis()
            except Unavailable as error:
                failures.append(error)
                continue
            answers.append(
                f"{endpoint.shown} answers in {(time.monotonic() - started) * 1e3:.0f} ms"
            )
    if not answers:
        subject.answers = False
        return broken(failures[0].message, failures[0].fix)
    await subject.chain.pool.check()
    if failures:
        return dubious(
            "; ".join([*answers, *(error.message for error in failures)]), failures[0].fix
        )
    return fine("; ".join(answers))


async def server(subject: Subject) -> Finding:
    """Check that the server answers, and that it lets the key in."""
    assert subject.chain is not None
    pool = subject.chain.pool
    try:
        await pool.genesis()  # opens the connection
        started = time.monotonic()
        await pool.genesis()
    except AftermathError:
        subject.answers = False
        raise
    return fine(
        f"{pool.endpoints[0].shown} answers in {(time.monotonic() - started) * 1e3:.0f} ms, and accepts the key"
    )


async def websocket(subject: Subject) -> Finding | None:
    """Check that the nodes push changes. Without that, a member polls the run."""
    if subject.chain is None:
        return None
    from aftermath.chain.account_socket import AccountSocket
    from aftermath.chain.addresses import CLOCK
    from aftermath.chain.endpoints import shown
    from aftermath.chain.rpc import RpcPool

    subscribed = []
    silent = []
    for endpoint in subject.chain.pool.endpoints:
        async with RpcPool([endpoint]) as single:
            socket = AccountSocket(single, CLOCK, lambda _: None, lambda: None)
            started = time.monotonic()
            listening = asyncio.create_task(socket.run())
            try:
                async with asyncio.timeout(SOCKET_SECONDS):
                    await socket.ready.wait()
                subscribed.append(
                    f"{shown(endpoint.ws)} subscribes in {(time.monotonic() - started) * 1e3:.0f} ms"
                )
            except TimeoutError:
                silent.append(f"{shown(endpoint.ws)} does not subscribe")
            finally:
                listening.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await listening
    text = "; ".join([*subscribed, *silent])
    if silent:
        return dubious(
            f"{text}: a member would poll the run, which is slower",
            "Check --ws-rpc, or pass another node",
        )
    return fine(text)


async def clock(subject: Subject) -> Finding | None:
    """Compare this machine's clock with the chain's."""
    if subject.chain is None:
        return None
    from aftermath.chain.accounts import fetch
    from aftermath.chain.addresses import CLOCK
    from aftermath.chain.clock import ChainClock

    _, account = await fetch(subject.chain.pool, CLOCK)
    if account is None:
        return dubious("the cluster has no clock account", "Pass another node with --rpc")
    chain = ChainClock(time.monotonic)
    chain.observe_sysvar(account.data)
    ahead = time.time() - chain.now()
    text = f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead >= 0 else 'behind'} the chain's"
    if abs(ahead) > SKEW_SECONDS:
        return dubious(
            text, "Synchronise it: timedatectl set-ntp true. Members use the chain's clock"
        )
    return fine(text)


async def read_run(subject: Subject) -> None:
    """Read the run's accounts, and the wallet's authorization and membership.

    Raises CoordinatorError if there is no run.
    """
    from solders.pubkey import Pubkey

    from aftermath.chain.addresses import run_addresses
    from aftermath.chain.memberships import membership_of
    from aftermath.coordinator.ports import View

    chain = subject.chain
    assert chain is not None
    assert subject.run_id is not None
    run, model, members = await chain.coordinator.snapshot(subject.run_id)
    subject.view = View(run, members, model)
    if subject.wallet is None:
        return
    program = chain.coordinator.program_id
    subject.authorization = await chain.authorizer.admitting(
        Pubkey.from_bytes(run.join_authority),
        subject.wallet,
        run_addresses(program, subject.run_id).run,
        subject.authorizer,
    )
    subject.membership = await membership_of(chain.pool, program, run, subject.wallet)


async def run(subject: Subject) -> Finding | None:
    """Check that the run exists, and read it."""
    if subject.chain is None or subject.run_id is None:
        return None
    await read_run(subject)
    return fine(f"run {subject.run_id} exists")


def authorization(subject: Subject) -> Finding | None:
    """Check that the run's join authority authorized the wallet."""
    if subject.view is None or subject.wallet is None:
        return None
    from solders.pubkey import Pubkey

    from aftermath.chain.admission import not_admitted

    if subject.authorization is None:
        run = subject.view.run
        grantor = Pubkey.from_bytes(run.join_authority)
        raise not_admitted(run.run_id, subject.wallet, grantor, subject.authorizer)
    return fine(f"{subject.wallet} is admitted to the run")


def state(subject: Subject) -> Finding | None:
    """Check that the run takes members now."""
    if subject.view is None:
        return None
    from aftermath.events.progress import state_text

    if subject.view.run.halted:
        raise _halted(subject.view)
    return fine(f"the run is {state_text(subject.view.run.state.name)}")


def _halted(view: View) -> Refused:
    """Return the refusal of a halted run: what it waits for, and what a member can do."""
    from aftermath.coordinator.errors import Refused
    from aftermath.events.progress import state_text
    from aftermath.events.status import owner_owes
    from aftermath.rules.state import RunState

    run = view.run
    model = view.model
    if run.state is RunState.FINISHED:
        return Refused(
            "RunHalted",
            "the run is finished",
            "Ask its owner to continue it with more steps: reopen",
        )
    text = f"the run is {state_text(run.state.name)}, and waits for {owner_owes(run, model)}"
    if model.configured:
        return Refused(
            "RunHalted", text, "You can start train now: it joins as soon as the run resumes"
        )
    # train would end at once, because the run is not configured
    return Refused(
        "RunHalted",
        text,
        f"Wait until it is configured: aftermath-solana watch --run-id {shlex.quote(run.run_id)}",
    )


def ban(subject: Subject) -> Finding | None:
    """Check that the run does not bar the wallet."""
    if subject.view is None or subject.wallet is None:
        return None
    from aftermath.chain.refusals import program_refusal

    if subject.membership is not None and subject.membership.barred:
        raise program_refusal("Barred", subject.view.run.run_id, subject.wallet)
    return fine("the wallet is not barred")


def seats(subject: Subject) -> Finding | None:
    """Check that the run has a seat for the wallet."""
    if subject.view is None or subject.wallet is None:
        return None
    from aftermath.chain.refusals import program_refusal
    from aftermath.rules.state import MemberState

    members = subject.view.members
    taken = sum(
        seat.used and (seat.pending or seat.state is not MemberState.IDLE) for seat in members.seats
    )
    if taken == len(members.seats) and members.find(bytes(subject.wallet)) is None:
        raise program_refusal("MembersFull", subject.view.run.run_id)
    return fine(f"{taken} of {len(members.seats)} seats are taken")


async def kept_seat(subject: Subject) -> Finding | None:
    """Check that a start continues from the steps for which the wallet keeps its seat, if any."""
    chain = subject.chain
    view = subject.view
    if chain is None or view is None or subject.wallet is None or not chain.pool.keeps_seats:
        return None
    from aftermath.train.kept_seats import SeatRecords, check_kept_seat, recorded_directory

    program = str(chain.coordinator.program_id)
    wallet = bytes(subject.wallet)
    record = SeatRecords(cluster=await chain.pool.genesis(), program=program).read(view.run, wallet)
    directory = subject.checkpoint_dir if subject.is_start else recorded_directory(record)
    unfinished = check_kept_seat(view, wallet, record, directory=directory, tier=subject.tier)
    if unfinished is None:
        return None
    subject.checkpoint_dir = directory
    return fine(f"the wallet keeps its seat, and train continues from step {unfinished.step}")


async def owner(subject: Subject) -> Finding | None:
    """Check the run's owner: that of this user's earlier join, or the one named by --owner."""
    if subject.chain is None or subject.view is None:
        return None
    from solders.pubkey import Pubkey

    from aftermath.base.files import state_directory
    from aftermath.train.admission import owner_key
    from aftermath.train.known_runs import KnownRuns

    run = subject.view.run
    cluster = await subject.chain.pool.genesis()
    known_runs = KnownRuns(
        state_directory() / "runs",
        cluster=cluster,
        program=str(subject.chain.coordinator.program_id),
    )
    known_runs.check(run, owner_key(subject.owner))
    return fine(f"the run's owner is {Pubkey.from_bytes(run.main_authority)}")


def version(subject: Subject) -> Finding | None:
    """Check that the run takes this client's version."""
    if subject.view is None:
        return None
    from aftermath import __version__
    from aftermath.chain.admission import check_version

    required = subject.view.model.client_version
    check_version(subject.view.run.run_id, required, __version__)
    return fine(
        f"the run takes clients of {f'version {required}' if required else 'any version'}; this is {__version__}"
    )


def bond(subject: Subject) -> Finding | None:
    """Check that the run's bond is within the user's limit."""
    if subject.view is None or subject.wallet is None:
        return None
    from aftermath.chain.memberships import check_bond, unpaid_bond
    from aftermath.chain.refusals import sol

    run = subject.view.run
    check_bond(run, subject.membership, subject.max_bond)
    due = sol(unpaid_bond(run, subject.membership))
    return fine(f"the run's bond is {sol(run.config.join_bond)}; {due} of it is due")


async def process(subject: Subject) -> Finding | None:
    """Check that no other process on this machine takes part in the run with the wallet."""
    if subject.chain is None or subject.view is None or subject.wallet is None:
        return None
    from aftermath.base.files import cache_directory
    from aftermath.train.lock import only_process

    lock_fields = {
        "cluster": await subject.chain.pool.genesis(),
        "program": str(subject.chain.coordinator.program_id),
        "run_id": subject.view.run.run_id,
        "wallet": str(subject.wallet),
    }
    with only_process(cache_directory("locks"), **lock_fields):
        return fine("no other process on this machine trains with this wallet")


async def balance(subject: Subject) -> Finding | None:
    """Check that the wallet can pay for a start."""
    if subject.chain is None or subject.wallet is None:
        return None
    from aftermath.chain.admission import FEES_IN_HAND
    from aftermath.chain.funding import ensure_funds
    from aftermath.chain.memberships import unpaid_bond
    from aftermath.chain.refusals import sol

    pool = subject.chain.pool
    needed = FEES_IN_HAND
    if subject.view is not None:
        needed += unpaid_bond(subject.view.run, subject.membership)
    lamports = await subject.chain.balance(subject.wallet)
    if lamports < needed:
        if pool.is_local and not subject.may_fund:
            return fine(
                f"{subject.wallet} has {sol(lamports)} of {sol(needed)}; train asks the local network for the rest"
            )
        lamports = await ensure_funds(pool, subject.wallet, needed)
    return fine(f"{subject.wallet} has {sol(lamports)}; a start costs at most {sol(needed)}")


def access(subject: Subject) -> Finding | None:
    """Name the local files that the run reads, and the addresses that it contacts."""
    if subject.view is None or not subject.view.model.configured:
        return None
    from aftermath.train.access import access_report

    lines = access_report(subject.view.model, subject.access()).lines()
    return fine(f"the run {'; '.join(lines) or 'reads no files and contacts no addresses'}")


def configured(subject: Subject) -> Finding | None:
    """Check that the run has a config whose architecture and optimizer this client knows."""
    if subject.view is None:
        return None
    from aftermath.train.admission import check_model

    check_model(subject.view.model, subject.view.run.run_id)
    return fine("the run is configured")


def model(subject: Subject) -> Finding | None:
    """Check that this machine can get the model's description, and that its hash is the one on
    chain.
    """
    if subject.view is None or not subject.view.model.configured:
        return None
    from aftermath.train.newcomer import may_ask
    from aftermath.train.requirements import outline_of

    view = subject.view
    warnings: list[str] = []
    try:
        _, subject.schema = outline_of(
            view.model, view.run.run_id, warnings.append, access=subject.access()
        )
    except AftermathError as error:
        if subject.wallet is None or not may_ask(view, bytes(subject.wallet)):
            raise
        return dubious(
            f"train would ask the run's members for the model's description: {error.message}",
            error.fix,
            error,
        )
    if warnings:
        return dubious("; ".join(warnings))
    return fine("the model's schema is the one on chain")


def tier(subject: Subject) -> Finding | None:
    """Check that the run has the tier, or choose as `train --matformer-tier auto` does."""
    if subject.view is None or subject.schema is None or subject.tier is None:
        return None
    from aftermath.train.admission import check_tier
    from aftermath.train.tier import AUTO_TIER

    run_id = subject.view.run.run_id
    tiers = subject.view.model.tiers
    if subject.tier == AUTO_TIER:
        _choose_tier(subject)
    check_tier(subject.tier, tiers, run_id)
    reason = f": {subject.why_tier}" if subject.why_tier else ""
    return fine(f"tier {subject.tier} of 0 to {tiers - 1}{reason}")


def _choose_tier(subject: Subject) -> None:
    """Set the tier that this machine would take. Raises UsageError or OutOfMemory."""
    from aftermath.replica.passes import arithmetic_of
    from aftermath.train.settings import TrainSettings
    from aftermath.train.tier import AUTO_TIER, check_alone, choose_tier_here

    if subject.mesh is None:
        return
    assert subject.view is not None
    assert subject.wallet is not None
    assert subject.schema is not None
    check_alone(AUTO_TIER, subject.mesh)
    settings = TrainSettings(run_id=subject.view.run.run_id, device=subject.device)
    arithmetic = arithmetic_of(subject.mesh.devices[0], settings.precision, settings.compile)
    choice = choose_tier_here(
        subject.view, bytes(subject.wallet), subject.schema, settings, arithmetic
    )
    subject.tier = choice.tier
    subject.why_tier = choice.why


def memory(subject: Subject) -> Finding | None:
    """Check that the tier fits into the free memory. Without a tier, check that one does."""
    if subject.mesh is None:
        return None
    from aftermath.replica.memory import free_bytes
    from aftermath.replica.tier_memory import first_fitting, needs
    from aftermath.train.tier import check_memory

    devices = subject.mesh.devices
    free = sum(free_bytes(device) for device in set(devices))
    room = f"{free / 1e9:.1f} GB free on {', '.join(str(device) for device in devices)}"
    if subject.view is None or subject.schema is None:
        return fine(f"{room}; with --rpc and --run-id, doctor says which tier fits")
    config = subject.view.run.config
    needed = needs(
        subject.schema, subject.view.model.max_seq_len, config.init_min_clients, devices[0].type
    )
    fits = first_fitting(needed, free)
    sizes = ", ".join(f"{number}: {size / 1e9:.2f} GB" for number, size in enumerate(needed))
    room = f"{room}; the run's tiers need at least {sizes}"
    if fits is None and subject.tier is None:
        return broken(f"{room}: none fits", "Free memory, or pass another --device")
    chosen = fits if subject.tier is None else subject.tier
    assert chosen is not None
    if 0 <= chosen < len(needed):
        check_memory(subject.view, subject.schema, chosen, devices)
    return fine(
        f"{room}: tier {fits} fits",
        f"Pass --matformer-tier {fits}" if fits != (subject.tier or 0) else "",
    )


def audits(subject: Subject) -> Finding | None:
    """State what audits cost a member, if the run has them."""
    if subject.view is None or subject.schema is None:
        return None
    from aftermath.audit.cost import audit_cost
    from aftermath.rules.audits import MIN_JURY

    rules = subject.view.run.config
    cost = audit_cost(subject.schema, rules, max(rules.init_min_clients, MIN_JURY + 1))
    if cost is None:
        return None
    return fine(f"verification_percent {rules.verification_percent} means about {cost.in_words}")


def data(subject: Subject) -> Finding | None:
    """Check that this machine can read the run's data, and that it is the run's."""
    if subject.view is None or subject.schema is None:
        return None
    from aftermath.data.source import SourceUnavailable
    from aftermath.train.requirements import data_of

    try:
        subject.sequences = data_of(subject.view.model, subject.schema, subject.access()).sequences
    except SourceUnavailable as error:
        return dubious(f"{error.message}; train would wait for it", error.fix, error)
    return fine(f"the run's data is here: {subject.sequences} sequences")
