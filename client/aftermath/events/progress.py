"""A run's progress and a member's current phase, in a few words: "step 40 of 120, 2 min left".

Everything comes from the chain, so all members show the same. The pace is that of the last steps,
including the pauses between epochs, because they recur. `holder_wait` and `last_member_wait` name
the member that a run waits for.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from aftermath.base.text import counted
from aftermath.events import event_types
from aftermath.rules import bitmap, committee
from aftermath.rules.contents import steps_at_risk, unsaved_steps
from aftermath.rules.deadlines import (
    last_member,
    newest_are_away,
    wait_for_last_member,
    waits_a_day,
    waits_for_holder,
)
from aftermath.rules.departures import LostLevel, levels_going_back, lost_steps, makes_a_step
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run, steps_before
from aftermath.rules.state import ExitReason, ModelSource, RunState

_WINDOW = 100  # steps from which the pace is computed
_LEAST = 3  # minimum steps for an estimate


class Progress:
    """Follows the events `state`, `round` and `finished`, which carry steps and chain time
    (`since`).
    """

    def __init__(self) -> None:
        self.step = self.total = 0
        self._seen: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    def take(self, event: event_types.Event) -> None:
        """Add an event. Events without progress are ignored."""
        if isinstance(event, event_types.StateChanged):
            self._reach(event.step, paused=event.state == "PAUSED")
            self.total = event.total_steps
        elif isinstance(event, event_types.RoundStarted):
            step = event.step - 1  # a round's step is the one that it trains
            self._reach(step, paused=False)
            if not self._seen or step > self._seen[-1][1]:
                self._seen.append((event.since, step))
        elif isinstance(event, event_types.RunFinished):
            self._reach(event.step, paused=False)

    def _reach(self, step: int, *, paused: bool) -> None:
        if paused or step < self.step:
            self._seen.clear()  # times before this do not predict later steps
        self.step = step

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the last step is trained, or None if not known yet."""
        if not self._seen or self._seen[-1][1] - self._seen[0][1] < _LEAST:
            return None
        (first_at, first) = self._seen[0]
        (last_at, last) = self._seen[-1]
        return (self.total - self.step) * (last_at - first_at) / (last - first)

    def text(self) -> str:
        """Return the step, and the time left if it is known."""
        if not self.total:
            return "no step yet"
        seconds_left = self.seconds_left if self.step < self.total else None
        return f"step {self.step:,} of {self.total:,}" + (
            f", {span(seconds_left)} left" if seconds_left is not None else ""
        )


def span(seconds: float) -> str:
    """Return a duration as text."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = round(seconds / 3600)
    if hours < 5:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours} h" if hours < 48 else f"{round(seconds / 86400)} days"


_ROUND = "epoch {epoch} round {height}: "
_PHASES: dict[type[event_types.Event], str] = {
    event_types.MemberStarted: "looking for the run",
    event_types.Loading: "loading PyTorch",
    event_types.Compiling: "compiling",
    event_types.Measuring: "measuring this machine's speed",
    event_types.SpeedMeasured: "joining",
    event_types.StateChanged: "epoch {epoch}: {state}",
    event_types.RoundStarted: _ROUND + "training",
    event_types.ShareTrained: _ROUND + "sharing",
    event_types.CooldownStarted: "epoch {epoch}: cooldown",
    event_types.Leaving: "stopping",
    event_types.Left: "left the run",
    event_types.RunFinished: "the run is finished",
}
_STATES = {
    "UNINITIALIZED": "new",
    "WARMUP": "warm-up",
    "ROUND_TRAIN": "training",
    "ROUND_WITNESS": "witnessing",
}
"""Words for states whose names are not plain English."""
_ENDINGS = {
    ExitReason.QUORUM_MISSING: "the last epoch ended: no quorum of its witnesses answered",
    ExitReason.TOO_FEW_CLIENTS: "the last epoch ended: too few members were left",
    ExitReason.TOTAL_STEPS: "all steps were trained",
    ExitReason.ROUNDS_PER_EPOCH: "the last epoch is complete",
    ExitReason.EPOCH_TIME: "the last epoch is complete: its time was over",
    ExitReason.PAUSE: "the last epoch ended: the owner paused the run",
    ExitReason.NO_ATTESTATION: "the last epoch ended: no witness attested its rounds",
}


def phase(event: event_types.Event) -> str | None:
    """Return the member's phase after this event, or None if the event does not change it."""
    text = _PHASES.get(type(event))
    if text is None or (
        isinstance(event, event_types.Left) and event.finished
    ):  # the member has seen the end of that run
        return None
    fields = msgspec.structs.asdict(event)
    return text.format_map(fields | {"state": state_text(str(fields.get("state", "")))})


def state_text(name: str) -> str:
    """Return the name of a run's state in plain English."""
    return _STATES.get(name, name.lower().replace("_", " "))


def state_phrase(state: RunState) -> str:
    """Return a run's state as it follows "the run is"."""
    text = state_text(state.name)
    return f"in {text}" if state in (RunState.WARMUP, RunState.COOLDOWN) else text


# A member that comes back without the model says so when it joins, and nobody waits for it then.
_IF_STOPPED = (
    "; if it was stopped, its model is lost, and the wait ends when all such members start again"
)


def holder_wait(run: Run, members: Members, model: Model, *, has_commands: bool) -> str | None:
    """Return for which absent members the run waits, or None if it waits for no holder.

    `has_commands`: whether the owner can end the wait with commands.
    """
    step = steps_before(model.checkpoint_step)
    saved = step > 0 and not unsaved_steps(run, model)
    if waits_for_holder(run, members, model):
        holder = (
            "an absent member that finished the last epoch, because no recorded checkpoint has its "
            f"steps{_IF_STOPPED}"
        )
    elif waits_a_day(run, members, model):
        # If so, nobody has newer steps. The program waits for that member anyway.
        from_checkpoint = saved or run.model_source is ModelSource.CHECKPOINT
        known = "trained before" if from_checkpoint else "had the model"
        holder = f"an absent member that {known} (after 24 hours, any member)"
        if from_checkpoint:
            holder += ", although no trained steps depend on it"
        else:
            holder += _IF_STOPPED
    else:
        return None
    run_id = shlex.quote(run.run_id)
    how = (
        f"to begin at once from the checkpoint, which has all {counted(step, 'step')}"
        if saved
        else "to continue from the checkpoint instead"
    )
    if not has_commands:
        place = model.checkpoint.repo
        named = f"write {place} as the checkpoint into its state.toml, " if step else ""
        return (
            f"{holder}; {how}, stop the server, {named}and start it with another --save-state-dir: "
            "the new run counts its steps from 0"
        )
    return (
        f"{holder}; {how}, the owner runs aftermath-solana set-paused "
        f"--run-id {run_id} pause, then aftermath-solana rewind --run-id {run_id} --to-step {step}, then "
        f"aftermath-solana set-paused --run-id {run_id} resume"
        f"{_more_members(run, members)}"
    )


def _more_members(run: Run, members: Members) -> str:
    """Return how many members besides the waiting ones the next epoch needs, if any."""
    missing = run.config.init_min_clients - members.pending.bit_count()
    if missing <= 0:
        return ""
    return f"; after that the run needs {counted(missing, 'more member')}"


TOO_FEW_ATTESTED = "too few of the holders are left, or attested the newest steps"
"""Why a level went back, after its epoch. The chain does not tell which of the two it was."""


def going_back(run: Run, members: Members, model: Model) -> str | None:
    """Return which levels go back to the checkpoint and why, or None."""
    lost = [
        _without_late_leavers(run, members, one) for one in levels_going_back(run, members, model)
    ]
    if not lost:
        return None
    levels = [one.level for one in lost]
    in_epoch = run.state not in (RunState.WAITING_FOR_MEMBERS, RunState.PAUSED)
    risked = steps_at_risk(run, model) + makes_a_step(run)
    # Holders of these levels may have left before the newest step.
    most = counted(risked if in_epoch else unsaved_steps(run, model), "step is", "steps are")
    back = levels_go_back(levels, steps_before(model.checkpoint_step))
    why = too_few(lost) if in_epoch else TOO_FEW_ATTESTED
    return f"{back}: {why}. Up to {most} lost"


def _without_late_leavers(run: Run, members: Members, lost: LostLevel) -> LostLevel:
    """Return a lost level without the members that left in the cooldown.

    They may have attested before they left, so the rules count them as able to.
    """
    if run.state is not RunState.COOLDOWN:
        return lost
    voters = bitmap.from_seats(committee.cooldown_electees(run, members, lost.level))
    return lost._replace(left=min(lost.left, (voters & members.healthy).bit_count()))


def levels_go_back(levels: Sequence[int], checkpoint_step: int) -> str:
    """Return a clause: these levels go back to the checkpoint of a step in the next epoch."""
    verb = "go" if len(levels) > 1 else "goes"
    checkpoint = named_checkpoint(checkpoint_step)
    return f"{levels_named(levels)} of the model {verb} back to {checkpoint} in the next epoch"


def too_few(lost: Sequence[LostLevel]) -> str:
    """Return a clause that says why the members that stay cannot attest these levels."""
    if not any(one.left for one in lost):
        return "the members with the newest steps have left"
    counts = [(one.left, one.holders) for one in lost]
    if len(set(counts)) == 1:
        return f"only {counts[0][0]} of {counts[0][1]} holders are left"
    groups = [
        f"{left} of {holders} holders of "
        + levels_named([one.level for one in lost if (one.left, one.holders) == (left, holders)])
        for left, holders in dict.fromkeys(counts)
    ]
    return f"only {', '.join(groups[:-1])} and {groups[-1]} are left"


def levels_named(levels: Sequence[int]) -> str:
    """Return the levels as words: "levels 0, 1"."""
    return f"level{'s' * (len(levels) > 1)} {', '.join(map(str, levels))}"


def named_checkpoint(step: int) -> str:
    """Return the checkpoint of a step in words."""
    return f"the checkpoint of step {step}" if step else "the initial model"


def not_recorded(steps: int) -> str:
    """Return the beginning of a sentence: no recorded checkpoint has the newest steps."""
    # A member that is stopped saves its model in its own directory, which is not recorded.
    last = counted(steps, "step")
    return (
        f"no recorded checkpoint has the last {last}, but a member's --checkpoint-dir may have one"
    )


def lost_with_members(steps: int) -> str:
    """Return `not_recorded`, and when the steps are lost."""
    return f"{not_recorded(steps)}; otherwise that training is lost when the last member ends"


def steps_lost(run: Run, members: Members, model: Model) -> int:
    """Return how many trained steps are lost because the next epoch begins from the checkpoint.

    0 while a member that the run knows to have had them may still have them.
    """
    nobody_left = newest_are_away(run, members, model) and not run.finishers
    return unsaved_steps(run, model) if nobody_left else lost_steps(run, members, model)


def ended_epoch(run: Run, members: Members, model: Model) -> str | None:
    """Return how the last epoch ended and whether its steps are lost, or None."""
    ending = _ENDINGS.get(run.exit_reason)
    if ending is None:
        return None
    if not steps_lost(run, members, model):
        return ending
    joined = "and" if ending.startswith("the last epoch ended") else "but"
    return f"{ending}, {joined} its steps are lost"


def continues_at(step: int, checkpoint_step: int, *, has_commands: bool) -> str:
    """Return a clause: the step counter stays although the model is an older one.

    `has_commands`: whether the owner can rewind the run.
    """
    model = f"the model of step {checkpoint_step}" if checkpoint_step else "the initial model"
    again = f"; rewind --to-step {checkpoint_step} trains the lost steps again"
    return f"the run continues at step {step} with {model}{again * has_commands}"


def lost_unless_running(steps: int, state: RunState) -> str:
    """Return that steps are lost unless an absent member that has them is still running."""
    are = counted(steps, "later step is", "later steps are")
    hidden = " (a pause hides whether one is)" if state is RunState.PAUSED else ""
    them = "it" if steps == 1 else "them"
    return (
        f"{are} lost unless an absent member that has {them} is still running{hidden}; "
        "a member's --checkpoint-dir may have a copy"
    )


def lost_steps_named(lost: int, state: RunState, older: str) -> str:
    """Return how many steps are lost, where the next epoch begins, and where copies may be.

    `older`: `continues_at`. Used between epochs only: a running epoch may be undone with its steps.
    """
    steps = counted(lost, "later step is", "later steps are")
    begins = "" if state is RunState.FINISHED else ", and the next epoch begins without them"
    text = f"{steps} lost{begins} (a member's --checkpoint-dir may have a copy)"
    between = state in (RunState.WAITING_FOR_MEMBERS, RunState.PAUSED)
    return f"{text}; {older}" if between else text


def last_member_wait(run: Run, members: Members, model: Model) -> str | None:
    """Return a warning that names the absent last member of an epoch and the steps at stake.

    Return None if nobody waits for a last member.
    """
    named = _last_member_and_loss(run, members, model)
    wait = wait_for_last_member(run, members, model)
    if named is None or wait is None:
        return None
    last, lost = named
    run_id = shlex.quote(run.run_id)
    how = f"To end the epoch now and lose these steps, run aftermath-solana tick --run-id {run_id}"
    if not members.established & members.pending:  # else the next epoch would wait for it again
        step = steps_before(model.checkpoint_step)
        how = (
            "To continue from the checkpoint now, the owner runs "
            f"aftermath-solana set-paused --run-id {run_id} pause, then aftermath-solana tick "
            f"--run-id {run_id}, then aftermath-solana rewind --run-id {run_id} --to-step {step}, "
            f"then aftermath-solana set-paused --run-id {run_id} resume"
        )
    return (
        f"{last}: {lost} lost if the epoch ends "
        "without it. Start that member again. Other members wait for it until "
        f"{_date(wait.end)}. {how}"
    )


def _date(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def last_member_until(run: Run, members: Members, model: Model) -> str | None:
    """Return until when other members wait if the epoch's last member is away, or None."""
    named = _last_member_and_loss(run, members, model)
    wait = wait_for_last_member(run, members, model)
    if named is None or wait is None:
        return None
    return f"if {named[0]}, is away, other members wait for it until {_date(wait.end)}"


def steps_lost_by_ticks(run: Run, members: Members, model: Model) -> str | None:
    """Return which trained steps a command loses if it ends the epoch, or None."""
    named = _last_member_and_loss(run, members, model)
    if named is None:
        return None
    last, lost = named
    return f"this command may end the epoch. If {last}, is away, {lost} lost"


def _last_member_and_loss(run: Run, members: Members, model: Model) -> tuple[str, str] | None:
    """Return the last member of an epoch in words, and the steps that are lost without it."""
    from solders.pubkey import Pubkey  # only here: a help page does not wait for it

    seat = last_member(run, members, model)
    if seat is None:
        return None
    wallet = Pubkey.from_bytes(members.seats[seat].signer)
    steps = steps_at_risk(run, model) + makes_a_step(run)
    lost = counted(steps, "step of training is", "steps of training are")
    return f"wallet {wallet}, the last member of epoch {run.epoch}", lost
