"""The local files that a member's options allow it to open for a run."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from aftermath.base.local_paths import LocalPaths
from aftermath.model.steps import maker_name
from aftermath.rules.run import Run


class PathOptions(Protocol):
    """Settings that say where local files are."""

    @property
    def data_path(self) -> Path | None: ...
    @property
    def model_path(self) -> Path | None: ...
    @property
    def data_root(self) -> Path | None: ...


def paths_for(options: PathOptions, run: Run, *, on_local_network: bool) -> LocalPaths:
    """Return what may be opened for a run; `on_local_network`: all its RPC addresses are on this machine."""
    return LocalPaths(
        options.data_path,
        options.model_path,
        options.data_root,
        on_local_network=on_local_network,
        own_maker=maker_name(run.identity),
    )
