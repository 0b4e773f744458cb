"""What a process tells its screen, as lines of JSON.

Decided: everything is told, nothing is asked: a screen that hangs, or whose terminal does, keeps nobody waiting.
"""

from __future__ import annotations

import msgspec

from aftermath.events.event_types import MEMBER_EVENTS
from aftermath.events.status import Standing

TABS = ("Run", "Members", "Training", "Network", "Chain", "Log")


class Message(msgspec.Struct, frozen=True, tag_field="is", tag=str.lower):
    """One of those below."""


class Told(Message, frozen=True):
    """A member told this."""

    event: MEMBER_EVENTS


class Stands(Message, frozen=True):
    """The run's status. `here`: the connected identities, if known."""

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


class ClientRow(msgspec.Struct, frozen=True):
    """One process of a testnet that takes part. `loss`: of its last share; `pid`: None while it is away."""

    name: str
    tier: int
    state: str
    loss: float | None
    killed: int
    """How often a signal has ended it."""
    back: int
    """How often it was started again."""
    pid: int | None


class Clients(Message, frozen=True):
    """A testnet and its clients stand like this. `progress`: how far the run is, in words."""

    config: str
    state: str
    progress: str
    step: int
    total: int
    clients: tuple[ClientRow, ...]


class Said(Message, frozen=True):
    """A client of a testnet told this; `t` in seconds since the start."""

    t: float
    name: str
    text: str


class Output(Message, frozen=True):
    """A process of a testnet printed these lines."""

    name: str
    lines: tuple[str, ...]


class End(Message, frozen=True):
    """It is over: the screen closes."""


MESSAGES = Told | Stands | Facts | Line | Clients | Said | Output | End


def line_of(message: MESSAGES) -> bytes:
    """A message as a line."""
    return msgspec.json.encode(message) + b"\n"


def message_of(line: bytes) -> MESSAGES:
    """The message of a line. Raises msgspec.DecodeError."""
    message: MESSAGES = _READER.decode(line)
    return message


_READER = msgspec.json.Decoder(MESSAGES)
