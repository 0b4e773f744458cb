"""Messages from a process to its screen, as lines of JSON.

The screen never answers, so a hanging screen or terminal delays nobody.
"""

from __future__ import annotations

import msgspec

from aftermath.events.event_types import MEMBER_EVENTS
from aftermath.events.status import RunStatus

TABS = ("Run", "Members", "Training", "Network", "Chain", "Log")


class Message(msgspec.Struct, frozen=True, tag_field="is", tag=str.lower):
    """Base class of the messages."""


class EventMessage(Message, frozen=True):
    """A member emitted this event."""

    event: MEMBER_EVENTS


class StatusMessage(Message, frozen=True):
    """The run's status. `connected`: the identities that are connected, if known."""

    status: RunStatus
    connected: frozenset[bytes] | None = None


class Facts(Message, frozen=True):
    """Rows of a tab that only the process knows. They replace those of the same names."""

    tab: str
    rows: dict[str, str]


class Line(Message, frozen=True):
    """A line for the log. `t` is in seconds since the start."""

    t: float
    text: str


class ClientRow(msgspec.Struct, frozen=True):
    """A client of a testnet. `loss` is that of its last share; `pid` is None while it is away."""

    name: str
    tier: int
    state: str
    loss: float | None
    killed: int
    """How often a signal ended it."""
    back: int
    """How often it was restarted."""
    pid: int | None


class Clients(Message, frozen=True):
    """The state of a testnet and its clients. `progress` is the run's, as text."""

    config: str
    state: str
    progress: str
    step: int
    total: int
    clients: tuple[ClientRow, ...]


class ReportMessage(Message, frozen=True):
    """A client of a testnet reported this. `t` is in seconds since the start."""

    t: float
    name: str
    text: str


class Output(Message, frozen=True):
    """A process of a testnet printed these lines."""

    name: str
    lines: tuple[str, ...]


class End(Message, frozen=True):
    """The screen must close."""


MESSAGES = EventMessage | StatusMessage | Facts | Line | Clients | ReportMessage | Output | End


def line_of(message: MESSAGES) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def message_of(line: bytes) -> MESSAGES:
    """Return the message in a line. Raises msgspec.DecodeError."""
    message: MESSAGES = _READER.decode(line)
    return message


_READER = msgspec.json.Decoder(MESSAGES)
