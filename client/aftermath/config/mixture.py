"""Mixtures of data sources: a JSON document, `{"shuffle": ..., "providers": [...]}`.

A provider is a data location as in a config file, or a pair of one and its weight. A mixture
contains no mixtures and no labelled data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from aftermath.base.allowed_locations import RunAccess
from aftermath.base.bounded import Malformed, json_value
from aftermath.base.errors import Unsuitable
from aftermath.config.data_sources import DataLocationChoice, DataSource, Shuffle
from aftermath.data.http import HttpClient, redacted_url
from aftermath.data.source import DataError, DataRequest, FileRecord, Source
from aftermath.data.weighted import MOST_SOURCES, WeightedSources

_MOST_DOCUMENT = 1 << 20  # bytes


@dataclass(frozen=True)
class Mixture:
    """The contents of a document, and the record that marks it."""

    sources: Sequence[DataSource]
    weights: Sequence[float] | None
    """None: by length."""
    seed: bytes | None
    """None: in order."""
    mark: FileRecord


def open_mixture(url: str, request: DataRequest) -> Source:
    """Return the mixture that a document describes. Raises what its sources raise."""
    mixture = read_mixture(url, request.access)
    # --data-path names one directory, but a mixture has several sources
    inner = replace(request, access=replace(request.access, data=None))
    return WeightedSources(
        [source.open_for_member(inner) for source in mixture.sources],
        mixture.weights,
        mark=mixture.mark,
        shuffle_seed=mixture.seed,
    )


def read_mixture(url: str, access: RunAccess) -> Mixture:
    """Fetch a mixture's document.

    Raises DataError if it is not a valid mixture, and Unsuitable if it names local files.
    """
    raw = HttpClient(permits=access.permits).read_document(url, _MOST_DOCUMENT)
    try:
        sources, weights, seed = _parsed(json_value(raw))
    except (Malformed, ValidationError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(
            f"{redacted_url(url)} is not a valid mixture: {reason}",
            "See the example in docs/models.md#mixtures",
        ) from None
    if any(source.has_labels or source.is_mixture for source in sources):
        raise DataError(
            f"{redacted_url(url)} contains a mixture or rows with labels, which a mixture cannot contain"
        )
    names_files = any(source.local_path() for source in sources)
    if names_files and access.root is None and not access.trusting:
        raise Unsuitable(
            f"{redacted_url(url)} names files on this machine, which remote documents must not do",
            "If you trust the document, allow one directory: --data-root DIR",
        )
    mark = FileRecord("mixture", len(raw), hashlib.sha256(raw).hexdigest())
    return Mixture(sources, weights, seed, mark)


def _parsed(document: Any) -> tuple[list[DataSource], list[float] | None, bytes | None]:
    """Return sources, weights and seed of a mixture's document.

    Raises ValidationError, TypeError or ValueError.
    """
    if not isinstance(document, dict):
        raise TypeError("it is not a JSON object")
    if strange := document.keys() - {"shuffle", "providers"}:
        raise ValueError(f"it has an unknown key {min(strange)!r}")
    providers = document.get("providers")
    if not isinstance(providers, list) or not 1 <= len(providers) <= MOST_SOURCES:
        raise ValueError(f"providers must be a list of 1 to {MOST_SOURCES} entries")
    pairs = [one if isinstance(one, list) else None for one in providers]
    if any(pairs) and not all(pair and len(pair) == 2 for pair in pairs):
        raise ValueError("either all providers must have weights, or none of them")
    sources = [
        DataLocationChoice.model_validate(pair[0] if pair else one).source
        for pair, one in zip(pairs, providers, strict=True)
    ]
    weights = [float(pair[1]) for pair in pairs if pair] or None
    order = Shuffle.model_validate(document.get("shuffle", "DontShuffle"))
    return sources, weights, order.seed
