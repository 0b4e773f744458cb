"""Events for tests: fields that the test does not set are zero or empty."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, get_args, get_origin

import msgspec

from aftermath.events.event_types import MEMBER_EVENTS, Event

KINDS: dict[str, type[Event]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(MEMBER_EVENTS)
}


def sample_event(kind: str, **values: Any) -> Event:
    """Return an event of this kind. Fail for a field that it does not have."""
    event_type = KINDS[kind]
    fields = msgspec.structs.fields(event_type)
    assert values.keys() <= {field.name for field in fields}, f"{kind} has no {values.keys()}"
    blank = {field.name: _blank(field.type) for field in fields if field.required}
    return msgspec.convert({"kind": kind, **blank, **values}, event_type)


def _blank(kind: Any) -> Any:
    if get_origin(kind) is UnionType:
        return None
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    return (get_origin(kind) or kind)()
