"""The cooldown statements in the Witnesses account, which members never read."""

from __future__ import annotations

from aftermath.chain import views
from aftermath.rules.limits import MAX_LEVELS
from aftermath.rules.run import MAX_WITNESSES

_HASH_BYTES = 32


def stated_in(witnesses: bytes) -> tuple[dict[int, bytes], ...]:
    """Return each level committee's statements, by position (`committee.cooldown_electees`)."""
    start = views.witnesses_account().offset("cooldown")
    hashes = [
        witnesses[at : at + _HASH_BYTES]
        for at in range(start, start + MAX_LEVELS * MAX_WITNESSES * _HASH_BYTES, _HASH_BYTES)
    ]
    levels = [
        hashes[MAX_WITNESSES * level : MAX_WITNESSES * (level + 1)] for level in range(MAX_LEVELS)
    ]
    return tuple(
        {place: digest for place, digest in enumerate(stated) if any(digest)} for stated in levels
    )
