"""Limit what a run may read and contact to a member's options, and list the files and addresses.

The list has no peers, relays and RPC nodes, because the member's own options name them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from aftermath.base.allowed_locations import RunAccess
from aftermath.base.errors import AftermathError
from aftermath.base.text import is_repository
from aftermath.config.chain_values import source_of
from aftermath.config.data_sources import DataSource
from aftermath.model.saved_checkpoints import maker_name
from aftermath.rules.model import Checkpoint, Model
from aftermath.rules.run import Run
from aftermath.rules.state import CheckpointKind


class AccessChoice(Protocol):
    """The options that limit the files and addresses that a run may use."""

    @property
    def data_path(self) -> Path | None: ...
    @property
    def model_path(self) -> Path | None: ...
    @property
    def data_root(self) -> Path | None: ...
    @property
    def allow_private_network(self) -> bool: ...
    @property
    def token_repositories(self) -> tuple[str, ...]: ...


def access_for(options: AccessChoice, run: Run, *, on_local_network: bool) -> RunAccess:
    """Return the files and addresses that a run may use.

    `on_local_network` is `RpcPool.is_local`.
    """
    return RunAccess(
        options.data_path,
        options.model_path,
        options.data_root,
        on_local_network=on_local_network,
        own_maker=maker_name(run.identity),
        private_network=options.allow_private_network or on_local_network,
        token_repositories=options.token_repositories,
    )


@dataclass(frozen=True)
class AccessReport:
    """The files and addresses that a member uses for a run, with their purpose.

    Files and addresses that the member refuses are not listed.
    """

    files: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return one line for each file and address."""
        return [
            *(f"reads {place}" for place in self.files),
            *(f"contacts {place}" for place in self.addresses),
        ]


def access_report(model: Model, access: RunAccess) -> AccessReport:
    """Return the files and addresses of a run. Downloads the document if the data is a mixture."""
    report = AccessReport()
    source = source_of(model.data_location)
    sources: Sequence[DataSource] = [source]
    data_access = access
    if source.is_mixture:
        report.addresses.extend(f"{one} (the document of the data)" for one in source.addresses())
        # --data-path names one directory, but a mixture has several sources
        data_access = replace(access, data=None)
        try:
            sources = source.members_of(access)
        except AftermathError:  # opening the data later raises the same error
            sources = []
    for checkpoint in dict.fromkeys(one.checkpoint for one in model.recorded if one.exists):
        _add_checkpoint(report, checkpoint, access)
    for one in sources:
        _add_data(report, one, data_access)
    return report


def _add_checkpoint(report: AccessReport, checkpoint: Checkpoint, access: RunAccess) -> None:
    if checkpoint.kind is not CheckpointKind.HUB:
        try:
            report.files.append(f"{access.model_place(checkpoint.repo)} (model)")
            return
        except AftermathError:
            if checkpoint.kind is not CheckpointKind.DUMMY:
                return
    if not is_repository(checkpoint.repo):  # no member downloads it
        return
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    token = (
        "without a token"
        if access.hub_token(checkpoint.repo) is False
        else "with this machine's token"
    )
    report.addresses.append(f"{hub}/{checkpoint.repo} (model, {token})")


def _add_data(report: AccessReport, source: DataSource, access: RunAccess) -> None:
    if path := source.local_path():
        try:
            report.files.append(f"{access.data_place(path)} (data)")
        except AftermathError:
            return
    report.addresses.extend(f"{address} (data)" for address in source.addresses())
