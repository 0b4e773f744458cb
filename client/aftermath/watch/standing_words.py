"""A run's standing in words: its facts by name, a row for each member, or all of it in one line."""

from __future__ import annotations

from solders.pubkey import Pubkey

from aftermath.base.counted import counted
from aftermath.rules.state import RunState
from aftermath.watch.phase import in_words
from aftermath.watch.printable import printable
from aftermath.watch.progress import span
from aftermath.watch.standing import MemberStanding, Standing

COLUMNS = ("seat", "wallet", "tier", "standing", "weight", "points", "last seen")


def facts_of(found: Standing) -> dict[str, str | list[str]]:
    """What there is to say of the run itself; its name and description are as their owner wrote them."""
    speed = {} if found.tokens_per_second is None else {"speed": f"{found.tokens_per_second:,} tokens/s"}
    return {
        "run": found.run_id,
        "name": found.name,
        "description": found.description,
        "state": (f"{no_answer(found)}; last heard: " if found.silent else "") + state_of(found),
        "steps": steps_of(found),
        **speed,
        "deadline": _deadline(found.deadline),
        "waits for": list(found.waits),
        "members": counted(len(found.members), "seat") + " in use",
        **({"checkpoint": checkpoint_of(found)} if found.step else {}),
    }


def no_answer(found: Standing) -> str:
    """Return for how long there has been no answer."""
    return f"no answer for {span(found.silent)}"


def state_of(found: Standing) -> str:
    """Return the state and how long the run has been in it."""
    return _state(found) + ("" if found.since is None else f", for {span(found.since)}")


def checkpoint_of(found: Standing) -> str:
    """Return the newest checkpoint's step and location, or a warning that the chain knows of none."""
    if found.checkpoint_step:
        return f"step {found.checkpoint_step:,} at {found.checkpoint}"
    return lost_with_members(found.unsaved)


def not_recorded(steps: int) -> str:
    """Return that no checkpoint on chain has the newest steps, as a sentence without its end."""
    # A member that is stopped saves its model in a directory of its own, of which the chain learns nothing.
    last = counted(steps, "step")
    return f"the chain knows of no checkpoint with the last {last}, and a member's --checkpoint-dir may hold one"


def lost_with_members(steps: int) -> str:
    """Return the same, and when the steps are lost."""
    return f"{not_recorded(steps)}; otherwise that training is lost when the last member ends"


def shown_levels(found: Standing) -> list[str]:
    """How many members have shown each level, whose word about it counts; of a run without a model nothing."""
    return [
        f"level {level.level}: " + (counted(len(level.shown), "member") if level.shown else "none yet")
        for level in found.levels
    ]


def row_of(member: MemberStanding) -> list[str]:
    """What the columns say of a member."""
    standing = f"{member.standing}, witness" if member.witness else member.standing
    points = f"{member.points:,}" + (f" (-{member.slashed:,})" if member.slashed else "")
    wallet = str(Pubkey.from_bytes(member.signer))
    return [str(member.seat), wallet, str(member.tier), standing, f"{member.weight:,}", points, member.seen]


def line(found: Standing) -> str:
    """All of it in a line, for where nothing can be drawn over."""
    here = counted(taking_part(found), "member takes part", "members take part")
    parts = [*(["no answer; last known state"] if found.silent else []), _state(found), _steps(found), here]
    if found.step and not found.checkpoint_step and (found.epoch or found.state is RunState.FINISHED):
        parts.append(checkpoint_of(found))
    owed = found.state in (RunState.UNINITIALIZED, RunState.PAUSED)  # what its owner has or has not done, a sentence
    return printable("; ".join([*parts, f"waits{':' if owed else ' for'} {', and '.join(found.waits)}"]))


def taking_part(found: Standing) -> int:
    """How many members do."""
    return sum(member.takes_part for member in found.members)


def steps_of(found: Standing) -> str:
    """How far it is, and how long it will take."""
    return _steps(found) + ("" if found.left is None else f", {span(found.left)} left")


def _state(found: Standing) -> str:
    at = f"epoch {found.epoch}" + ("" if found.round is None else f", round {found.round}")
    return f"{in_words(found.state)} ({at})"


def _steps(found: Standing) -> str:
    return f"step {found.step:,} of {found.total_steps:,}" if found.total_steps else "no step yet"


def _deadline(seconds: int | None) -> str:
    if seconds is None:
        return "none"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"
