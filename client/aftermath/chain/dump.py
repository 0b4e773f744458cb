"""Account views as JSON, for `json-dump-run`, `json-dump-user` and other commands.

Scripts can read them without our code: keys are base58, peer ids and hashes are hex, states are
lower-case names, and bitmaps are lists of seats. Numbers that the optimizer does not use are
omitted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from solders.pubkey import Pubkey

from aftermath.config.chain_values import NO_SPEC, source_of
from aftermath.config.data_sources import DataLocationChoice
from aftermath.rules.bitmap import seats
from aftermath.rules.members import Members, Seat
from aftermath.rules.model import DataLocation, Model
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.run import Run
from aftermath.rules.state import DataKind

KEYS = {
    "main_authority",
    "join_authority",
    "signer",
    "grantor",
    "grantee",
    "run",
    "wallet",
    "sponsor",
}
BITMAPS = {"roster", "attested", "finishers"}
MASKS = {"levels_attested", "levels_lost"}
_OF_SPEC = {"spec_hash", "spec_error"}
"""Fields that stay readable when the training spec is not."""


def plain(value: object, name: str = "") -> Any:
    """Convert a view, or the field `name` of one, to JSON types."""
    if isinstance(value, Optimizer):
        return value.values()
    if isinstance(value, DataLocation):
        return _location(value)
    if is_dataclass(value) and not isinstance(value, type):
        left_out = _unreadable(value)
        return {
            field.name: plain(getattr(value, field.name), field.name)
            for field in fields(value)
            if field.name not in left_out
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item, name) for item in value]
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, bytes):
        return str(Pubkey.from_bytes(value)) if name in KEYS else value.hex()
    if name in BITMAPS | MASKS and isinstance(value, int):
        return list(seats(value))
    return value


def _location(location: DataLocation) -> dict[str, Any]:
    if location.kind is DataKind.OTHER:
        keys = source_of(location).model_dump(exclude_none=True)
        name = DataLocationChoice.name_of(source_of(location))
        return {"kind": name, **keys, "secondary": location.secondary}
    names = [field.name for field in fields(location) if field.name != "source"]
    return {name: plain(getattr(location, name), name) for name in names}


def _unreadable(value: object) -> Collection[str]:
    """Return the fields that mean nothing: those from a training spec that was not read."""
    return NO_SPEC.keys() - _OF_SPEC if isinstance(value, Model) and value.spec_error else ()


def member(index: int, seat: Seat) -> dict[str, Any]:
    """Return a member's seat and its number as JSON types."""
    return {"seat": index, **plain(seat)}


def whole_run(run: Run, model: Model, members: Members) -> dict[str, Any]:
    """Return the run, the model and the used seats as JSON types."""
    return {
        "run": plain(run),
        "model": plain(model),
        "members": {
            "epoch": members.epoch,
            "seats": [member(index, seat) for index, seat in enumerate(members.seats) if seat.used],
        },
    }
