"""Open the data source that a run's accounts name."""

from __future__ import annotations

from aftermath.base.allowed_places import TRUSTING, RunAccess
from aftermath.base.errors import Unsuitable
from aftermath.config.read import source_of
from aftermath.data.source import DataRequest, Source
from aftermath.rules.model import DataLocation


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
    source = source_of(location)
    if labels and not source.has_labels:
        raise Unsuitable(
            "the run learns labels, and its data location has none",
            'Its owner uses data_location = { Preprocessed = "DIR" }, or data_type = "Pretraining"',
        )
    request = DataRequest(seq_len, vocab_size, labels=labels, access=access)
    return source.open_for_member(request)


def name_of(location: DataLocation, access: RunAccess) -> str:
    """Return what errors call a data location: the path on this machine, or an address without
    secrets.
    """
    return source_of(location).label(access)


def check_place(location: DataLocation) -> None:
    """Raises DataError for what is no place of its kind, as far as that is known without going
    there.
    """
    source_of(location).check()
