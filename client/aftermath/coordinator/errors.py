"""What can go wrong between a member, or an owner's command, and the coordinator of a run.

Decided: of all reasons for which a coordinator refuses, only those are told apart that make a difference to what a
member does next. Whoever stands behind the port sorts its own errors into these; what a person reads stays in the
error itself.
"""

from __future__ import annotations

from enum import Enum, auto

from aftermath.base.errors import AftermathError, code_of


class Refusal(Enum):
    """A reason, as far as it makes a difference to what a member does next."""

    ALREADY_DONE = auto()
    """By this member before, or by somebody else in its place."""
    TOO_LATE = auto()
    """The run has moved on, or is not that far yet: the state it was meant for is not the one there is."""
    NOT_ELECTED = auto()
    """It is not, or no longer, this member's to do."""
    NOT_A_MEMBER = auto()
    HALTED = auto()
    """The run's owner has stopped it."""
    FULL = auto()
    """All places are taken."""
    MAY_PASS = auto()
    """Nothing about the run: the same may be accepted later."""
    FINAL = auto()
    """Anything else: asking again changes nothing."""


SETTLED = frozenset({Refusal.ALREADY_DONE, Refusal.TOO_LATE, Refusal.NOT_ELECTED})
"""What was to be done need not be done any more, at least not by this member."""


class CoordinatorError(AftermathError):
    """Something between us and the coordinator failed."""

    code = "coordinator"


class Unavailable(CoordinatorError):
    """Nobody answered for the coordinator: nothing is known to have happened; try again later."""

    code = "unavailable"


class NoSuchRun(CoordinatorError):
    """The coordinator has no such run, or no longer."""

    code = "no-such-run"


class Refused(CoordinatorError):
    """The coordinator refused. `name` is the error's own (for example `NotElected`), `reason` what members act upon."""

    def __init__(self, name: str, message: str, fix: str = "", *, reason: Refusal = Refusal.FINAL) -> None:
        super().__init__(message, fix)
        self.name, self.reason = name, reason
        self.code = code_of(name)
