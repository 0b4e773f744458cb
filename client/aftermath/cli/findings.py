"""What checks of a machine, wallet, cluster and run look at, and what they find.

`check_list` names the checks. Commands choose which of them to run and how to show the findings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aftermath.base.allowed_locations import RunAccess
from aftermath.base.errors import AftermathError
from aftermath.cli.options import AccessOptions

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from aftermath.chain.authorizer import Authorization
    from aftermath.cli.connection import Cluster
    from aftermath.coordinator.ports import View
    from aftermath.optim.schema import Schema
    from aftermath.parallel.mesh import Mesh
    from aftermath.rules.members import Membership
    from aftermath.train.access import AccessChoice


class Status(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do about it."""

    status: Status
    message: str
    fix: str = ""
    error: AftermathError | None = None
    """The error that `train` would end with or wait for, if the finding comes from one."""


@dataclass
class Subject:
    """What the checks look at: what the options name, and what earlier checks read."""

    device: str = "auto"
    tier: int | None = None
    """The tier to train. None: the largest that fits. AUTO_TIER: what `train` would choose here."""
    why_tier: str = ""
    """Why `train` would choose this tier."""
    wallet_path: Path | None = None
    bind_port: int = 0
    interface: str | None = None
    relay: str = "auto"
    """A value of --iroh-relay."""
    metrics_port: int | None = None
    repair: bool = False
    """Whether a check may repair what it can (--fix)."""
    may_fund: bool = False
    """Whether a wallet may ask a local network for the test money that it lacks."""
    files: AccessChoice = field(default_factory=AccessOptions)
    chain: Cluster | None = None
    answers: bool = True
    """Whether a node answers. If none does, nothing more is asked of the cluster."""
    wallet: Pubkey | None = None
    authorizer: Pubkey | None = None
    """The grantee as whose delegate the wallet joins."""
    owner: str | None = None
    """The key that the user names as the run's owner."""
    max_bond: int = 0
    run_id: str | None = None
    checkpoint_dir: Path | None = None
    """--checkpoint-dir of the start. A check of a kept seat sets it for other commands."""
    is_start: bool = False
    """Whether the command is `train`, which has --checkpoint-dir."""
    view: View | None = None
    authorization: Authorization | None = None
    membership: Membership | None = None
    mesh: Mesh | None = None
    schema: Schema | None = None
    sequences: int = 0
    """How many sequences the run's data has."""

    def access(self) -> RunAccess:
        """Return what the run may open and contact here. Needs `view`."""
        from aftermath.train.access import access_for

        assert self.view is not None
        local = self.chain is not None and self.chain.pool.is_local
        return access_for(self.files, self.view.run, on_local_network=local)


def fine(message: str, fix: str = "") -> Finding:
    """Return a finding that needs no action. A `fix` is shown as a hint."""
    return Finding(Status.OK, message, fix)


def dubious(message: str, fix: str = "", error: AftermathError | None = None) -> Finding:
    """Return a warning."""
    return Finding(Status.WARNING, message, fix, error)


def broken(message: str, fix: str = "") -> Finding:
    """Return a failure that is not an error of `train`."""
    return Finding(Status.FAILURE, message, fix)


def failed(error: AftermathError) -> Finding:
    """Return the failure that an error stands for."""
    return Finding(Status.FAILURE, error.message, error.fix, error)


def as_data(findings: Sequence[tuple[str, Finding]]) -> list[dict[str, Any]]:
    """Return findings for scripts."""
    return [
        {
            "check": name,
            "status": str(finding.status),
            "message": finding.message,
            "fix": finding.fix,
        }
        for name, finding in findings
    ]


def as_text(findings: Sequence[tuple[str, Finding]]) -> str:
    """Return findings for people: a line for each, and one for its fix."""
    lines = []
    for name, finding in findings:
        lines.append(f"{finding.status.value:8} {name}: {finding.message}")
        if finding.fix:
            label = "hint" if finding.status is Status.OK else "fix"
            lines.append(f"{'':8} {label}: {finding.fix}")
    return "\n".join(lines)
