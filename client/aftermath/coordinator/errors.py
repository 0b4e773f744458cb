"""Errors between a member, or an owner's command, and the coordinator of a run.

Each coordinator maps its own errors to `Refusal`. A refusal has a value of its own only if members
act on it. The text for people stays in the error.
"""

from __future__ import annotations

from enum import Enum, auto

from aftermath.base.errors import AftermathError, code_of


class Refusal(Enum):
    """The reason of a refusal, as far as it determines what a member does next."""

    ALREADY_DONE = auto()
    """This member did it before, or another member did."""
    WRONG_STATE = auto()
    """The run is no longer, or not yet, in the state that the call needs."""
    NOT_ELECTED = auto()
    """This member is not, or no longer, elected for it."""
    NOT_A_MEMBER = auto()
    HALTED = auto()
    """The run's owner has stopped it."""
    FULL = auto()
    """All seats are taken."""
    MAY_PASS = auto()
    """The cause is temporary and not in the run. Retry later."""
    FINAL = auto()
    """Any other reason. Retrying does not help."""


SETTLED = frozenset({Refusal.ALREADY_DONE, Refusal.WRONG_STATE, Refusal.NOT_ELECTED})
"""Refusals of work that is already done or no longer this member's task."""


class CoordinatorError(AftermathError):
    """A call to the coordinator failed."""

    code = "coordinator"


class Unavailable(CoordinatorError):
    """The coordinator does not answer. The call may have had no effect; retry later."""

    code = "unavailable"


class NoSuchRun(CoordinatorError):
    """The coordinator does not have this run, or no longer has it."""

    code = "no-such-run"


class Refused(CoordinatorError):
    """The coordinator refused a call.

    `name` is the coordinator's own name of the error (for example `NotElected`). Members act on
    `reason`.
    """

    def __init__(
        self, name: str, message: str, fix: str = "", *, reason: Refusal = Refusal.FINAL
    ) -> None:
        super().__init__(message, fix)
        self.name = name
        self.reason = reason
        self.code = code_of(name)
