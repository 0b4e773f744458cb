"""Convert a member's options to the files and addresses that a run may use."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from aftermath.base.allowed_places import RunAccess
from aftermath.model.saved_checkpoints import maker_name
from aftermath.rules.run import Run


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
