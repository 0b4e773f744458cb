"""Name the local files that a run has a member read, and the addresses that the member contacts for
it.

Peers, relays and RPC nodes are left out: the member's own options name them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from aftermath.base.allowed_places import RunAccess
from aftermath.base.errors import AftermathError
from aftermath.base.text import is_repository
from aftermath.config.read import source_of
from aftermath.config.sources import DataSource
from aftermath.rules.model import Checkpoint, Model
from aftermath.rules.state import CheckpointKind


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
    source = source_of(model.data_location)
    sources: Sequence[DataSource] = [source]
    data_access = access
    if source.is_mixture:
        found.addresses.extend(f"{one} (the document of the data)" for one in source.addresses())
        # --data-path is one place, and a mixture has several
        data_access = replace(access, data=None)
        try:
            sources = source.members_of(access)
        except AftermathError:  # opening the data says what is wrong with it
            sources = []
    for checkpoint in dict.fromkeys(one.checkpoint for one in model.recorded if one.exists):
        _add_checkpoint(found, checkpoint, access)
    for one in sources:
        _add_data(found, one, data_access)
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


def _add_data(found: Reached, source: DataSource, access: RunAccess) -> None:
    if path := source.local_path():
        try:
            found.files.append(f"{access.data_place(path)} (data)")
        except AftermathError:
            return
    found.addresses.extend(f"{address} (data)" for address in source.addresses())
