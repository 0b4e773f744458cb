"""The one list of checks behind `doctor`, `can-join`, `train --dry-run` and `predownload`.

`doctor` shows all findings, `can-join` answers with the refusals, and the other two end with one of
them.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping

from aftermath.base.errors import AftermathError
from aftermath.cli import machine_checks, run_checks
from aftermath.cli.findings import Finding, Subject, broken, failed

Check = Callable[[Subject], Finding | Awaitable[Finding | None] | None]
"""Returns None if the check does not apply: an option is missing, or an earlier check failed."""

CHECKS: Mapping[str, Check] = {
    "python": machine_checks.python,
    "torch": machine_checks.torch_and_device,
    "disk": machine_checks.disk,
    "wallet": machine_checks.wallet,
    "hub-token": machine_checks.hub_token,
    "metrics-port": machine_checks.metrics_port,
    "udp": machine_checks.udp,
    "rpc": run_checks.rpc,
    "server": run_checks.server,
    "websocket": run_checks.websocket,
    "clock": run_checks.clock,
    "run": run_checks.run,
    "authorization": run_checks.authorization,
    "state": run_checks.state,
    "ban": run_checks.ban,
    "seats": run_checks.seats,
    "kept-seat": run_checks.kept_seat,
    "owner": run_checks.owner,
    "version": run_checks.version,
    "bond": run_checks.bond,
    "process": run_checks.process,
    "balance": run_checks.balance,
    "access": run_checks.access,
    "configured": run_checks.configured,
    "model": run_checks.model,
    "tier": run_checks.tier,
    "memory": run_checks.memory,
    "audits": run_checks.audits,
    "data": run_checks.data,
    "relay": machine_checks.relay,
}
# Checks of a wallet against the chain. They do not need PyTorch.
ADMISSION = (
    "authorization",
    "state",
    "ban",
    "seats",
    "kept-seat",
    "owner",
    "version",
    "bond",
    "process",
)
# Checks that need the model. Each uses what the one before it stored in the subject.
FIT = ("model", "tier", "memory", "audits", "data")


async def examine(
    subject: Subject, names: Iterable[str], *, passing: tuple[type[AftermathError], ...] = ()
) -> list[tuple[str, Finding]]:
    """Run checks in order and return the findings of those that apply, by name.

    An error that a check raises is its finding, but errors of a class in `passing` are raised.
    """
    findings = []
    for name in names:
        try:
            outcome = CHECKS[name](subject)
            finding = await outcome if inspect.isawaitable(outcome) else outcome
        except passing:
            raise
        except AftermathError as error:
            finding = failed(error)
        except OSError as error:
            finding = broken(str(error), "Check the path, its permissions and the disk")
        if finding is not None:
            findings.append((name, finding))
    return findings


def refusals(findings: Iterable[tuple[str, Finding]]) -> list[AftermathError]:
    """Return the errors that keep a member from the run."""
    return [
        finding.error
        for _, finding in findings
        if finding.error is not None and finding.status == "failure"
    ]
