"""The server certificates that a member accepts, and the fixes if it receives another one."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from aftermath.base.errors import UsageError


@dataclass(frozen=True)
class TlsTrust:
    """The certificates that a member accepts.

    `certificate` is the server's certificate or its issuer's. If it is None, the member accepts
    the authorities that this machine trusts.
    """

    context: ssl.SSLContext
    certificate: Path | None = None

    @classmethod
    def by(cls, certificate: Path | None) -> TlsTrust:
        """Load the accepted certificates. Raises UsageError if the file is not valid."""
        try:
            return cls(ssl.create_default_context(cafile=certificate), certificate)
        except (OSError, ssl.SSLError):
            raise UsageError(
                f"--tls-ca {certificate} is not a readable certificate", "Pass a PEM file"
            ) from None

    @property
    def fix(self) -> str:
        """Return the fix for a certificate that is not trusted."""
        if self.certificate is None:
            return (
                "Without --tls-ca only authorities that this machine trusts are accepted: pass "
                "--tls-ca FILE with the certificate of the server's operator"
            )
        return (
            f"It must be {self.certificate} (--tls-ca) or signed by it: ask the server's operator for "
            "the current certificate"
        )


def unreachable_fix(trust: TlsTrust | None) -> str:
    """Return the fix for an address that does not answer like an aftermath-centralized server."""
    runs = "Check --server-addr, and that the server runs: aftermath-centralized server run"
    if trust is None:
        return f"{runs}. If the server has a certificate, pass --tls-ca FILE or --tls"
    if trust.certificate is None:
        return f"{runs}. Its certificate must be one that this machine trusts (--tls), or pass --tls-ca FILE"
    return f"{runs}. Its certificate must be {trust.certificate} (--tls-ca). Leave it out for a server without one"
