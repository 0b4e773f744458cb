"""From the data location of a run's accounts to the source that reads it.

Decided: a mixture's document is JSON, `{"shuffle": ..., "providers": [...]}`; each provider is a data location as a
config file's, or a pair of one and its weight. A mixture holds no mixtures, and nothing with labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, assert_never

from pydantic import ValidationError

from aftermath.base.bounded import Malformed, json_value
from aftermath.base.directories import cache_directory
from aftermath.base.errors import Unsuitable
from aftermath.base.local_paths import TRUSTING, LocalPaths
from aftermath.config.read import location_of
from aftermath.config.sources import DataLocation as Chosen
from aftermath.config.sources import Shuffle
from aftermath.data.cache import Cache
from aftermath.data.dummy import DummyTokens
from aftermath.data.gcs import bucket_urls, check_bucket
from aftermath.data.http import HttpClient, HttpFiles, check_url, numbered, shown
from aftermath.data.local import open_tokens
from aftermath.data.preprocessed import PreprocessedRows
from aftermath.data.remote import RemoteTokens, host_and_port
from aftermath.data.source import DataError, FileRecord, NoData, Source
from aftermath.data.tokens import TokenFiles
from aftermath.data.weighted import MOST_SOURCES, WeightedSources
from aftermath.rules.model import DataLocation
from aftermath.rules.state import DataKind

_MEMBERS_FIX = "Get the run's token files from its owner, and say where they are: --data-path DIR"
_MOST_DOCUMENT = 1 << 20  # bytes of a mixture's document


def open_source(
    location: DataLocation, seq_len: int, vocab_size: int, *, labels: bool = False, paths: LocalPaths = TRUSTING
) -> Source:
    """The sequences at a place, `labels`: with what is to be learnt of them; `paths` says which local files are opened.

    Raises DataError (SourceAway if trying again may help), or Unsuitable.
    """
    if location.kind is DataKind.PREPROCESSED:
        with _advice_for(paths):
            return PreprocessedRows(str(paths.data_place(location.primary)), seq_len, vocab_size, labels=labels)
    if labels:
        raise Unsuitable(
            "the run learns labels, and its data location has none",
            'Its owner uses data_location = { Preprocessed = "DIR" }, or data_type = "Pretraining"',
        )
    if location.kind is DataKind.WEIGHTED_HTTP:
        return _mixture(location.primary, seq_len, vocab_size, paths)
    if location.kind is DataKind.DUMMY:
        return DummyTokens(seq_len, vocab_size)
    if location.kind is DataKind.SERVER:
        return RemoteTokens(location.primary, seq_len, vocab_size)
    seed = location.shuffle_seed if location.shuffle else None
    if location.kind is DataKind.LOCAL:
        place = paths.data_place(location.primary)
        with _advice_for(paths):
            return open_tokens(str(place), location.token_bytes, seq_len, vocab_size=vocab_size, shuffle_seed=seed)
    if location.kind not in (DataKind.HTTP_SINGLE_URL, DataKind.HTTP_NUMBERED_FILES, DataKind.HTTP_GCP):
        assert_never(location.kind)
    client = HttpClient()
    files = HttpFiles(_urls(location, client), client, Cache(cache_directory("data")))
    where = name_of(location, paths)
    return TokenFiles(files, where, location.token_bytes, seq_len, vocab_size=vocab_size, shuffle_seed=seed)


@contextmanager
def _advice_for(paths: LocalPaths) -> Iterator[None]:
    """Give a member another fix for missing data than an owner, since only the owner can make the run's files."""
    try:
        yield
    except NoData as error:
        if paths.trusting:
            raise
        raise NoData(error.message, _MEMBERS_FIX) from None


def name_of(location: DataLocation, paths: LocalPaths) -> str:
    """Return what errors call a data location: the path on this machine, or an address without secrets."""
    if location.kind in (DataKind.LOCAL, DataKind.PREPROCESSED):
        return str(paths.data_place(location.primary))
    if "://" in location.primary:
        return shown(location.primary)
    return location.primary


def check_place(location: DataLocation) -> None:
    """Raises DataError for what is no place of its kind, as far as that is known without going there."""
    if location.kind is DataKind.SERVER:
        host_and_port(location.primary)
    elif location.kind is DataKind.HTTP_GCP:
        check_bucket(location.primary)
    elif location.kind is DataKind.HTTP_NUMBERED_FILES:
        check_url(numbered(location.primary, location.start_index, location.pad_zeros, 1)[0])
    elif location.kind in (DataKind.HTTP_SINGLE_URL, DataKind.WEIGHTED_HTTP):
        check_url(location.primary)


def _urls(location: DataLocation, client: HttpClient) -> list[str]:
    if location.kind is DataKind.HTTP_GCP:
        return bucket_urls(location.primary, location.folder, client)
    if location.kind is DataKind.HTTP_NUMBERED_FILES:
        return numbered(location.primary, location.start_index, location.pad_zeros, location.num_files)
    return [location.primary]


def _mixture(url: str, seq_len: int, vocab_size: int, paths: LocalPaths) -> Source:
    raw = HttpClient().document(url, _MOST_DOCUMENT)
    try:
        chosen, weights, seed = _described(json_value(raw))
    except (Malformed, ValidationError, TypeError, ValueError, KeyError) as error:
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(f"{shown(url)} describes no mixture: {said}", "docs/data.md has an example") from None
    if any(location.kind in (DataKind.WEIGHTED_HTTP, DataKind.PREPROCESSED) for location in chosen):
        raise DataError(f"{shown(url)} mixes what cannot be mixed: mixtures, or rows with labels")
    if paths.root is None and not paths.trusting and any(location.kind is DataKind.LOCAL for location in chosen):
        raise Unsuitable(
            f"{shown(url)} names files of this machine, which a document may not",
            "Say below which directory they are: --data-root DIR",
        )
    below = replace(paths, data=None)  # --data-path is one place, and a mixture has several
    sources = [open_source(location, seq_len, vocab_size, paths=below) for location in chosen]
    mark = FileRecord("mixture", len(raw), hashlib.sha256(raw).hexdigest())
    return WeightedSources(sources, weights, mark=mark, shuffle_seed=seed)


def _described(document: Any) -> tuple[list[DataLocation], list[float] | None, bytes | None]:
    """Locations, weights and seed of a mixture's document. Raises ValidationError, TypeError, ValueError, KeyError."""
    if not isinstance(document, dict):
        raise TypeError("it is no JSON object")
    if strange := document.keys() - {"shuffle", "providers"}:
        raise ValueError(f"it has an unknown key {min(strange)!r}")
    given = document["providers"]
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_SOURCES:
        raise ValueError(f"providers is a list of 1 to {MOST_SOURCES}")
    pairs = [one if isinstance(one, list) else None for one in given]
    if any(pairs) and not all(pair and len(pair) == 2 for pair in pairs):
        raise ValueError("either every provider is a pair with its weight, or none")
    places = [
        location_of(Chosen.model_validate(pair[0] if pair else one)) for pair, one in zip(pairs, given, strict=True)
    ]
    weights = [float(pair[1]) for pair in pairs if pair] or None
    order = Shuffle.model_validate(document.get("shuffle", "DontShuffle")).to_chain()
    return places, weights, order["shuffle_seed"] if order["shuffle"] else None
