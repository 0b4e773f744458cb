"""What goes wrong with processes that were started here."""

from __future__ import annotations

from aftermath.base.errors import AftermathError


class StageError(AftermathError):
    """A process that was started here did not do what it is for; the message has its last words."""

    code = "testnet"
