"""The owner's commands that pause, resume, advance and close a run, and remove wallets from it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.base.bounded import U64_MAX
from aftermath.base.errors import UsageError
from aftermath.base.text import counted
from aftermath.cli.command import JSON, YES, agreed, check_can_ask, command, run_in_loop
from aftermath.cli.error_report import EXIT_KNOWN
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import Result, facts, note
from aftermath.coordinator.errors import Refused
from aftermath.rules.contents import unsaved_steps

if TYPE_CHECKING:
    from aftermath.cli.connection import Cluster
    from aftermath.coordinator.ports import View
    from aftermath.events.status import RunStatus
    from aftermath.rules.model import Model
    from aftermath.rules.run import Run


class Action(StrEnum):
    """What to do with the run."""

    PAUSE = "pause"
    RESUME = "resume"


@command("set-paused", example="aftermath-solana set-paused --run-id demo resume")
async def set_paused(
    options: SigningOptions,
    run_id: RunId,
    action: Annotated[Action | None, typer.Argument(help="pause or resume.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Same as the word resume.")] = False,
) -> Result:
    """Pause or resume a run.

    A pause ends the present epoch after the current round and a cooldown. Resuming a new run starts
    it.
    """
    from aftermath.cli.connection import sign_in
    from aftermath.events.progress import state_phrase
    from aftermath.ui.run_follower import RunFollower

    if resume and action is Action.PAUSE:
        raise UsageError("pause and --resume contradict each other", "Pass one of them")
    if not resume and action is None:
        raise UsageError(
            "set-paused needs the word pause or resume",
            f"aftermath-solana set-paused --run-id {shlex.quote(run_id)} pause, or resume",
        )
    paused = action is Action.PAUSE
    async with sign_in(options) as chain:
        await chain.coordinator.run(run_id)  # says so if there is no such run
        if paused:
            await _warn_of_kept_seat(chain, run_id)
        signature = await chain.coordinator.set_paused(run_id, paused)
        follower = RunFollower(chain.coordinator, run_id)
        status = await follower.now()
    run = follower.run
    state = run.state.name.lower()
    text = f"run {run_id} is now {state_phrase(run.state)}{_pause_text(follower.view)}"
    return Result(
        {
            "run_id": run_id,
            "state": state,
            "pending_pause": run.pending_pause,
            "signature": str(signature),
        },
        text,
        case=case_of(run, is_stalled=status.is_stalled),
    )


async def _warn_of_kept_seat(chain: Cluster, run_id: str) -> None:
    """Warn of the steps that are lost if this overdue epoch ends without its last member."""
    from aftermath.events.progress import steps_lost_by_ticks
    from aftermath.ui.run_follower import RunFollower

    follower = RunFollower(chain.coordinator, run_id)
    if not (await follower.now()).is_stalled:
        return
    view = follower.view
    if lost := steps_lost_by_ticks(view.run, view.members, view.model):
        note(f"warning: {lost}")


def case_of(run: Run, *, is_stalled: bool = False) -> str:
    """Return the case for `next_steps`: a run that pauses later cannot be changed yet.

    `is_stalled`: whether no member advances the run.
    """
    from aftermath.rules.state import RunState

    if run.state is RunState.PAUSED:
        return "paused"
    if not run.pending_pause:
        return "resumed"
    return "stalled" if is_stalled else ""


def _pause_text(view: View) -> str:
    """Return when the run will pause, if it will."""
    from aftermath.events.progress import last_member_until
    from aftermath.rules.state import RunState

    if not view.run.pending_pause:
        return ""
    remaining = "it" if view.run.state is RunState.COOLDOWN else "this round and cooldown"
    text = f" and will pause after {remaining}"
    wait = last_member_until(view.run, view.members, view.model)
    return f"{text}; {wait}" if wait is not None else text


@command(
    "tick",
    example="aftermath-solana tick --run-id demo --ms-interval 1000 --count 10",
    until_interrupt=True,
)
async def tick(
    options: SigningOptions,
    run_id: RunId,
    ms_interval: Annotated[int, typer.Option(min=1, help="Milliseconds between two ticks.")] = 1000,
    count: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many ticks. By default, no limit.")
    ] = None,
) -> Result:
    """Advance a run whose deadline has passed.

    Members tick by themselves, so this helps only a run without active members. It also ends the
    wait for the absent last member of an epoch, and warns that this loses the member's steps. A
    tick that changes nothing costs nothing. If no deadline runs, the command says what the run
    waits for, and ends.
    """
    import asyncio

    from aftermath.cli.connection import sign_in
    from aftermath.coordinator.errors import Refused
    from aftermath.events.progress import state_phrase, steps_lost_by_ticks
    from aftermath.events.status import line
    from aftermath.ui.run_follower import RunFollower

    tried = 0
    signatures: list[str] = []
    announced = False
    async with sign_in(options) as chain:
        # raises for an unknown run
        run, model, members = await chain.coordinator.snapshot(run_id, any_spec=True)
        if lost := steps_lost_by_ticks(run, members, model):
            note(f"warning: {lost}")
        follower = RunFollower(chain.coordinator, run_id)
        if count is None:
            note(f"ticking run {run_id} every {ms_interval} ms until Ctrl-C")
        while count is None or tried < count:
            if tried:
                await asyncio.sleep(ms_interval / 1000)
            tried += 1
            try:
                signatures.append(str(await chain.coordinator.tick(run_id)))
            except Refused as error:
                if error.name != "NothingToTick":
                    raise
                status = await follower.now()
                if status.deadline is None:
                    # only a new member can advance the run, and members tick by themselves
                    note(f"no tick can change run {run_id} now: {line(status)}")
                    break
                if not announced:  # print it once, not in each round
                    note(waiting_text(status))
                announced = True
                continue
            note(f"tick {tried}: {state_phrase((await chain.coordinator.run(run_id)).state)}")
        run = await chain.coordinator.run(run_id)
    state = run.state.name.lower()
    data = {
        "run_id": run_id,
        "tried": tried,
        "signatures": signatures,
        "state": state,
        "epoch": run.epoch,
        "step": run.trained_steps,
    }
    changed = f"{len(signatures)} of {counted(tried, 'tick')}" if signatures else "no tick"
    text = f"{changed} changed run {run_id}, which is now {state_phrase(run.state)}"
    if count is not None and tried < count:
        text += f"; stopped after {tried} of {count} ticks"
    return Result(data, text)


def waiting_text(status: RunStatus) -> str:
    """Return a sentence that says when the run's next deadline is due."""
    from aftermath.events.progress import span
    from aftermath.events.status import line

    seconds = status.deadline or 0
    return f"nothing is due {f'for {span(seconds)}' if seconds > 0 else 'yet'}: {line(status)}"


@command("close-run", example="aftermath-solana close-run --run-id demo --yes")
def close_run(
    options: SigningOptions, run_id: RunId, *, yes: YES = False, json_output: JSON = False
) -> Result:
    """Close a halted run and take back its rent.

    Deletes the run's accounts and its members' points; pause the run first. On a terminal it shows
    what ends and what comes back, and asks. Without a terminal, or with --json, pass --yes.
    """
    if not (yes or options.dry_run):
        check_can_ask("close-run", f"ends run {run_id} for good", as_json=json_output)
        if not agreed(run_in_loop(_question(options, run_id))):
            return Result({"run_id": run_id}, f"run {run_id} is unchanged", EXIT_KNOWN)
    return run_in_loop(_close(options, run_id, warns=yes or options.dry_run))


async def _question(options: SigningOptions, run_id: str) -> str:
    """Return the question: what ends with the run, and who gets its rent. Raise if the program
    would refuse.
    """
    from aftermath.chain.accounts import fetch_many
    from aftermath.chain.dry_run import DryRunReport
    from aftermath.chain.refusals import sol
    from aftermath.cli.connection import sign_in

    async with sign_in(replace(options, dry_run=True)) as chain:
        run, model, members = await chain.coordinator.snapshot(run_id, any_spec=True)
        _, accounts = await fetch_many(chain.pool, list(chain.coordinator.sizes(run_id)))
        try:
            await chain.coordinator.close_run(run_id)
        except DryRunReport as report:
            if report.refusal is not None:
                raise report.refusal from None
    rent = sum(account.lamports for account in accounts if account is not None)
    points = f"the points of {counted(sum(seat.used for seat in members.seats), 'member')}"
    returned = f"and have {sol(rent)} of rent back in {chain.wallet.pubkey}"
    lost = _lost_by_closing(run, model)
    warning = f"{lost}. " if lost else ""
    return f"{warning}close run {run_id} for good, with its {run.trained_steps:,} steps and {points}, {returned}?"


def _lost_by_closing(run: Run, model: Model) -> str:
    """Return which trained steps no checkpoint on chain has, or an empty string."""
    from aftermath.events.progress import not_recorded

    unsaved = unsaved_steps(run, model)
    return f"{not_recorded(unsaved)}; otherwise that training is lost" if unsaved else ""


async def _close(options: SigningOptions, run_id: str, *, warns: bool) -> Result:
    """Close the run. `warns`: whether to name lost steps, because no question did."""
    from aftermath.chain.refusals import sol
    from aftermath.cli.connection import sign_in

    async with sign_in(options) as chain:
        # raises for an unknown run
        run, model, _ = await chain.coordinator.snapshot(run_id, any_spec=True)
        if warns and (lost := _lost_by_closing(run, model)):
            note(f"warning: {lost}")
        await chain.sender.afford([chain.coordinator.ix.close_run(run_id)])
        balance_before = await chain.balance(chain.wallet.pubkey)
        signatures = await chain.coordinator.close_run(run_id)
        returned = await chain.balance(chain.wallet.pubkey) - balance_before
    return Result(
        {"run_id": run_id, "lamports_returned": returned, "signature": str(signatures[-1])},
        f"run {run_id} is closed; {sol(returned)} came back to {chain.wallet.pubkey}",
    )


@command("kick", example="aftermath-solana kick --run-id demo --wallet WALLET_PUBKEY --bar")
async def kick(
    options: SigningOptions,
    run_id: RunId,
    wallet: Annotated[
        str,
        typer.Option("--wallet", "--address", help="Wallet to remove: a public key or a key file."),
    ],
    bar: Annotated[bool, typer.Option("--bar", help="Also refuse its later joins.")] = False,
) -> Result:
    """Remove a wallet from the next epoch, or bar it from the run.

    The signing wallet is the run's owner or its join authority. The running epoch does not change.
    Without --bar the wallet may join again, even if it was barred before.
    """
    from aftermath.chain.memberships import membership_of
    from aftermath.chain.options import public_key
    from aftermath.cli.connection import sign_in

    kicked = public_key(wallet)
    async with sign_in(options) as chain:
        await _warn_of_kept_seat(chain, run_id)
        try:
            signature = await chain.coordinator.kick(run_id, kicked, barred=bar)
        except Refused as error:
            raise _not_kicked(error, run_id, wallet, str(kicked)) from None
        run, _, members = await chain.coordinator.snapshot(run_id, any_spec=True)
        membership = await membership_of(chain.pool, chain.coordinator.program_id, run, kicked)
    data = {
        "run_id": run_id,
        "wallet": str(kicked),
        "seat": members.find(bytes(kicked)),
        "barred": membership is not None and membership.barred,
        "signature": str(signature),
    }
    return Result(data, facts(data))


def _not_kicked(error: Refused, run_id: str, typed: str, key: str) -> Refused:
    """Return the error of `kick`. It names the wallet to remove, which is not the signing one."""
    if error.name != "NotAMember":
        return error
    name = key if typed == key else f"{key} ({typed})"
    flags = f"--run-id {shlex.quote(run_id)} --wallet {shlex.quote(typed)}"
    return Refused(
        error.name,
        f"wallet {name} is not a member of run {run_id}",
        f"To keep it out, bar it: aftermath-solana kick {flags} --bar. "
        f"To list the members: aftermath-solana show-run --run-id {shlex.quote(run_id)}",
        reason=error.reason,
    )


@command(
    "set-future-epoch-rates",
    example="aftermath-solana set-future-epoch-rates --run-id demo --earning-rate-total-shared 1000",
)
async def set_future_epoch_rates(
    options: SigningOptions,
    run_id: RunId,
    earning_rate_total_shared: Annotated[
        int | None,
        typer.Option(
            min=0, max=U64_MAX, help="Points per epoch, shared by the members that finish it."
        ),
    ] = None,
    slashing_rate_per_client: Annotated[
        int | None, typer.Option(min=0, max=U64_MAX, help="Points that an ejected member loses.")
    ] = None,
) -> Result:
    """Set the points that members earn and lose from the next epoch on."""
    from aftermath.cli.connection import sign_in

    if earning_rate_total_shared is None and slashing_rate_per_client is None:
        raise UsageError(
            "no rate was given",
            "Pass --earning-rate-total-shared, --slashing-rate-per-client or both",
        )
    async with sign_in(options) as chain:
        await chain.coordinator.run(run_id)  # says so if there is no such run
        signature = await chain.coordinator.set_future_epoch_rates(
            run_id, earning=earning_rate_total_shared, slashing=slashing_rate_per_client
        )
        run = await chain.coordinator.run(run_id)
    data = {
        "run_id": run_id,
        "future_earning_rate": run.future_earning_rate,
        "future_slashing_rate": run.future_slashing_rate,
        "signature": str(signature),
    }
    return Result(data, facts(data))
