"""Parse options that name a cluster or a public key, for `train` and all other commands.

Errors name the option as the user types it.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Protocol

from solders.pubkey import Pubkey

from aftermath.base.errors import UsageError
from aftermath.base.proxies import proxy_for
from aftermath.chain.endpoints import Endpoint, NoNextPort, endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import WalletError, load_wallet

BASE58 = "a public key, 32 bytes in base58"
_LONGEST = 80
"""Fewer characters than a private key has in base58, and more than a usual file name."""


class ClusterChoice(Protocol):
    """The options that name a cluster and the coordinator on it."""

    @property
    def rpc(self) -> str: ...
    @property
    def ws_rpc(self) -> str | None: ...
    @property
    def rpc_2(self) -> str | None: ...
    @property
    def ws_rpc_2(self) -> str | None: ...
    @property
    def rpc_3(self) -> str | None: ...
    @property
    def ws_rpc_3(self) -> str | None: ...
    @property
    def coordinator_program_id(self) -> str | None: ...


def open_pool(choice: ClusterChoice, *, patience: float) -> RpcPool:
    """Return the pool of the RPC nodes that these options name. `patience` is in seconds.

    Raises UsageError for a websocket without its node, an invalid address, or an unusable proxy.
    """
    pairs = (
        (choice.rpc, choice.ws_rpc, "--ws-rpc"),
        (choice.rpc_2, choice.ws_rpc_2, "--ws-rpc-2"),
        (choice.rpc_3, choice.ws_rpc_3, "--ws-rpc-3"),
    )
    for http, ws, flag in pairs:
        if ws and not http:
            raise UsageError(f"{flag} needs {flag.replace('ws-', '')}", "Pass both, or neither")
    fallbacks = [_node(http, ws, flag) for http, ws, flag in pairs[1:] if http]
    nodes = [_node(choice.rpc, choice.ws_rpc, "--ws-rpc"), *fallbacks]
    for node in nodes:
        proxy_for(node.http)
        proxy_for(node.ws)
    return RpcPool(nodes, patience=patience, seed=secrets.randbits(32))


def _node(http: str, ws: str | None, flag: str) -> Endpoint:
    try:
        return endpoint(http, ws)
    except UsageError as error:
        flags = (flag.replace("ws-", ""), flag) if ws else (flag.replace("ws-", ""),)
        if isinstance(error, NoNextPort):
            flags = (flag,)
        flag_names = " or ".join(f"{name} (the variable {variable_of(name)})" for name in flags)
        raise UsageError(error.message, f"{error.fix}; see {flag_names}") from None


def variable_of(flag: str) -> str:
    """Return the environment variable that an option reads."""
    return flag.removeprefix("--").replace("-", "_").upper()


def coordinator_id(choice: ClusterChoice) -> Pubkey | None:
    """Return the coordinator's program id, or None for the packaged one. Raises UsageError."""
    text = choice.coordinator_program_id
    if text is None:
        return None
    try:
        return Pubkey.from_string(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a public key",
            f"--coordinator-program-id takes {BASE58}, and so does the variable COORDINATOR_PROGRAM_ID",
        ) from None


def public_key(text: str) -> Pubkey:
    """Return the public key in `text`, or in the key file that it names.

    Raises UsageError, or WalletError for a bad file.
    """
    try:
        return Pubkey.from_string(text)
    except ValueError:
        path = Path(text).expanduser()
    if len(text) > _LONGEST and "/" not in text:  # perhaps a private key, which no error may quote
        raise UsageError("the key is too long for a public key or a file name", f"Pass {BASE58}")
    if path.is_file():
        return load_wallet(path).pubkey
    if not text:  # an unset variable of a shell must not mean "everybody"
        raise UsageError(
            "the key is empty", "Pass a public key or a key file, or leave the option out"
        )
    if path.suffix or len(path.parts) > 1:
        raise WalletError(
            f"there is no key file {path.absolute()}", f"Check the path, or pass {BASE58}"
        )
    raise UsageError(
        f"{text!r} is neither a public key nor a key file",
        f"Pass {BASE58}, or the path of a key file",
    )
