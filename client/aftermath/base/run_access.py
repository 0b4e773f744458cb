"""What a member lets a run reach: local files, its private network, and repositories that its Hub token can read.

A path that comes from the chain, a peer or a document is a label: without this, a run's owner could name any file of a
member, and read it back from the results that the member sends. The member says where its data and model are. Without
that, only directories that this software made itself are opened (`outputs.MARK`), and only for a run on a network of
this machine, or if this same run made them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from aftermath.base.addresses import Permits, any_address, is_public
from aftermath.base.errors import Unsuitable
from aftermath.base.outputs import maker_of


@dataclass(frozen=True)
class RunAccess:
    """What a member allows. `trusting` allows everything, for places that the user wrote."""

    data: Path | None = None
    model: Path | None = None
    root: Path | None = None
    on_local_network: bool = False
    own_maker: str | None = None
    """The mark of directories that members of this very run wrote."""
    private_network: bool = False
    """Whether data may be at addresses of this machine and of private networks."""
    token_repositories: tuple[str, ...] = ()
    """Hub repositories that are read with the member's token."""
    trusting: bool = False

    @property
    def permits(self) -> Permits:
        """The IP addresses that data may be read from."""
        return any_address if self.trusting or self.private_network else is_public

    def hub_token(self, repository: str) -> Literal[False] | None:
        """Return the token to read a repository with: None for the one that the machine has, False for none.

        A run's owner may name any repository. With the token it could name one that only this member can read, and
        have the member serve its weights to others.
        """
        return None if self.trusting or repository in self.token_repositories else False

    def data_place(self, label: str) -> Path:
        """Return the path to open for a data location. Raises Unsuitable."""
        return self._place(label, self.data, "data", "--data-path")

    def model_place(self, label: str) -> Path:
        """Return the directory to open for a checkpoint. Raises Unsuitable."""
        return self._place(label, self.model, "model", "--model-path")

    def _place(self, label: str, chosen: Path | None, what: str, option: str) -> Path:
        place = _absolute(label)
        made_by = _maker(place) if place is not None else None
        if place is not None and (self.trusting or (made_by is not None and made_by == self.own_maker)):
            return place
        if chosen is not None:
            return chosen.expanduser().absolute()
        if self.root is not None:
            below = _below(self.root, label)
            if below is not None:
                return below
        elif place is not None and self.on_local_network and (made_by is not None or not os.path.exists(place)):
            return place  # a missing path reveals nothing, and its reader reports it
        raise Unsuitable(
            f"the run names {label} for its {what}: paths that a run names are not opened on this machine",
            f"Say where you have it: {option} DIR, or --data-root DIR for the directory that {label} is in",
        )


def advice_to_member(what: Literal["data", "model"], label: str) -> str:
    """Return the fix for a member that lacks a run's local files: it cannot make them itself."""
    return (
        f"Get the run's {what} from its owner and pass --{what}-path DIR, or start this command in the directory that "
        f"holds {label}"
    )


def _absolute(label: str) -> Path | None:
    """Return the absolute path of a label, or None if it is not a valid path."""
    try:
        place = Path(label).expanduser().absolute()
        place.resolve()
    except (OSError, RuntimeError, ValueError):  # no user of that name, or no file name at all
        return None
    return place


def _maker(place: Path) -> str | None:
    """Return the mark of a directory, or of the directory that holds a file, with links resolved."""
    real = place.resolve()
    try:
        return maker_of(real if os.path.isdir(real) else real.parent)
    except OSError:  # in a directory that this user may not search, or a name that is too long
        return None


def _below(root: Path, label: str) -> Path | None:
    """Return the path of a label below `root`, or None if it leads out of it or to a hidden file."""
    root = root.expanduser().resolve()
    parts = [part for part in PurePosixPath(label).parts if part not in ("/", "~", ".")]
    try:
        place = root.joinpath(*parts).resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    hidden = any(part.startswith(".") for part in parts)  # `..` too; keys and settings lie in hidden files
    return place if parts and not hidden and place.is_relative_to(root) else None


TRUSTING = RunAccess(trusting=True)
"""For places that the user wrote, in a config file or an option."""
