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

MAX_OPEN_MEMBERS = 64
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
    or_admit_wallets = (
        "or admit only chosen wallets: aftermath-solana join-authorization-delete, then for each wallet "
        f"aftermath-solana join-authorization-create --run-id {run_id} --authorizer KEY"
    )
    if overlap == 0:
        raise OpenRunRefused(
            "overlap = 0 is unsafe in a run that everybody may join: members can forge results that look alike",
            f"Set overlap = 1, {or_admit_wallets}",
        )
    if init_min_clients > MAX_OPEN_MEMBERS:
        raise OpenRunRefused(
            f"init_min_clients = {init_min_clients} is unsafe in a run that everybody may join: with more than "
            f"{MAX_OPEN_MEMBERS} members, members can forge results that look alike",
            f"Set init_min_clients to at most {MAX_OPEN_MEMBERS}, {or_admit_wallets}",
        )
    if (
        checkpoint is not None
        and checkpoint.kind is CheckpointKind.HUB
        and not _is_commit(checkpoint.revision)
    ):
        raise OpenRunRefused(
            f"checkpoint revision {checkpoint.revision!r} of {checkpoint.repo} is not a commit hash: the "
            "repository's owner could replace the model that new members load",
            "Set revision to the 40-digit hash of a commit in the repository's history",
        )


def check_opening(run_id: str | None, members: Members | None) -> None:
    """Raise OpenRunRefused unless the run has completed an epoch of authorized members.

    Before that there are no established members, so a majority of arbitrary wallets could decide
    what the model is.
    """
    if run_id is None:
        raise OpenRunRefused(
            "an authorization for everybody can cover only one run",
            "Pass --run-id RUN, or --authorizer KEY to let one wallet join all runs",
        )
    if members is None or not members.established:
        raise OpenRunRefused(
            f"run {run_id} has not finished an epoch yet, and its first members decide what the model is",
            "Admit its first members one by one: aftermath-solana join-authorization-create "
            f"--run-id {run_id} --authorizer KEY; open the run to everybody after their first epoch",
        )


def _is_commit(revision: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{40}", revision) is not None
