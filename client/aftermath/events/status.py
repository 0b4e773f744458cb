"""Derive a run's status from its accounts: state, progress, members, levels, what it waits for.

Members, observers and commands use it, so all of them show the same words.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from aftermath.base.text import counted
from aftermath.events.printable import printable
from aftermath.events.progress import (
    continues_at,
    ended_epoch,
    going_back,
    holder_wait,
    last_member_wait,
    lost_steps_named,
    lost_unless_running,
    lost_with_members,
    span,
    state_phrase,
    steps_lost,
)
from aftermath.rules import bitmap, committee
from aftermath.rules.contents import steps_at_risk
from aftermath.rules.deadlines import newest_are_away, next_deadline, wait_for_last_member
from aftermath.rules.members import Members, Seat
from aftermath.rules.model import Model
from aftermath.rules.run import STORED_ROUNDS, Run, steps_before
from aftermath.rules.state import CheckpointKind, ExitReason, MemberState, RunState

_LEAST = 3  # minimum steps of an epoch to measure its pace
_OVERDUE = 15  # seconds after a deadline without a tick until a warning
_TAKES_PART = "takes part"
# `withdraw` is another thing: the command takes the bond back.
_STANDINGS = {"healthy": _TAKES_PART, "withdrawn": "left"}
_UNATTESTED = (ExitReason.QUORUM_MISSING, ExitReason.NO_ATTESTATION)
"""After these, members of the epoch ask for a seat again. If none has asked, all have left."""


@dataclass(frozen=True)
class MemberStatus:
    """One member as the chain knows it.

    It was last seen in the newest round in which it attested or in which a quorum recorded its
    result. If the chain no longer stores such a round, it was last seen in its last epoch.
    """

    seat: int
    signer: bytes
    tier: int
    standing: str
    weight: int
    points: int
    slashed: int
    seen: str
    witness: bool
    """Whether it is elected to attest the current round, or the warm-up."""

    @property
    def takes_part(self) -> bool:
        """Whether the member is in the running epoch."""
        return self.standing.startswith(_TAKES_PART)


@dataclass(frozen=True)
class LevelStatus:
    """One level of the model: the seats that hold it, and whether its current hash is attested.

    Holders take part with its tier or a larger one. Between epochs, they finished the last one.
    """

    level: int
    holders: tuple[int, ...]
    shown: tuple[int, ...]
    """Seats that delivered it in an earlier epoch. If there are none, all that declare it count."""
    attested: bool
    lost: bool
    """Whether it went back to an older version, because nobody had the newest one."""


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment. Times are in seconds.

    Only the accounts and the chain's time go in, so everyone who looks at the same moment sees the
    same. Remaining time and speed use the epoch's own pace once some of its steps are trained.
    """

    run_id: str
    name: str
    description: str
    state: RunState
    since: int | None
    """Seconds in that state. None before the owner first started the run."""
    epoch: int
    round: int | None
    step: int
    total_steps: int
    left: int | None
    """Seconds until all steps are trained, at this epoch's pace. None if unknown."""
    deadline: int | None
    """Seconds until the run may move on without missing members. Negative once past; None if no
    time runs.
    """
    waits: tuple[str, ...]
    """What must happen before it continues."""
    members: tuple[MemberStatus, ...]
    tokens_per_second: int | None
    """Speed of all members together at this epoch's pace. None if `left` is None."""
    levels: tuple[LevelStatus, ...]
    checkpoint: str
    """Location of the newest checkpoint that the chain names. Empty if there is none."""
    checkpoint_step: int
    """Steps trained in that checkpoint. 0 for the run's initial model."""
    unsaved: int
    """Trained steps that the checkpoint lacks."""
    checkpoint_is_local: bool = False
    """Whether the checkpoint is a directory on the machine that saved it."""
    silent: int = 0
    """Seconds without an answer about the run. 0 while there are answers."""
    rounds_left: int | None = None
    """Maximum rounds left in the current epoch. None if the epoch has no limit of rounds."""
    spec_error: str = ""
    """Why this client cannot read the run's training spec. Empty if it can."""
    outer_momentum: float = 0.0
    """The outer momentum, which joiners fetch with the model. 0 if there is none."""
    last_member_wait: int | None = None
    """Seconds that other members still wait for the epoch's absent last member, or None."""
    going_back: str = ""
    """The levels that go back to the checkpoint, in words."""
    lost: int = 0
    """Trained steps that are lost with all levels, because the run goes back to the checkpoint."""
    newest_are_away: bool = False
    """Whether no waiting member has the steps that no checkpoint has."""
    has_tick: bool = True  # see `status_of`

    @property
    def is_stalled(self) -> bool:
        """Whether no member advances the run at its deadline."""
        no_member = not any(member.takes_part for member in self.members)
        return self.deadline is not None and (no_member or _is_overdue(self.deadline))


def _is_overdue(deadline: int | None) -> bool:
    return deadline is not None and deadline <= -_OVERDUE


def status_of(
    run: Run, model: Model, members: Members, now: int, *, silent: int = 0, has_tick: bool = True
) -> RunStatus:
    """Return the run's status from its accounts at the chain's time `now`.

    `silent`: seconds since the accounts were read, if nothing has answered since; the status is as
    of then. `has_tick`: whether a person can advance the run with a command.
    """
    now -= silent
    until = next_deadline(run, members, model)
    deadline = None if until is None else until - now
    last_member_seconds = None
    if not silent and has_tick and _is_overdue(deadline):
        wait = wait_for_last_member(run, members, model)
        if wait is not None and wait.is_running(now):
            last_member_seconds = wait.end - now
    waits = _waits(run, model, members, deadline, has_tick=has_tick, silent=silent)
    if last_member_seconds is not None:
        # Nothing else can happen before that member is back, so nothing else is named.
        waits = filter(None, [last_member_wait(run, members, model)])
    return RunStatus(
        run_id=run.run_id,
        name=model.metadata.name,
        description=model.metadata.description,
        state=run.state,
        since=max(0, now - run.state_started_at) if run.state_started_at else None,
        epoch=run.epoch,
        round=run.current.height if run.state.active else None,
        step=run.trained_steps,
        total_steps=run.config.total_steps,
        left=_left(run, now),
        deadline=deadline,
        waits=tuple(waits),
        members=tuple(_members(run, members)),
        tokens_per_second=_speed(run, model, now),
        levels=tuple(_levels(run, members)),
        checkpoint=model.checkpoint.repo if model.recorded[0].exists else "",
        checkpoint_step=steps_before(model.checkpoint_step),
        unsaved=steps_at_risk(run, model),
        checkpoint_is_local=model.checkpoint.kind is CheckpointKind.LOCAL,
        silent=silent,
        rounds_left=_rounds_left(run),
        spec_error=model.spec_error,
        outer_momentum=model.optimizer.outer_momentum,
        last_member_wait=last_member_seconds,
        going_back=going_back(run, members, model) or "",
        lost=steps_lost(run, members, model),
        newest_are_away=newest_are_away(run, members, model),
        has_tick=has_tick,
    )


def _rounds_left(run: Run) -> int | None:
    if not run.state.active or not run.config.rounds_per_epoch:
        return None
    return max(0, run.config.rounds_per_epoch - run.current.height)


def _left(run: Run, now: int) -> int | None:
    if (trained := _trained(run)) is None:
        return None
    return max(
        0, (run.config.total_steps - run.trained_steps) * (now - run.epoch_started_at) // trained
    )


def _speed(run: Run, model: Model, now: int) -> int | None:
    if (trained := _trained(run)) is None or not run.current.batch:
        return None
    return trained * run.current.batch * model.max_seq_len // max(1, now - run.epoch_started_at)


def _trained(run: Run) -> int | None:
    """Return the epoch's steps if they are enough to measure its pace."""
    trained = run.trained_steps - steps_before(run.start_step)
    return trained if run.state.training and trained >= _LEAST else None


def _levels(run: Run, members: Members) -> Iterator[LevelStatus]:
    running = run.state is RunState.WARMUP or run.state.active
    present = members.mask(MemberState.HEALTHY) if running else run.finishers
    for level in range(run.levels):
        holders = tuple(seat for seat in bitmap.seats(present) if members.seats[seat].tier <= level)
        proven = tuple(
            seat for seat in bitmap.seats(members.established) if members.seats[seat].tier <= level
        )
        attested = run.attested_step == run.step and bool(run.levels_attested >> level & 1)
        yield LevelStatus(level, holders, proven, attested, bool(run.levels_lost >> level & 1))


# --- what the run waits for ---


def owner_owes(run: Run, model: Model) -> str:
    """Return the command of its owner that a new or paused run waits for."""
    if run.state is RunState.PAUSED or model.configured:
        return "set-paused resume by its owner"
    return "update-config by its owner"


def _waits(
    run: Run, model: Model, members: Members, deadline: int | None, *, has_tick: bool, silent: int
) -> Iterator[str]:
    match run.state:
        case RunState.UNINITIALIZED | RunState.PAUSED:
            yield owner_owes(run, model)
        case RunState.FINISHED:
            yield f"nothing: {counted(run.config.total_steps, 'step')} are trained"
        case RunState.WAITING_FOR_MEMBERS:
            yield from _waits_for_members(run, model, members)
            if holder := holder_wait(run, members, model, has_commands=has_tick):
                yield holder
        case RunState.WARMUP:
            if run.seed_is_drawn:
                yield f"its members to load the model: {_votes(run)} have it"
            else:
                yield "the slot from which the warm-up's seed is drawn"
        case RunState.ROUND_TRAIN:
            yield from _waits_for_round(run)
        case RunState.ROUND_WITNESS:
            yield f"the witnesses that have not attested yet: {_votes(run)} have"
        case RunState.COOLDOWN:
            yield from _waits_for_the_model(run, model, members)
    if run.pending_pause and not run.state.halted:
        yield "the end of this epoch, after which the owner's pause begins"
    # without an answer it is unknown whether the run is overdue, and no tick would arrive
    if _is_overdue(deadline) and not silent:
        yield _waits_for_tick(run, has_tick=has_tick)


def _waits_for_tick(run: Run, *, has_tick: bool) -> str:
    """Return who must advance a run whose deadline has passed."""
    if not has_tick:
        return "a connected member to advance it"
    return f"a tick to advance it: aftermath-solana tick --run-id {shlex.quote(run.run_id)}"


def _waits_for_members(run: Run, model: Model, members: Members) -> Iterator[str]:
    candidates = members.pending.bit_count()
    least = run.config.init_min_clients
    candidate_count = f"{candidates} of at least {counted(least, 'member')}"
    if candidates < least:
        text = f"members: {candidates} of {least}"
    else:
        text = f"more members until the deadline: {candidate_count} have joined"
    if run.exit_reason in _UNATTESTED and not _of_last_epoch(members) & members.pending:
        text += " (all members of the last epoch have left)"
    elif run.exit_reason is ExitReason.TOTAL_STEPS and run.trained_steps < run.config.total_steps:
        text += " (all earlier steps were trained; the owner has added more)"
    elif ending := ended_epoch(run, members, model):
        text += f" ({ending})"
    yield text


def _of_last_epoch(members: Members) -> int:
    """Return the seats that took part in the last epoch."""
    seats = enumerate(members.seats)
    return bitmap.from_seats(
        number for number, seat in seats if seat.used and seat.last_epoch == members.epoch
    )


def _waits_for_round(run: Run) -> Iterator[str]:
    now = run.current
    if not run.seed_is_drawn:
        yield "the next round's seed"
    missing = committee.quorum(now.elected) - now.attestations
    if missing <= 0:
        yield f"the minimum time of a round: {_votes(run)} have attested"
    elif now.elected:
        yield f"{missing} of {counted(now.elected, 'witness', 'witnesses')} to confirm round {now.height}"
    else:
        yield f"the deadline: no witness of round {now.height} is left"


def _waits_for_the_model(run: Run, model: Model, members: Members) -> Iterator[str]:
    held_levels = [
        level for level in range(run.levels) if committee.cooldown_electees(run, members, level)
    ]
    attested_levels = [
        level
        for level in held_levels
        if run.attested_step == run.step and run.levels_attested >> level & 1
    ]
    if len(attested_levels) < len(held_levels):
        yield f"the hashes of the model: {len(attested_levels)} of {counted(len(held_levels), 'level')} are attested"
    if model.checkpoint_step != run.step:
        yield "a tier-0 member to save a checkpoint of this epoch"
    if run.is_audited:
        yield "judges that audit the last rounds"


def _votes(run: Run) -> str:
    now = run.current
    needed = committee.quorum(run.current.elected)
    return f"{now.attestations} of {counted(now.elected, 'witness', 'witnesses')} ({needed} must)"


# --- members ---


def _members(run: Run, members: Members) -> Iterator[MemberStatus]:
    elected: tuple[int, ...] = ()
    if run.state.training or run.state is RunState.WARMUP:
        elected = committee.witnesses(run.current, members)
    for number, seat in enumerate(members.seats):
        if seat.used:
            yield MemberStatus(
                number,
                seat.signer,
                seat.tier,
                _standing(run, seat),
                seat.weight,
                seat.points,
                seat.slashed,
                _seen(run, number, seat),
                number in elected,
            )


def _standing(run: Run, seat: Seat) -> str:
    if seat.barred:
        return "barred"
    running = run.state is RunState.WARMUP or run.state.active
    state = (
        seat.state.name.lower().replace("_", " ")
        if running and seat.state is not MemberState.IDLE
        else ""
    )
    state = _STANDINGS.get(state, state)
    if seat.pending:
        return f"{state}, joins the next epoch" if state else "joins the next epoch"
    return state or ("removed" if seat.removed else "away")


def _seen(run: Run, number: int, seat: Seat) -> str:
    if run.state.active:
        newest = run.current.height
        for height in range(newest, newest - STORED_ROUNDS, -1):
            if (stored := run.round(height)) is not None and bitmap.contains(
                stored.attested, number
            ):
                return f"epoch {run.epoch}, round {height}"
    return f"epoch {seat.last_epoch}"


def facts_of(status: RunStatus) -> dict[str, str | list[str]]:
    """Return the facts about the run itself. Its owner wrote the name and the description."""
    speed = {}
    if status.tokens_per_second is not None:
        speed["speed"] = f"{status.tokens_per_second:,} tokens/s"
    return {
        "run": status.run_id,
        "name": status.name,
        "description": status.description,
        "state": (f"{no_answer(status)}; last heard: " if status.silent else "") + state_of(status),
        "steps": steps_of(status),
        **speed,
        "deadline": _deadline(
            status.deadline if status.last_member_wait is None else status.last_member_wait
        ),
        "waits for": list(status.waits),
        **({"training spec": status.spec_error} if status.spec_error else {}),
        **({"outer momentum": f"{status.outer_momentum:g}"} if status.outer_momentum else {}),
        "members": counted(len(status.members), "seat") + " in use",
        **({"checkpoint": checkpoint_of(status)} if status.step else {}),
        **({"levels": status.going_back} if status.going_back else {}),
    }


def no_answer(status: RunStatus) -> str:
    """Return for how long there was no answer."""
    return f"no answer for {span(status.silent)}"


def state_of(status: RunStatus) -> str:
    """Return the state and how long the run has been in it."""
    return _state(status) + ("" if status.since is None else f", for {span(status.since)}")


def checkpoint_of(status: RunStatus) -> str:
    """Return the newest checkpoint's step and location, and how many steps none has."""
    text = "the initial model, of step 0"
    if status.checkpoint_step:
        machine = ", on the machine that saved it" if status.checkpoint_is_local else ""
        text = f"step {status.checkpoint_step:,} at {status.checkpoint}{machine}"
    if status.lost:
        older = continues_at(status.step, status.checkpoint_step, has_commands=status.has_tick)
        return f"{text}; {lost_steps_named(status.lost, status.state, older)}"
    if status.newest_are_away and status.unsaved:
        return f"{text}; {lost_unless_running(status.unsaved, status.state)}"
    if not status.checkpoint_step:
        return lost_with_members(status.unsaved) if status.unsaved else text
    later = counted(status.unsaved, "later step is", "later steps are")
    return f"{text}; {later} in no recorded checkpoint" if status.unsaved else text


def shown_levels(status: RunStatus) -> list[str]:
    """Return, per level, how many members proved in an earlier epoch that they hold it.

    Empty for a run without a model.
    """
    return [
        f"level {level.level}: "
        + (counted(len(level.shown), "member") if level.shown else "none yet")
        for level in status.levels
    ]


def line(status: RunStatus) -> str:
    """Return the status as one line, for consoles that cannot redraw."""
    members_text = counted(taking_part(status), "member takes part", "members take part")
    clauses = [
        *(["no answer; last known state"] if status.silent else []),
        _state(status),
        _steps(status),
        members_text,
    ]
    has_ended_epoch = status.epoch or status.state is RunState.FINISHED
    if status.unsaved and not status.checkpoint_step and has_ended_epoch:
        clauses.append(checkpoint_of(status))
    return printable("; ".join([*clauses, f"waits for {', and '.join(status.waits)}"]))


def taking_part(status: RunStatus) -> int:
    """Return how many members take part."""
    return sum(member.takes_part for member in status.members)


def steps_of(status: RunStatus) -> str:
    """Return the progress and the remaining time."""
    return _steps(status) + ("" if status.left is None else f", {span(status.left)} left")


def _state(status: RunStatus) -> str:
    position = f"epoch {status.epoch}" + ("" if status.round is None else f", round {status.round}")
    return f"{state_phrase(status.state)} ({position})"


def _steps(status: RunStatus) -> str:
    return (
        f"step {status.step:,} of {status.total_steps:,}" if status.total_steps else "no step yet"
    )


def _deadline(seconds: int | None) -> str:
    if seconds is None:
        return "none"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"
