"""Names, environment variables and help of the options that several commands share.

Decided here: every option that names a place or a key can also come from the environment, under upstream's names; a
wallet key is never an argument, only a file's path or `RAW_WALLET_PRIVATE_KEY`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_RPC = "http://127.0.0.1:8899"
CLUSTER = "Cluster"
WALLET = "Wallet"


def shared(*flags: str, text: str, panel: str | None = None, least: int | None = None) -> object:
    """An option that also reads the environment variable of its first flag in capitals."""
    variable = flags[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(*flags, envvar=variable, show_envvar=False, help=text, rich_help_panel=panel, min=least)


RunId = Annotated[str, shared("--run-id", text="The run's name, at most 32 bytes.")]
Authorizer = Annotated[
    str | None, shared("--authorizer", text="Key (grantee) whose authorization admits the wallet as a delegate.")
]


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster to talk to, and which coordinator on it."""

    rpc: Annotated[str, shared("--rpc", text="Solana RPC endpoint.", panel=CLUSTER)] = DEFAULT_RPC
    ws_rpc: Annotated[
        str | None, shared("--ws-rpc", text="Websocket endpoint; by default the RPC's port plus one.", panel=CLUSTER)
    ] = None
    rpc_2: Annotated[str | None, shared("--rpc-2", text="First fallback RPC endpoint.", panel=CLUSTER)] = None
    ws_rpc_2: Annotated[str | None, shared("--ws-rpc-2", text="Websocket of the first fallback.", panel=CLUSTER)] = None
    rpc_3: Annotated[str | None, shared("--rpc-3", text="Second fallback RPC endpoint.", panel=CLUSTER)] = None
    ws_rpc_3: Annotated[str | None, shared("--ws-rpc-3", text="Websocket of the second fallback.", panel=CLUSTER)] = (
        None
    )
    coordinator_program_id: Annotated[
        str | None,
        shared("--coordinator-program-id", text="Coordinator program, if not the packaged one.", panel=CLUSTER),
    ] = None


@dataclass(frozen=True)
class WalletOptions:
    """The wallet that signs and pays."""

    wallet_private_key_path: Annotated[
        Path | None,
        shared(
            "--wallet-private-key-path",
            "-w",
            text="Wallet in the Solana CLI's JSON form; else RAW_WALLET_PRIVATE_KEY, else the Solana CLI's own wallet.",
            panel=WALLET,
        ),
    ] = None


@dataclass(frozen=True)
class SigningOptions(WalletOptions, ClusterOptions):
    """A cluster and the wallet that signs and pays there."""

    max_priority_fee: Annotated[
        int,
        shared(
            "--max-priority-fee",
            text="Highest priority fee, in micro-lamports per compute unit.",
            panel=WALLET,
            least=0,
        ),
    ] = 10_000
