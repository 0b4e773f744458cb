"""From the data location of a run's accounts to the source that reads it."""

from __future__ import annotations

from aftermath.base.errors import Unsuitable
from aftermath.data.bucket import bucket_urls
from aftermath.data.cache import Cache, default_folder
from aftermath.data.dummy import DummyTokens
from aftermath.data.http import HttpClient, HttpFiles, numbered, shown
from aftermath.data.local import open_tokens
from aftermath.data.remote import RemoteTokens
from aftermath.data.source import Source
from aftermath.data.tokens import TokenFiles
from aftermath.rules.accounts import DataLocation
from aftermath.rules.state import DataKind


def open_source(location: DataLocation, seq_len: int, vocab_size: int) -> Source:
    """The sequences at a place. Raises DataError (SourceAway if trying again may help), or Unsuitable."""
    seed = location.shuffle_seed if location.shuffle else None
    if location.kind is DataKind.DUMMY:
        return DummyTokens(seq_len, vocab_size)
    if location.kind is DataKind.LOCAL:
        return open_tokens(location.primary, location.token_bytes, seq_len, vocab_size=vocab_size, shuffle_seed=seed)
    if location.kind in (DataKind.HTTP_SINGLE_URL, DataKind.HTTP_NUMBERED_FILES, DataKind.HTTP_GCP):
        client = HttpClient()
        files, place = HttpFiles(_urls(location, client), client, Cache(default_folder())), shown(location.primary)
        return TokenFiles(files, place, location.token_bytes, seq_len, vocab_size=vocab_size, shuffle_seed=seed)
    if location.kind is DataKind.SERVER:
        return RemoteTokens(location.primary, seq_len, vocab_size)
    kind = location.kind.name.title().replace("_", "")  # as a config file says it
    raise Unsuitable(f"the run's data is at a {kind} location, which this client cannot read yet")


def _urls(location: DataLocation, client: HttpClient) -> list[str]:
    if location.kind is DataKind.HTTP_GCP:
        return bucket_urls(location.primary, location.secondary, client)
    if location.kind is DataKind.HTTP_NUMBERED_FILES:
        return numbered(location.primary, location.start_index, location.pad_zeros, location.num_files)
    return [location.primary]
