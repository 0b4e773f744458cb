"""Complaints: troubles that peers can cause at will are logged in one line, once for each thing and peer.

Decided: the text of an error may hold what a stranger sent, so it is escaped and cut; no traceback.
"""

from __future__ import annotations

import logging

from aftermath.p2p.transport import escaped, short

MOST = 1024


class Complaints:
    """What was complained about already; after MOST different complaints nothing is logged any more."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._made: set[tuple[str, bytes]] = set()

    def new(self, doing: str, peer: bytes) -> bool:
        """Whether this is the first complaint about `doing` on behalf of `peer`; later it is not."""
        if (doing, peer) in self._made or len(self._made) >= MOST:
            return False
        self._made.add((doing, peer))
        return True

    def about(self, doing: str, peer: bytes, error: Exception) -> None:
        """Log that `doing`, on behalf of `peer`, failed; only the first time."""
        if not self.new(doing, peer):
            return
        why = f"{type(error).__name__}: {escaped(str(error))}"
        self._log.warning("%s peer %s failed (said once): %s", doing, short(peer), why)
