"""Decide which network addresses and local paths a member opens for a run.

A run's owner chooses the addresses of its data, and redirects lead to more. Without a rule, an
owner could make a member read services on the member's own network, and recover the answers from
the member's results.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from aftermath.base.errors import Unsuitable
from aftermath.base.outputs import maker_of

Permits = Callable[[str], bool]
"""Whether a connection to an IP address is allowed."""

_CLOUD_SERVICE = IPv4Address("168.63.129.16")
"""Azure's services for each virtual machine: a public address that only the machine itself can
reach.
"""
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
ALLOW = "--allow-private-network"


def any_address(address: str) -> bool:
    """Allow every address. For addresses that the user wrote."""
    return True


def is_public(address: str) -> bool:
    """Return whether an IP address is public: not this machine, its network, or a network's own
    service.
    """
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv4Address):
        return ip.is_global and not ip.is_multicast and ip != _CLOUD_SERVICE
    inner = _embedded(ip)
    if inner is not None:
        return is_public(str(inner))
    return ip in _GLOBAL_UNICAST and ip.is_global


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def permitted(host: str, candidates: Sequence[tuple[Any, ...]], permits: Permits) -> list[str]:
    """Return a host's allowed addresses, as `getaddrinfo` gives them. Raises Unsuitable if there is
    none.
    """
    addresses = list(dict.fromkeys(str(candidate[4][0]) for candidate in candidates))
    allowed = [address for address in addresses if permits(address)]
    if addresses and not allowed:
        location = host if host in addresses else f"{host} ({addresses[0]})"
        raise Unsuitable(
            f"the run's data is at {location}, an address of this machine or of a private network",
            f"Pass {ALLOW} if the run's owner may reach the services of this machine's network",
        )
    return allowed


def connected(host: str, port: int, timeout: float, permits: Permits) -> socket.socket:
    """Return a TCP connection to one of a host's allowed addresses. Raises OSError, Unsuitable."""
    error = OSError(f"{host} has no address")
    addresses = permitted(host, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), permits)
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout / len(addresses))
        except OSError as caught:
            error = caught
    raise error


@dataclass(frozen=True)
class RunAccess:
    """What a member allows a run to open. `trusting` allows everything, for locations that the user
    wrote.
    """

    data: Path | None = None
    model: Path | None = None
    root: Path | None = None
    on_local_network: bool = False
    own_maker: str | None = None
    """The mark of directories that members of the same run wrote."""
    private_network: bool = False
    """Whether data may be at addresses of this machine and of private networks."""
    token_repositories: tuple[str, ...] = ()
    """Hub repositories that are read with the member's token."""
    trusting: bool = False

    @property
    def permits(self) -> Permits:
        """The rule for IP addresses that data may be read from."""
        return any_address if self.trusting or self.private_network else is_public

    def hub_token(self, repository: str) -> Literal[False] | None:
        """Return the token for a repository: None for the machine's token, False for no token.

        A run's owner may name any repository, even one that only this member can read. If the
        member always used its token, it would serve that repository's weights to others.
        """
        return None if self.trusting or repository in self.token_repositories else False

    def data_place(self, label: str) -> Path:
        """Return the path to open for a data location. Raises Unsuitable."""
        return self._place(label, self.data, "data", "--data-path")

    def model_place(self, label: str) -> Path:
        """Return the directory to open for a checkpoint. Raises Unsuitable."""
        return self._place(label, self.model, "model", "--model-path")

    def _place(self, label: str, chosen: Path | None, kind: str, option: str) -> Path:
        path = _absolute(label)
        maker = _maker(path) if path is not None else None
        if path is not None and (self.trusting or (maker is not None and maker == self.own_maker)):
            return path
        if chosen is not None:
            return chosen.expanduser().absolute()
        if self.root is not None:
            below = _below(self.root, label)
            if below is not None:
                return below
        elif (
            path is not None
            and self.on_local_network
            and (maker is not None or not os.path.exists(path))
        ):
            # a missing path reveals nothing, and the code that reads it reports the error
            return path
        raise Unsuitable(
            f"the run's {kind} is the local path {label}, and members do not open paths that a run names",
            f"Pass your copy with {option} DIR, or --data-root DIR for the directory that contains {label}",
        )


def advice_to_member(
    kind: Literal["data", "model"], label: str, *, saved_by_member: bool = False
) -> str:
    """Return the fix for a member that lacks a run's local files. It cannot make them itself.

    `saved_by_member`: whether `label` is a checkpoint that a member saved, maybe this one.
    """
    if saved_by_member:
        return (
            f"If this member saved {label} and you moved it, pass the new directory of its checkpoints: "
            "--checkpoint-dir DIR. Otherwise get the checkpoint from the member that saved it, and "
            "pass --model-path DIR"
        )
    return (
        f"Get the run's {kind} from its owner and pass --{kind}-path DIR, or start this command in the directory that "
        f"holds {label}"
    )


def _absolute(label: str) -> Path | None:
    """Return the absolute path of a label, or None if it is not a valid path."""
    try:
        path = Path(label).expanduser().absolute()
        path.resolve()
    # no user has that name, or it is not a valid file name
    except (OSError, RuntimeError, ValueError):
        return None
    return path


def _maker(path: Path) -> str | None:
    """Return the mark of a directory, or of the directory that holds a file, with links
    resolved.
    """
    real = path.resolve()
    try:
        return maker_of(real if os.path.isdir(real) else real.parent)
    except OSError:  # the user may not search the directory, or the name is too long
        return None


def _below(root: Path, label: str) -> Path | None:
    """Return the path of a label below `root`, or None if it leads out of it or to a hidden
    file.
    """
    root = root.expanduser().resolve()
    parts = [part for part in PurePosixPath(label).parts if part not in ("/", "~", ".")]
    try:
        path = root.joinpath(*parts).resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    # also excludes `..`; keys and settings are in hidden files
    hidden = any(part.startswith(".") for part in parts)
    return path if parts and not hidden and path.is_relative_to(root) else None


TRUSTING = RunAccess(trusting=True)
"""For locations that the user wrote in a config file or an option."""
