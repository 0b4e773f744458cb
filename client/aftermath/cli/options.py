"""Options that several commands share: names, environment variables and help.

A wallet key is never an argument, because other users of the machine can read arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.chain import defaults
from aftermath.rules.limits import MAX_LEVELS
from aftermath.train.tier import AUTO_TIER

CLUSTER = "Cluster"
WALLET = "Wallet"
TRAINING = "Training"
FILES = "Local files"
READ: dict[str, str] = {}
"""The environment variable of every shared option, by flag."""
RPC_TEXT = "Solana RPC endpoint: localnet, devnet, testnet, mainnet or an address."


def shared(
    *flags: str,
    text: str,
    panel: str | None = None,
    least: int | None = None,
    most: int | None = None,
    check: Callable[[str | None], str | None] | None = None,
    parser: Callable[[str], object] | None = None,
    stored: str = "",
) -> object:
    """Return an option that also reads the environment variable named like its first flag.

    After that it reads what the user's profile has under `stored`.
    """
    variable = flags[0].removeprefix("--").replace("-", "_").upper()
    READ.update(dict.fromkeys(flags, variable))
    option = typer.Option(
        *flags,
        envvar=variable,
        help=text,
        rich_help_panel=panel,
        min=least,
        max=most,
        callback=check,
        parser=parser,
    )
    option.stored = stored
    return option


def checked_run_id(run_id: str | None) -> str | None:
    """Return a run's id. Raise UsageError if it is not a valid id."""
    from aftermath.chain.addresses import run_seed

    if run_id is not None:
        try:
            run_seed(run_id)
        except UsageError as error:
            raise UsageError(
                error.message, f"{error.fix}; see --run-id (the variable RUN_ID)"
            ) from None
    return run_id


def _checked_repository(name: str | None) -> str | None:
    from aftermath.base.text import is_repository

    if name is not None and not is_repository(name):
        raise UsageError(
            f"--hub-token-for {name!r} is not a valid repository name",
            "Use OWNER/NAME, for example --hub-token-for ada/my-model",
        )
    return name


def at_most(
    limit: int, text: str, also: Callable[[str | None], str | None] = lambda value: value
) -> object:
    """Return an option for a text of at most `limit` bytes. `also` checks the value, too."""

    def check(parameter: typer.CallbackParam, value: str | None) -> str | None:
        size = len((value or "").encode(errors="replace"))
        if size > limit:
            raise UsageError(
                f"{parameter.opts[0]} has {size} bytes", f"Shorten it to at most {limit} bytes"
            )
        return also(value)

    return typer.Option(help=f"{text}, at most {limit} bytes.", callback=check)


RunId = Annotated[
    str,
    shared(
        "--run-id", text="The run's name, at most 32 bytes.", check=checked_run_id, stored="run"
    ),
]
OneRun = Annotated[
    str | None,
    shared(
        "--run-id",
        text="Run that the authorization is for. By default all runs of the join authority.",
        check=checked_run_id,
    ),
]
SHOWN_NAME = at_most(64, "Display name of the run")
DESCRIPTION = at_most(280, "Description of the run")


def checked_version(version: str | None) -> str | None:
    """Return a version. Raise UsageError for a word that means any version."""
    if version is not None and version.strip().lower() in ("any", "all", "none", "*"):
        raise UsageError(
            f"--client-version {version} would admit only clients of a version with that name",
            "To admit any version, pass --client-version ''",
        )
    return version


CLIENT_VERSION = at_most(
    96, "The only client version that may join; empty admits any", checked_version
)
Authorizer = Annotated[
    str | None,
    shared("--authorizer", text="Grantee whose authorization admits the wallet as a delegate."),
]

RunOwner = Annotated[
    str | None,
    shared(
        "--owner",
        text="Public key of the run's owner. The member refuses a run of another owner, and joins one that this owner "
        "created again.",
    ),
]

MaxBond = Annotated[
    int,
    shared(
        "--max-bond",
        text="Highest bond in lamports that the run may lock while the wallet is a member.",
        panel=WALLET,
        least=0,
    ),
]

_TIER = "How much of the model to train. 0: all; 1: half of every feed-forward layer; 2: a quarter."
Tier = Annotated[
    int, shared("--matformer-tier", text=_TIER, panel=TRAINING, least=0, most=MAX_LEVELS - 1)
]


def tier_named(value: object) -> int:
    """auto, or a whole number from 0 to 7"""
    text = str(value)
    if text == "auto":
        return AUTO_TIER
    if not text.isascii() or not text.isdigit() or int(text) >= MAX_LEVELS:
        raise ValueError(text)
    return int(text)


MemberTier = Annotated[
    int,
    shared(
        "--matformer-tier",
        text=f"{_TIER} At most {MAX_LEVELS - 1}. auto: the largest tier that fits into memory and is fast enough.",
        panel=TRAINING,
        parser=tier_named,
    ),
]
FittingTier = Annotated[
    int | None,
    shared(
        "--matformer-tier",
        text="Tier that must fit into memory. By default, the largest that does.",
        least=0,
        most=MAX_LEVELS - 1,
    ),
]
Device = Annotated[
    str,
    shared(
        "--device",
        text="auto, cpu, mps, cuda or cuda:X,Y. Each of several devices is a rank of this member.",
        panel=TRAINING,
    ),
]


JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Simulate the transactions, print them and their cost, and send nothing.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class ClusterOptions:
    """A cluster, and the coordinator program on it."""

    rpc: Annotated[str, shared("--rpc", text=RPC_TEXT, panel=CLUSTER, stored="rpc")] = defaults.RPC
    ws_rpc: Annotated[
        str | None,
        shared(
            "--ws-rpc",
            text="Websocket endpoint. By default the RPC's port plus one.",
            panel=CLUSTER,
            stored="ws-rpc",
        ),
    ] = None
    rpc_2: Annotated[
        str | None, shared("--rpc-2", text="First fallback RPC endpoint.", panel=CLUSTER)
    ] = None
    ws_rpc_2: Annotated[
        str | None, shared("--ws-rpc-2", text="Websocket of the first fallback.", panel=CLUSTER)
    ] = None
    rpc_3: Annotated[
        str | None, shared("--rpc-3", text="Second fallback RPC endpoint.", panel=CLUSTER)
    ] = None
    ws_rpc_3: Annotated[
        str | None, shared("--ws-rpc-3", text="Websocket of the second fallback.", panel=CLUSTER)
    ] = None
    coordinator_program_id: Annotated[
        str | None,
        shared(
            "--coordinator-program-id",
            text="Address of the coordinator program. By default the packaged one.",
            panel=CLUSTER,
        ),
    ] = None


@dataclass(frozen=True)
class WalletOptions:
    """The wallet that signs and pays."""

    wallet_private_key_path: Annotated[
        Path | None,
        shared(
            "--wallet-private-key-path",
            "-w",
            text="Wallet file, as the Solana CLI writes it. By default RAW_WALLET_PRIVATE_KEY, else the CLI's own.",
            panel=WALLET,
            stored="wallet",
        ),
    ] = None


@dataclass(frozen=True)
class SigningOptions(WalletOptions, ClusterOptions):
    """A cluster and the wallet that signs and pays there."""

    max_priority_fee: Annotated[
        int,
        shared(
            "--max-priority-fee",
            text="Highest priority fee in micro-lamports per compute unit.",
            panel=WALLET,
            least=0,
        ),
    ] = defaults.PRIORITY_FEE
    dry_run: DryRun = False


@dataclass(frozen=True)
class AccessOptions:
    """Local copies of files that a run names, and what else a run may reach."""

    data_path: Annotated[
        Path | None,
        shared(
            "--data-path",
            panel=FILES,
            text="Path of the run's data on this machine, if the run names local files. The hash must match.",
        ),
    ] = None
    model_path: Annotated[
        Path | None,
        shared(
            "--model-path",
            panel=FILES,
            text="Path of the run's model on this machine, if the run names a local directory.",
        ),
    ] = None
    data_root: Annotated[
        Path | None,
        shared(
            "--data-root",
            panel=FILES,
            text="Directory that must contain all local paths that the run names.",
        ),
    ] = None
    allow_private_network: Annotated[
        bool,
        shared(
            "--allow-private-network",
            panel=FILES,
            text="Allow the run's data to come from this machine and private networks. By default only on a local "
            "network, whose RPC nodes are on this machine and serve none of the public clusters.",
        ),
    ] = False
    hub_token_for: Annotated[
        str | None,
        shared(
            "--hub-token-for",
            panel=FILES,
            text="Hub repository of the run (OWNER/NAME) to read with HF_TOKEN. Others are read without a token.",
            check=_checked_repository,
        ),
    ] = None

    @property
    def token_repositories(self) -> tuple[str, ...]:
        """Return the repositories to read with a token."""
        return (self.hub_token_for,) if self.hub_token_for else ()
