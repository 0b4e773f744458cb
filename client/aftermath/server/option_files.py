"""Open the files that `server run` takes: state directory, certificate and allowlist."""

from __future__ import annotations

import ssl
from pathlib import Path

from solders.pubkey import Pubkey

from aftermath.base.errors import AftermathError, UsageError
from aftermath.base.files import fix_of

LEDGER = "ledger"
"""Folder of the chain's ledger in the state directory."""
MAX_ALLOWLIST_BYTES = 1 << 20
"""Maximum size of an allowlist."""


class ServerError(AftermathError):
    """The server cannot start."""

    code = "server"


def create_state_directory(state: Path | None) -> Path | None:
    """Return the state directory, created if it does not exist. Raises ServerError."""
    if state is None:
        return None
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ServerError(
            f"cannot create the directory {state}: {error.strerror}",
            f"{fix_of(error, 'directory')}: --save-state-dir",
        ) from None
    return state


def load_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context of a certificate, or None without one.

    Raises UsageError or ServerError.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("--tls-certificate and --tls-key belong together", "Pass both or neither")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        why = (
            error.strerror
            if isinstance(error, FileNotFoundError | PermissionError)
            else "they do not match"
        )
        raise ServerError(
            f"cannot use the certificate {certificate} with the key {key}: {why}",
            "Pass a certificate and its private key as PEM files",
        ) from None
    return context


def load_allowlist(path: Path | None) -> frozenset[Pubkey] | None:
    """Return the identities in a file, one per line, or None without a file. Raises ServerError."""
    if path is None:
        return None
    try:
        if path.stat().st_size > MAX_ALLOWLIST_BYTES:
            raise ServerError(
                f"{path} is larger than {MAX_ALLOWLIST_BYTES} bytes",
                "Write one public key per line",
            )
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise ServerError(
            f"cannot read {path}: {why}", "Pass --allow a file with one public key per line"
        ) from None
    allowed = set()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        try:
            allowed |= {Pubkey.from_string(word) for word in words}
        except ValueError:
            raise ServerError(
                f"{path}:{number} is not a public key",
                "Write one key per line (aftermath-centralized client show-identity prints it); # starts a comment",
            ) from None
    return frozenset(allowed)
