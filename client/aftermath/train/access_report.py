"""Name the local files that a run has a member read, and the addresses that the member contacts for
it.

Peers, relays and RPC nodes are left out: the member's own options name them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from aftermath.base.errors import AftermathError
from aftermath.base.run_access import RunAccess
from aftermath.base.text import is_repository
from aftermath.data.gcs import bucket_address
from aftermath.data.http import redacted_url
from aftermath.rules.model import Checkpoint, DataLocation, Model
from aftermath.rules.state import CheckpointKind, DataKind
from aftermath.train.locations import mixed_places

_LOCAL = (DataKind.LOCAL, DataKind.PREPROCESSED)


@dataclass(frozen=True)
class Reached:
    """What a member reads and contacts for a run, each with what it is for. A place that is refused
    is left out.
    """

    files: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return a line for each."""
        return [
            *(f"reads {one}" for one in self.files),
            *(f"contacts {one}" for one in self.addresses),
        ]


def reached_by(model: Model, access: RunAccess) -> Reached:
    """Return what a member reads and contacts for a run. The document of a mixture is fetched for
    it.
    """
    found = Reached()
    places = [model.data_location]
    data_access = access
    if model.data_location.kind is DataKind.WEIGHTED_HTTP:
        found.addresses.append(
            f"{redacted_url(model.data_location.primary)} (the document of the data)"
        )
        try:
            places = mixed_places(model.data_location.primary, access)
            # --data-path is one place, and a mixture has several
            data_access = replace(access, data=None)
        except AftermathError:  # opening the data says what is wrong with it
            places = []
    for checkpoint in dict.fromkeys(one.checkpoint for one in model.recorded if one.exists):
        _add_checkpoint(found, checkpoint, access)
    for place in places:
        _add_data(found, place, data_access)
    return found


def _add_checkpoint(found: Reached, checkpoint: Checkpoint, access: RunAccess) -> None:
    if checkpoint.kind is not CheckpointKind.HUB:
        try:
            found.files.append(f"{access.model_place(checkpoint.repo)} (model)")
            return
        except AftermathError:
            if checkpoint.kind is not CheckpointKind.DUMMY:
                return
    if not is_repository(checkpoint.repo):  # no member asks anybody for it
        return
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    token = (
        "without a token"
        if access.hub_token(checkpoint.repo) is False
        else "with this machine's token"
    )
    found.addresses.append(f"{hub}/{checkpoint.repo} (model, {token})")


def _add_data(found: Reached, place: DataLocation, access: RunAccess) -> None:
    if place.kind in _LOCAL:
        try:
            found.files.append(f"{access.data_place(place.primary)} (data)")
        except AftermathError:
            return
    found.addresses.extend(f"{address} (data)" for address in _addresses(place))


def _addresses(place: DataLocation) -> Iterator[str]:
    if place.kind is DataKind.HTTP_SINGLE_URL:
        yield redacted_url(place.primary)
    elif place.kind is DataKind.HTTP_NUMBERED_FILES:
        yield f"{redacted_url(place.primary)}, {place.num_files} files"
    elif place.kind is DataKind.HTTP_GCP:
        yield bucket_address(place.primary)
    elif place.kind is DataKind.SERVER:
        yield place.primary
