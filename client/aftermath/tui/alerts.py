"""Current warnings of a member: those that no later event has resolved. Each expires."""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.watch import kinds
from aftermath.watch.printable import printable
from aftermath.watch.progress import span

STALE = 300.0
"""Seconds after which a warning that nothing else outdates is taken down."""
_MOST = 20  # kept


@dataclass(frozen=True)
class Alert:
    """A warning, or the error that ends the process."""

    message: str
    at: float
    until: str | None
    times: int
    fatal: bool

    def words(self, now: float) -> str:
        """When it was said, how often, and what."""
        when = f"{span(max(now - self.at, 0))} ago" + (f", {self.times} times" if self.times > 1 else "")
        return f"{when}: {self.message}"


class Alerts:
    """Follows the events of one member."""

    def __init__(self) -> None:
        self._alerts: dict[str, Alert] = {}

    def take(self, event: kinds.Event) -> None:
        """Learn from an event."""
        kind = type(event).__struct_config__.tag
        self._alerts = {text: said for text, said in self._alerts.items() if said.until != kind}
        if isinstance(event, kinds.Warning | kinds.Error):
            message, fatal = printable(event.message, keep="\n"), isinstance(event, kinds.Error)
            before = self._alerts.pop(message, None)
            until = event.until if isinstance(event, kinds.Warning) else None
            self._alerts[message] = Alert(message, event.t, until, before.times + 1 if before else 1, fatal)
            for outdated in list(self._alerts)[:-_MOST]:
                del self._alerts[outdated]

    def now(self, now: float) -> list[Alert]:
        """Those that are not outdated, the newest first."""
        fresh = (said for said in self._alerts.values() if said.until or said.fatal or now - said.at <= STALE)
        return sorted(fresh, key=lambda said: -said.at)
