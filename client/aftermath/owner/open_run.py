"""Extra requirements for runs that everybody may join.

Wallets that join an open run are not trusted, so its config must not let them forge results or
replace the model. Commands do not check this on a local network, where nobody else can join.
"""

from __future__ import annotations

import re

from aftermath.base.errors import AftermathError
from aftermath.rules.members import Members
from aftermath.rules.model import Checkpoint
from aftermath.rules.state import CheckpointKind

MOST_SEATS = 64
"""Maximum members. With more, fingerprints are shorter than 40 bits, so results can be forged to
collide.
"""


class OpenRunRefused(AftermathError):
    """A run, or a change of it, does not meet the requirements of an open run."""

    code = "open-run"


def check_open_run(
    run_id: str, *, overlap: int, init_min_clients: int, checkpoint: Checkpoint | None
) -> None:
    """Raise OpenRunRefused if a run with this config may not be open to everybody.

    `checkpoint`: where the run starts, or None if the chain has the hashes of its model.
    """
    named = (
        "or admit named wallets only: aftermath-solana join-authorization-delete, then for each wallet "
        f"aftermath-solana join-authorization-create --run-id {run_id} --authorizer KEY"
    )
    if overlap == 0:
        raise OpenRunRefused(
            "overlap = 0: everybody may join this run, and without overlap two results can be made to look alike",
            f"Set overlap = 1, {named}",
        )
    if init_min_clients > MOST_SEATS:
        raise OpenRunRefused(
            f"init_min_clients = {init_min_clients}: everybody may join this run, and with more than {MOST_SEATS} "
            "members two results can be made to look alike",
            f"Set init_min_clients to at most {MOST_SEATS}, {named}",
        )
    if (
        checkpoint is not None
        and checkpoint.kind is CheckpointKind.HUB
        and not _is_commit(checkpoint.revision)
    ):
        raise OpenRunRefused(
            f"checkpoint revision {checkpoint.revision!r} of {checkpoint.repo} is not a commit hash: its repository's "
            "owner can replace the model that everybody who joins loads",
            "Set revision to the 40 hex digits of a commit, which the repository's history shows",
        )


def check_opening(run_id: str | None, members: Members | None) -> None:
    """Raise OpenRunRefused unless the run has completed an epoch of authorized members.

    Before that there are no established members, so a majority of arbitrary wallets could decide
    what the model is.
    """
    if run_id is None:
        raise OpenRunRefused(
            "an authorization for everybody is for one run, not for all runs of a join authority",
            "Name the run: --run-id RUN; or name who may join all of them: --authorizer KEY",
        )
    if members is None or not members.established:
        raise OpenRunRefused(
            f"no epoch of run {run_id} has ended yet: the members of the first one decide what the model is",
            "Admit its first members one by one: aftermath-solana join-authorization-create "
            f"--run-id {run_id} --authorizer KEY; open the run to everybody after they finish an epoch",
        )


def _is_commit(revision: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{40}", revision) is not None
