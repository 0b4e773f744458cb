"""Names, environment variables and help of the options that several commands share.

Decided
- Every option that names a place or a key can also come from the environment, under upstream's names; a wallet key is
  never an argument, only a file's path or `RAW_WALLET_PRIVATE_KEY`.
- The user's profile (`cli.profile`) comes after both. It stands in for what would be said each time; so an option
  whose absence means all runs takes nothing from it.
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
"""The variable of every shared option, by its flags."""
RPC_TEXT = "Solana RPC endpoint: localnet, devnet, testnet, mainnet, or an address."


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
    """An option that also reads the environment variable of its first flag in capitals, and after that what the user's
    profile has `stored` under this name.
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
    """A run's id as it is. Raises UsageError when it cannot be one."""
    from aftermath.chain.addresses import run_seed

    if run_id is not None:
        try:
            run_seed(run_id)
        except UsageError as error:
            raise UsageError(error.message, f"{error.fix}; see --run-id (the variable RUN_ID)") from None
    return run_id


def _checked_repository(name: str | None) -> str | None:
    from aftermath.base.text import is_repository

    if name is not None and not is_repository(name):
        raise UsageError(
            f"--hub-token-for {name!r} is not the name of a repository",
            "It is OWNER/NAME, for example --hub-token-for ada/my-model",
        )
    return name


def at_most(limit: int, text: str, also: Callable[[str | None], str | None] = lambda value: value) -> object:
    """An option for a text of so many bytes, which the program has room for; `also` is asked about it, too."""

    def check(parameter: typer.CallbackParam, value: str | None) -> str | None:
        size = len((value or "").encode(errors="replace"))
        if size > limit:
            raise UsageError(f"{parameter.opts[0]} has {size} bytes", f"Shorten it to at most {limit} bytes")
        return also(value)

    return typer.Option(help=f"{text}, at most {limit} bytes.", callback=check)


RunId = Annotated[str, shared("--run-id", text="The run's name, at most 32 bytes.", check=checked_run_id, stored="run")]
OneRun = Annotated[
    str | None,
    shared("--run-id", text="The one run it is for; without it, all runs of the join authority.", check=checked_run_id),
]
SHOWN_NAME = at_most(64, "A name for people")
DESCRIPTION = at_most(280, "A description for people")


def checked_version(version: str | None) -> str | None:
    """A version as it is. Raises UsageError for a word that says that none is meant."""
    if version is not None and version.strip().lower() in ("any", "all", "none", "*"):
        raise UsageError(
            f"--client-version {version} would let in clients that call their version so, and nobody else",
            "Let any version join: --client-version ''",
        )
    return version


CLIENT_VERSION = at_most(96, "The only client version that may join; empty lets any version join", checked_version)
Authorizer = Annotated[
    str | None, shared("--authorizer", text="Key (grantee) whose authorization admits the wallet as a delegate.")
]

RunOwner = Annotated[
    str | None,
    shared(
        "--owner",
        text="Public key of the run's owner. The member refuses a run of another owner. It joins a run that this owner "
        "closed and created again.",
    ),
]

MaxBond = Annotated[
    int,
    shared(
        "--max-bond",
        text="Highest bond, in lamports, that the run may lock as long as the wallet is its member.",
        panel=WALLET,
        least=0,
    ),
]

_TIER = "Tier this member holds: tier k keeps 1/2^k of every FFN."
Tier = Annotated[int, shared("--matformer-tier", text=_TIER, panel=TRAINING, least=0, most=MAX_LEVELS - 1)]


def tier_named(given: object) -> int:
    """auto, or a whole number from 0 to 7"""
    text = str(given)
    if text == "auto":
        return AUTO_TIER
    if not text.isascii() or not text.isdigit() or int(text) >= MAX_LEVELS:
        raise ValueError(text)
    return int(text)


MemberTier = Annotated[
    int,
    shared(
        "--matformer-tier",
        text=f"{_TIER} 0 to {MAX_LEVELS - 1}, or auto: the largest that memory holds and that is fast enough here.",
        panel=TRAINING,
        parser=tier_named,
    ),
]
Device = Annotated[
    str,
    shared(
        "--device",
        text="auto, cpu, mps, cuda or cuda:X,Y: of several devices each is a rank of this member.",
        panel=TRAINING,
    ),
]


JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Say what would be sent and what it would cost, have it simulated, and send nothing.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster to talk to, and which coordinator on it."""

    rpc: Annotated[str, shared("--rpc", text=RPC_TEXT, panel=CLUSTER, stored="rpc")] = defaults.RPC
    ws_rpc: Annotated[
        str | None,
        shared(
            "--ws-rpc", text="Websocket endpoint; by default the RPC's port plus one.", panel=CLUSTER, stored="ws-rpc"
        ),
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
            text="Highest priority fee, in micro-lamports per compute unit.",
            panel=WALLET,
            least=0,
        ),
    ] = defaults.PRIORITY_FEE
    dry_run: DryRun = False


@dataclass(frozen=True)
class AccessOptions:
    """Where this machine has what a run names as local files, and what else a run may reach."""

    data_path: Annotated[
        Path | None,
        shared(
            "--data-path",
            panel=FILES,
            text="Where this machine has the run's data, if the run names local files. Their hash is checked.",
        ),
    ] = None
    model_path: Annotated[
        Path | None,
        shared(
            "--model-path",
            panel=FILES,
            text="Where this machine has the run's model, if the run names a local directory.",
        ),
    ] = None
    data_root: Annotated[
        Path | None,
        shared(
            "--data-root",
            panel=FILES,
            text="Directory below which local paths that the run names are looked for, and nowhere else.",
        ),
    ] = None
    allow_private_network: Annotated[
        bool,
        shared(
            "--allow-private-network",
            panel=FILES,
            text="Allow the run's data to be read from this machine and private networks. By default only public "
            "addresses are allowed, unless the run is on a local network: its RPC nodes are on this machine, and they "
            "do not serve devnet, testnet or mainnet.",
        ),
    ] = False
    hub_token_for: Annotated[
        str | None,
        shared(
            "--hub-token-for",
            panel=FILES,
            text="Hub repository of the run, as OWNER/NAME, that is read with this machine's token (HF_TOKEN). All "
            "others are read without a token.",
            check=_checked_repository,
        ),
    ] = None

    @property
    def token_repositories(self) -> tuple[str, ...]:
        """The repositories that are read with a token."""
        return (self.hub_token_for,) if self.hub_token_for else ()
