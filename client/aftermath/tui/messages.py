"""What a process tells its screen, as lines of JSON.

Decided: everything is told, nothing is asked: a screen that hangs, or whose terminal does, keeps nobody waiting.
"""

from __future__ import annotations

import msgspec

from aftermath.watch.kinds import MEMBER_EVENTS
from aftermath.watch.standing import Standing

TABS = ("Run", "Members", "Training", "Network", "Chain", "Log")


class Message(msgspec.Struct, frozen=True, tag_field="is", tag=str.lower):
    """One of those below."""


class Told(Message, frozen=True):
    """A member told this."""

    event: MEMBER_EVENTS


class Stands(Message, frozen=True):
    """The run stands like this. `here`: the identities that are connected, where somebody knows."""

    standing: Standing
    here: frozenset[bytes] | None = None


class Facts(Message, frozen=True):
    """Rows of a tab that only the process knows; they replace those of the same names."""

    tab: str
    rows: dict[str, str]


class Line(Message, frozen=True):
    """A line for the log; `t` in seconds since the start."""

    t: float
    text: str


class End(Message, frozen=True):
    """It is over: the screen closes."""


MESSAGES = Told | Stands | Facts | Line | End


def line_of(message: MESSAGES) -> bytes:
    """A message as a line."""
    return msgspec.json.encode(message) + b"\n"


def message_of(line: bytes) -> MESSAGES:
    """The message of a line. Raises msgspec.DecodeError."""
    message: MESSAGES = _READER.decode(line)
    return message


_READER = msgspec.json.Decoder(MESSAGES)
