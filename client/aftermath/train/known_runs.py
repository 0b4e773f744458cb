"""Remember which run a run id means to this user: its owner and its creation slot.

A run id is free again once its owner closes the run, and another wallet may create a run with it. A
member joins the run that it joined first, until the user names the owner of another one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from solders.pubkey import Pubkey

from aftermath.base.bounded import Malformed, json_as
from aftermath.base.errors import Unsuitable
from aftermath.base.files import replacing, space_or
from aftermath.rules.run import Run

_MOST_BYTES = 4096


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run_id: str
    owner: str
    created: int


class KnownRuns:
    """The runs that this user's members joined on one cluster and program, one file each."""

    def __init__(self, directory: Path, *, cluster: str, program: str) -> None:
        self._directory = directory
        self._network = (cluster, program)

    def check(self, run: Run, owner: str | None) -> None:
        """Raise Unsuitable if `run` does not belong to `owner`.

        If `owner` is None, raise it if this user joined another run of this id before.
        """
        actual = _identified(run)
        if owner is not None:
            if owner != actual.owner:
                raise Unsuitable(
                    f"run {run.run_id} belongs to {actual.owner}, not to --owner {owner}",
                    "Ask the person who gave you the run id for the owner's key",
                )
            return
        known = self._read(run.run_id)
        if known is None or known == actual:
            return
        owner_text = (
            "by the same owner"
            if known.owner == actual.owner
            else f"by another owner, {actual.owner}"
        )
        raise Unsuitable(
            f"run {run.run_id} is not the run that you joined: that run was closed, and this one "
            f"was created {owner_text}",
            f"To join the new run, pass --owner {actual.owner}",
        )

    def remember(self, run: Run) -> None:
        """Record `run` as the known run of its id. Raises Unsuitable if writing fails."""
        file = self._file(run.run_id)
        record = msgspec.json.encode(_identified(run))
        try:
            if file.exists() and file.read_bytes() == record:
                return
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(
                file, shared=True
            ) as stream:  # several members of one user may start at once
                stream.write(record)
        except OSError as error:
            raise Unsuitable(
                f"cannot record the owner of run {run.run_id} in {file}: {error.strerror}",
                space_or(error, "Make the file writable"),
            ) from None

    def _file(self, run_id: str) -> Path:
        name = hashlib.sha256("\0".join((*self._network, run_id)).encode()).hexdigest()
        return self._directory / f"{name[:32]}.json"

    def _read(self, run_id: str) -> _Known | None:
        """Return the known run of this id, or None. Raises Unsuitable if its file is damaged."""
        file = self._file(run_id)
        fix = f"Remove the file and pass --owner KEY, the public key of the owner of run {run_id}"
        try:
            with file.open("rb") as stream:
                known: _Known = json_as(stream.read(_MOST_BYTES), _Known)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unsuitable(
                f"cannot read the owner of run {run_id} in {file}: {error.strerror}", fix
            ) from None
        except Malformed:
            raise Unsuitable(
                f"{file} is damaged; it records the owner of run {run_id}", fix
            ) from None
        return known


def _identified(run: Run) -> _Known:
    return _Known(run.run_id, str(Pubkey.from_bytes(run.main_authority)), run.created)
