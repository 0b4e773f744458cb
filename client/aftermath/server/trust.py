"""How a member knows the certificate of its server, and what a person is told where it does not."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from aftermath.base.errors import UsageError


@dataclass(frozen=True)
class Trust:
    """The server has this `certificate`, or one that it signed; None: one that this machine
    trusts.
    """

    context: ssl.SSLContext
    certificate: Path | None = None

    @classmethod
    def by(cls, certificate: Path | None) -> Trust:
        """Raises UsageError for a file that is no certificate."""
        try:
            return cls(ssl.create_default_context(cafile=certificate), certificate)
        except (OSError, ssl.SSLError):
            raise UsageError(
                f"--tls-ca {certificate} is no certificate that can be read", "It is a PEM file"
            ) from None

    @property
    def fix(self) -> str:
        """Return the fix for a certificate that is not trusted."""
        if self.certificate is None:
            return (
                "No certificate was given, so only authorities that this machine trusts count (--tls): pass --tls-ca "
                "FILE with the certificate that the server's operator gave you"
            )
        return (
            f"It must be {self.certificate} (--tls-ca), or signed by it: ask the server's operator for the "
            "current certificate"
        )


def reached(trust: Trust | None) -> str:
    """Return the fix for a server that does not answer, or not like ours."""
    runs = "Check --server-addr, and that the server runs: aftermath-centralized server run"
    if trust is None:
        return f"{runs}. No certificate was given: a server that has one is reached with --tls-ca FILE, or with --tls"
    if trust.certificate is None:
        return f"{runs}, with a certificate that this machine trusts (--tls); one of its own is given by --tls-ca FILE"
    return f"{runs}, with the certificate {trust.certificate} (--tls-ca); one without is reached without that option"
