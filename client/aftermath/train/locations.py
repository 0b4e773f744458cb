"""Open the data source that a run's accounts name.

The document of a mixture is JSON, `{"shuffle": ..., "providers": [...]}`. A provider is a data
location as in a config file, or a pair of one and its weight. A mixture contains no mixtures and no
labelled data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from aftermath.base.bounded import Malformed, json_value
from aftermath.base.errors import Unsuitable
from aftermath.base.files import cache_directory
from aftermath.base.run_access import TRUSTING, RunAccess, advice_to_member, any_address
from aftermath.config.read import location_of
from aftermath.config.sources import DataLocationChoice, Shuffle
from aftermath.data.cache import Cache
from aftermath.data.dummy import DummyTokens
from aftermath.data.gcs import bucket_urls, check_bucket, has_own_host
from aftermath.data.http import (
    MOST_FILES,
    HttpClient,
    HttpFiles,
    check_url,
    numbered_urls,
    redacted_url,
)
from aftermath.data.local import open_tokens
from aftermath.data.preprocessed import PreprocessedRows
from aftermath.data.remote import RemoteTokens, host_and_port
from aftermath.data.source import DataError, FileRecord, NoData, Source
from aftermath.data.tokens import TokenFiles
from aftermath.data.weighted import MOST_SOURCES, WeightedSources
from aftermath.rules.model import DataLocation
from aftermath.rules.state import DataKind

_MOST_DOCUMENT = 1 << 20  # bytes of a mixture's document


def open_source(
    location: DataLocation,
    seq_len: int,
    vocab_size: int,
    *,
    labels: bool = False,
    access: RunAccess = TRUSTING,
) -> Source:
    """Return the sequences at a place. `labels`: with what is to be learnt of them; `access`: what
    a run may reach.

    Raises DataError (SourceUnavailable if trying again may help), or Unsuitable.
    """
    if location.kind is DataKind.PREPROCESSED:
        with _advice_for(location, access):
            return PreprocessedRows(
                str(access.data_place(location.primary)), seq_len, vocab_size, labels=labels
            )
    if labels:
        raise Unsuitable(
            "the run learns labels, and its data location has none",
            'Its owner uses data_location = { Preprocessed = "DIR" }, or data_type = "Pretraining"',
        )
    opener = _Opener(seq_len, vocab_size, access)
    if location.kind is DataKind.WEIGHTED_HTTP:
        return opener.mixture(location.primary)
    return opener.source(location)


class _Opener:
    """Opens the places of one data location, which name at most MOST_FILES files behind HTTP in
    all.
    """

    def __init__(self, seq_len: int, vocab_size: int, access: RunAccess) -> None:
        self._seq_len = seq_len
        self._vocab_size = vocab_size
        self._access = access
        self._files = 0

    def source(self, location: DataLocation) -> Source:
        """Return the sequences of a place that is not a mixture and has no labels."""
        seq_len, vocab_size, access = self._seq_len, self._vocab_size, self._access
        if location.kind is DataKind.DUMMY:
            return DummyTokens(seq_len, vocab_size)
        if location.kind is DataKind.SERVER:
            return RemoteTokens(location.primary, seq_len, vocab_size, permits=access.permits)
        seed = location.shuffle_seed if location.shuffle else None
        if location.kind is DataKind.LOCAL:
            place = access.data_place(location.primary)
            with _advice_for(location, access):
                return open_tokens(
                    str(place),
                    location.token_bytes,
                    seq_len,
                    vocab_size=vocab_size,
                    shuffle_seed=seed,
                )
        # The buckets' host is Google's, or one that this machine's user names.
        own_host = location.kind is DataKind.HTTP_GCP and has_own_host()
        client = HttpClient(permits=any_address if own_host else access.permits)
        urls = self._counted(_urls(location, client), location)
        files = HttpFiles(urls, client, Cache(cache_directory("data")))
        where = name_of(location, access)
        return TokenFiles(
            files, where, location.token_bytes, seq_len, vocab_size=vocab_size, shuffle_seed=seed
        )

    def mixture(self, url: str) -> Source:
        """Return the mixture that a document describes, which may name nothing that the run itself
        may not.
        """
        mixed = _mixed(url, self._access)
        # --data-path is one place, and a mixture has several
        self._access = replace(self._access, data=None)
        sources = [self.source(location) for location in mixed.places]
        return WeightedSources(sources, mixed.weights, mark=mixed.mark, shuffle_seed=mixed.seed)

    def _counted(self, urls: list[str], location: DataLocation) -> list[str]:
        self._files += len(urls)
        if self._files > MOST_FILES:
            raise DataError(
                f"a mixture names more than {MOST_FILES} files, with {redacted_url(location.primary)}",
                "Leave some out, or put more tokens into each file",
            )
        return urls


@contextmanager
def _advice_for(location: DataLocation, access: RunAccess) -> Iterator[None]:
    """Give a member another fix for missing data than an owner, since only the owner can make the
    run's files.
    """
    try:
        yield
    except NoData as error:
        if access.trusting:
            raise
        raise NoData(error.message, advice_to_member("data", location.primary)) from None


def name_of(location: DataLocation, access: RunAccess) -> str:
    """Return what errors call a data location: the path on this machine, or an address without
    secrets.
    """
    if location.kind in (DataKind.LOCAL, DataKind.PREPROCESSED):
        return str(access.data_place(location.primary))
    if "://" in location.primary:
        return redacted_url(location.primary)
    return location.primary


def check_place(location: DataLocation) -> None:
    """Raises DataError for what is no place of its kind, as far as that is known without going
    there.
    """
    if location.kind is DataKind.SERVER:
        host_and_port(location.primary)
    elif location.kind is DataKind.HTTP_GCP:
        check_bucket(location.primary)
    elif location.kind is DataKind.HTTP_NUMBERED_FILES:
        check_url(numbered_urls(location.primary, location.start_index, location.pad_zeros, 1)[0])
    elif location.kind in (DataKind.HTTP_SINGLE_URL, DataKind.WEIGHTED_HTTP):
        check_url(location.primary)


def _urls(location: DataLocation, client: HttpClient) -> list[str]:
    if location.kind is DataKind.HTTP_GCP:
        return bucket_urls(location.primary, location.folder, client)
    if location.kind is DataKind.HTTP_NUMBERED_FILES:
        return numbered_urls(
            location.primary, location.start_index, location.pad_zeros, location.num_files
        )
    return [location.primary]


def mixed_places(url: str, access: RunAccess) -> list[DataLocation]:
    """Return the places that a mixture's document names. Raises DataError, Unsuitable."""
    return _mixed(url, access).places


@dataclass(frozen=True)
class _Mixed:
    """What a mixture's document says, and what marks it. Weights None: by length; seed None: in
    order.
    """

    places: list[DataLocation]
    weights: list[float] | None
    seed: bytes | None
    mark: FileRecord


def _mixed(url: str, access: RunAccess) -> _Mixed:
    """Fetch a mixture's document. Raises DataError for what is not one, Unsuitable for one that
    names local files.
    """
    raw = HttpClient(permits=access.permits).read_document(url, _MOST_DOCUMENT)
    try:
        places, weights, seed = _described(json_value(raw))
    except (Malformed, ValidationError, TypeError, ValueError, KeyError) as error:
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(
            f"{redacted_url(url)} describes no mixture: {said}",
            "docs/models.md#mixtures has an example",
        ) from None
    if any(place.kind in (DataKind.WEIGHTED_HTTP, DataKind.PREPROCESSED) for place in places):
        raise DataError(
            f"{redacted_url(url)} mixes what cannot be mixed: mixtures, or rows with labels"
        )
    if (
        access.root is None
        and not access.trusting
        and any(place.kind is DataKind.LOCAL for place in places)
    ):
        raise Unsuitable(
            f"{redacted_url(url)} names files of this machine, which a document may not",
            "Say below which directory they are: --data-root DIR",
        )
    return _Mixed(
        places, weights, seed, FileRecord("mixture", len(raw), hashlib.sha256(raw).hexdigest())
    )


def _described(document: Any) -> tuple[list[DataLocation], list[float] | None, bytes | None]:
    """Locations, weights and seed of a mixture's document. Raises ValidationError, TypeError,
    ValueError, KeyError.
    """
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
        location_of(DataLocationChoice.model_validate(pair[0] if pair else one))
        for pair, one in zip(pairs, given, strict=True)
    ]
    weights = [float(pair[1]) for pair in pairs if pair] or None
    order = Shuffle.model_validate(document.get("shuffle", "DontShuffle")).to_chain()
    return places, weights, order["shuffle_seed"] if order["shuffle"] else None
