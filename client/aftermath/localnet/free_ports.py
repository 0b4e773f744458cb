"""Find free consecutive ports for a network without a configured port."""

from __future__ import annotations

import errno
import random
import socket

from aftermath.localnet.errors import LocalnetError

# Operating systems take ports of outgoing connections from 32768 up, and the port after one of
# those is often busy.
LOWEST = 10_000
HIGHEST = 32_000
ATTEMPTS = 500


def is_free(host: str, port: int) -> bool:
    """Return whether a server can listen there.

    Raise LocalnetError if `host` is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise LocalnetError(
                    f"{host} is not an address of this machine",
                    "Use one of its addresses, for example --host 127.0.0.1",
                ) from None
            return False
    return True


def free_ports(host: str, count: int) -> int:
    """Return the first of `count` consecutive TCP ports that are free now."""
    draw = random.SystemRandom()
    for _ in range(ATTEMPTS):
        first = draw.randrange(LOWEST, HIGHEST - count)
        if all(is_free(host, port) for port in range(first, first + count)):
            return first
    raise LocalnetError(
        f"no {count} free ports in a row were found on {host}", "Check the host, or pass --rpc-port"
    )
