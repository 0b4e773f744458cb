"""`config set`: choose a cluster, wallet or run once for all commands.

Decided: a value is looked at as the option does that takes it, so that no command meets a bad one later; a relative
path is stored whole, since commands are called from anywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.present import Result, note, plain_text
from aftermath.cli.profile import Name, read_profile, shown_value, write_profile


@command("config set", example="aftermath-solana config set rpc devnet")
def config_set(
    name: Annotated[Name, typer.Argument(help="What to store.", show_default=False)],
    value: Annotated[
        str,
        typer.Argument(help="Its value: a cluster's name or address, a key file's path, a run.", show_default=False),
    ],
) -> Result:
    """Store a cluster, wallet or run for all commands.

    Every command with --rpc, --ws-rpc, --wallet-private-key-path or --run-id takes it where neither the option nor its
    environment variable is given: flag, variable, profile, default. A wallet is stored as its file's path, never as a
    key. The profile is a file that only you can read; config show says where.
    """
    held = read_profile() | {str(name): _checked(name, value)}
    path = write_profile(held)
    shown = shown_value(name, held[name])
    return Result({"name": str(name), "value": shown, "file": str(path)}, plain_text(f"{name} {shown}, in {path}"))


def _checked(name: Name, value: str) -> str:
    """The value as it is stored. Raises UsageError or WalletError for one that no command would take."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the value for {name} is not text", "It has to be UTF-8") from None
    from aftermath.chain.addresses import run_seed
    from aftermath.chain.defaults import RPC
    from aftermath.chain.endpoints import endpoint

    if name is Name.RUN:
        run_seed(value)
    elif name is Name.RPC:
        endpoint(value)
    elif name is Name.WS_RPC:
        endpoint(RPC, value or "-")
    else:
        return _path(value)
    return value


def _path(value: str) -> str:
    from aftermath.chain.wallet import refuse_key_as_path

    if not value:
        raise UsageError("the path given for wallet is empty", "Name a key file")
    refuse_key_as_path(Path(value))
    path = Path(value).expanduser().absolute()
    if not path.is_file():
        note(f"warning: there is no key file {path} yet; show-identity --create -w {path} makes one")
    return str(path)
