"""From the data location of a run's accounts to the source that reads it."""

from __future__ import annotations

from aftermath.base.errors import Unsuitable
from aftermath.data.dummy import DummyTokens
from aftermath.data.local import open_tokens
from aftermath.data.source import Source
from aftermath.rules.accounts import DataLocation
from aftermath.rules.state import DataKind


def open_source(location: DataLocation, seq_len: int, vocab_size: int) -> Source:
    """The sequences at a place. Raises DataError (SourceAway if trying again may help), or Unsuitable."""
    seed = location.shuffle_seed if location.shuffle else None
    if location.kind is DataKind.DUMMY:
        return DummyTokens(seq_len, vocab_size)
    if location.kind is DataKind.LOCAL:
        return open_tokens(location.primary, location.token_bytes, seq_len, vocab_size=vocab_size, shuffle_seed=seed)
    kind = location.kind.name.title().replace("_", "")  # as a config file says it
    raise Unsuitable(
        f"the run's data is at a {kind} location, which this client cannot read yet",
        "this client reads Local data: token files in a directory of every member",
    )
