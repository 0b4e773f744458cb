"""The errors of every package derive from one base, so that a command can show one sentence and how
to fix it.

Decided: an error is a sentence (`message`) and, where we know it, what to do (`fix`); anything that
is not an `AftermathError` is a fault of ours and may be reported as unexpected.
"""

from __future__ import annotations

import re


class AftermathError(Exception):
    """Something that can go wrong in ordinary use. `str()` is the sentence, followed by the fix
    when there is one.
    """

    code = "failed"
    """What went wrong, by a name for programs that stays when the sentence changes."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message, fix)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n{self.fix}" if self.fix else self.message


class UsageError(AftermathError):
    """A command line that cannot be meant: an option's value, or a combination of options, means
    nothing.
    """

    code = "usage"


class Unsuitable(AftermathError):
    """This client, its machine, or this choice of settings cannot take part in the run."""

    code = "unsuitable"


class AccountError(AftermathError):
    """The bytes of an account are not what this version of the program writes."""

    code = "account"


class ConfigError(AftermathError):
    """A run's config file cannot be used. The message names file, line, key and what is allowed."""

    code = "config"


class BadAnnouncement(AftermathError):
    """A peer's announcement is malformed, out of range or not signed by the key it names."""


def code_of(name: str) -> str:
    """The code of an error that a program calls `name`: `NotElected` is not-elected."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def shown(given: object) -> str:
    """What was given instead, as a sentence shows it: cut where it gets long."""
    text = repr(given)
    return text if len(text) <= 60 else text[:57] + "..."
