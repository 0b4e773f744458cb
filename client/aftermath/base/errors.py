"""Base classes of all errors. A command prints an error as one sentence and its fix.

An error has a `message` and, where known, a `fix`. Any exception that is not an `AftermathError` is
a bug of ours and is reported as unexpected.
"""

from __future__ import annotations

import re


class AftermathError(Exception):
    """Something that can go wrong in ordinary use. `str()` is the message, followed by the fix if
    any.
    """

    code = "failed"
    """The error's stable name for programs. It does not change when the message changes."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message, fix)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n{self.fix}" if self.fix else self.message


class UsageError(AftermathError):
    """A command line that cannot be valid: an option's value, or a combination of options."""

    code = "usage"


class Unsuitable(AftermathError):
    """This client, its machine, or this choice of settings cannot take part in the run."""

    code = "unsuitable"


class AccountError(AftermathError):
    """The bytes of an account are not in the format of this version of the program."""

    code = "account"


class ConfigError(AftermathError):
    """A run's config file cannot be used. The message names file, line, key and what is allowed."""

    code = "config"


class SchemaError(AftermathError):
    """The settings give no valid schema, or bytes that claim to be one are not."""

    code = "schema"


class BadAnnouncement(AftermathError):
    """A peer's announcement is malformed, out of range or not signed by the key it names."""


def code_of(name: str) -> str:
    """Return the code of an error that a program names: `NotAMember` becomes not-a-member."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def short_repr(value: object) -> str:
    """Return a value as an error message shows it, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
