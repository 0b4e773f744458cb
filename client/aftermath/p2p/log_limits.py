"""Log problems that peers can cause at will only once per kind and peer."""

from __future__ import annotations

import logging

from aftermath.p2p.transport import escaped, short

MOST = 1024


class LogLimits:
    """Remembers what was logged. After MOST different entries it logs nothing more."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: set[tuple[str, bytes]] = set()

    def is_new(self, doing: str, peer: bytes) -> bool:
        """Return whether `doing` is logged for the first time for `peer`."""
        if (doing, peer) in self._logged or len(self._logged) >= MOST:
            return False
        self._logged.add((doing, peer))
        return True

    def failure(self, doing: str, peer: bytes, error: Exception) -> None:
        """Log once that `doing` failed for `peer`.

        The error may quote a stranger, so its text is escaped and cut, without a traceback.
        """
        if not self.is_new(doing, peer):
            return
        why = f"{type(error).__name__}: {escaped(str(error))}"
        self._log.warning("%s peer %s failed (logged once): %s", doing, short(peer), why)
