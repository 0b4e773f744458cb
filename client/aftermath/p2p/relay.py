"""Parse the option that chooses the relay: none, n0's, or one of the user's own.

Traffic is encrypted between the peers, so a plain `http` relay is allowed.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aftermath.base.errors import UsageError, short_repr

AUTO = "auto"
DISABLED = "disabled"
N0 = "n0"


def relay_named(option: object) -> str:
    """Return auto, disabled, n0, or the URL of a relay. Raises UsageError for anything else."""
    text = str(option)
    if text in (AUTO, DISABLED, N0):
        return text
    try:
        url = urlsplit(text)
        whole = (
            url.scheme in ("https", "http") and url.hostname and (url.port is None or url.port > 0)
        )
    except ValueError:  # invalid port
        whole = None
    if not whole or any(letter.isspace() for letter in text):
        raise UsageError(
            f"--iroh-relay {short_repr(text)} is not {AUTO}, {DISABLED}, {N0} or a relay URL",
            "Write the URL with its scheme, for example https://relay.example.org or http://192.168.1.5:3340",
        )
    if url.username is not None or url.path not in ("", "/") or url.query or url.fragment:
        raise UsageError(
            "--iroh-relay names more than a relay's host and port",
            f"Write only {url.scheme}://{url.netloc.rpartition('@')[2]}",
        )
    return text
