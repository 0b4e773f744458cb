"""The files that a server's options name: directory of state, certificate, and list of those who
may join.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from solders.pubkey import Pubkey

from aftermath.base.errors import AftermathError, UsageError
from aftermath.base.files import fix_of

LEDGER = "ledger"
"""Folder of the chain's ledger in the state directory, next to the owner's key."""
MOST_LISTED = 1 << 20
"""Bytes of a list of identities."""


class ServerError(AftermathError):
    """The server cannot serve."""

    code = "server"


def owner_directory(state: Path | None) -> Path | None:
    """The directory of state, made if it is not there. Raises ServerError."""
    if state is None:
        return None
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ServerError(
            f"cannot make the directory {state}: {error.strerror}",
            f"{fix_of(error, 'directory')}: --save-state-dir",
        ) from None
    return state


def tls_of(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS with this certificate, None without one. Raises UsageError, ServerError."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("--tls-certificate and --tls-key are two parts of one thing", "Pass both")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        why = (
            error.strerror
            if isinstance(error, FileNotFoundError | PermissionError)
            else "they do not fit together"
        )
        raise ServerError(
            f"cannot use the certificate {certificate} with the key {key}: {why}",
            "They are PEM files of one pair",
        ) from None
    return context


def allowed_of(path: Path | None) -> frozenset[Pubkey] | None:
    """The identities that a file lists, one a line; None without a file. Raises ServerError."""
    if path is None:
        return None
    try:
        if path.stat().st_size > MOST_LISTED:
            raise ServerError(
                f"{path} is too long for a list of identities", "It has one public key a line"
            )
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ServerError(
            f"cannot read {path}: {why}", "--allow takes a file with one public key a line"
        ) from None
    found = set()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        try:
            found |= {Pubkey.from_string(word) for word in words}
        except ValueError:
            raise ServerError(
                f"{path}:{number} is not a public key",
                "Write what `aftermath-centralized client show-identity` shows, one a line; # begins a remark",
            ) from None
    return frozenset(found)
