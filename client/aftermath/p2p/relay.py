"""Parse the option that chooses the relay: none, n0's, or one of the user's own.

Traffic is encrypted between the peers, so a plain `http` relay is allowed.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aftermath.base.errors import UsageError, shown

AUTO = "auto"
DISABLED = "disabled"
N0 = "n0"


def relay_named(given: object) -> str:
    """Return auto, disabled, n0, or the URL of a relay. Raises UsageError for anything else."""
    text = str(given)
    if text in (AUTO, DISABLED, N0):
        return text
    try:
        parts = urlsplit(text)
        whole = (
            parts.scheme in ("https", "http")
            and parts.hostname
            and (parts.port is None or parts.port > 0)
        )
    except ValueError:  # of a port
        whole = None
    if not whole or any(letter.isspace() for letter in text):
        raise UsageError(
            f"--iroh-relay {shown(text)} is neither {AUTO}, {DISABLED}, {N0} nor the URL of a relay",
            "Name your relay with its scheme, as https://relay.example.org or http://192.168.1.5:3340",
        )
    if parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise UsageError(
            "--iroh-relay names more than a relay's host and port",
            f"Leave the rest out: {parts.scheme}://{parts.netloc.rpartition('@')[2]}",
        )
    return text
