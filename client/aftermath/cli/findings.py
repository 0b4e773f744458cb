"""What `doctor` looks at, and how one finding of it is told: a check is a function, and all of them are a table.

Decided: what a check meets as an error is its finding; what it cannot look at, for want of an option or of an earlier
check's answer, it leaves out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aftermath.base.errors import AftermathError
from aftermath.base.run_access import RunAccess
from aftermath.cli.options import AccessOptions

if TYPE_CHECKING:
    from aftermath.chain.wallet import Wallet
    from aftermath.cli.connection import Cluster
    from aftermath.coordinator.view import View


class Status(StrEnum):
    """How it stands with one thing."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """What a check found, and what to do about it."""

    status: Status
    message: str
    fix: str = ""


@dataclass
class Subject:
    """What is examined: what the options name, and what earlier checks found out."""

    device: str
    tier: int | None
    """None: the one that fits."""
    wallet_path: Path | None
    bind_port: int
    mend: bool
    """Whether a check may mend what it can (--fix)."""
    interface: str | None = None
    relay: str = "auto"
    """As `p2p.relay` takes it."""
    metrics_port: int | None = None
    chain: Cluster | None = None
    answers: bool = True
    """Whether any of its nodes does: else nothing more is asked of it."""
    run_id: str | None = None
    authorizer: str | None = None
    max_bond: int = 0
    wallet: Wallet | None = field(default=None, repr=False)
    view: View | None = None
    files: AccessOptions = field(default_factory=AccessOptions)

    def access(self) -> RunAccess:
        """What train would open of the local files that the run names. Only for a subject with a view."""
        from aftermath.train.access_options import access_for

        assert self.view is not None
        local = self.chain is not None and self.chain.pool.is_local
        return access_for(self.files, self.view.run, on_local_network=local)


Check = Callable[[Subject], Awaitable[Finding | None]]


def fine(message: str, fix: str = "") -> Finding:
    return Finding(Status.OK, message, fix)


def dubious(message: str, fix: str = "") -> Finding:
    return Finding(Status.WARNING, message, fix)


def broken(message: str, fix: str = "") -> Finding:
    return Finding(Status.FAILURE, message, fix)


async def examine(subject: Subject, checks: Sequence[tuple[str, Check]]) -> list[tuple[str, Finding]]:
    """Every check in order, by its name, but for those that do not apply."""
    found = []
    for name, check in checks:
        try:
            finding = await check(subject)
        except AftermathError as error:
            finding = broken(error.message, error.fix)
        except OSError as error:
            finding = broken(str(error), "Check the path, its permissions and the disk")
        if finding is not None:
            found.append((name, finding))
    return found


def as_data(found: Sequence[tuple[str, Finding]]) -> list[dict[str, Any]]:
    """The same for scripts."""
    return [{"check": name, "status": str(f.status), "message": f.message, "fix": f.fix} for name, f in found]


def as_text(found: Sequence[tuple[str, Finding]]) -> str:
    """The same for people."""
    lines = []
    for name, finding in found:
        lines.append(f"{finding.status.value:8} {name}: {finding.message}")
        if finding.fix:
            lines.append(f"{'':8} {'hint' if finding.status is Status.OK else 'fix'}: {finding.fix}")
    return "\n".join(lines)
