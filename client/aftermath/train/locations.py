"""Open the data source that a run's accounts name."""

from __future__ import annotations

from aftermath.base.allowed_locations import TRUSTING, RunAccess
from aftermath.base.errors import Unsuitable
from aftermath.config.chain_values import source_of
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
    """Open the data at a location. `labels` also reads the labels of finetuning data.

    `access` has the files and addresses that the run may use. Raises Unsuitable or DataError, which
    is SourceUnavailable if a retry may help.
    """
    source = source_of(location)
    if labels and not source.has_labels:
        raise Unsuitable(
            "the run trains on labels, but its data location has none",
            'Ask its owner to set data_location = { Preprocessed = "DIR" }, or data_type = "Pretraining"',
        )
    request = DataRequest(seq_len, vocab_size, labels=labels, access=access)
    return source.open_for_member(request)


def name_of(location: DataLocation, access: RunAccess) -> str:
    """Return what errors call a data location: the path on this machine, or an address without
    secrets.
    """
    return source_of(location).label(access)


def check_place(location: DataLocation) -> None:
    """Raise DataError if a location is not valid. Opens no file and no connection."""
    source_of(location).check()
