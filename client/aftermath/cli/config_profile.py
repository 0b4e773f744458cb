"""`config set`, `config show` and `config unset`: the cluster, wallet and run that all commands
use.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.chain import defaults
from aftermath.cli.command import command
from aftermath.cli.present import CommandError, Result, listing, note, plain_text
from aftermath.cli.profile import (
    KEY_VARIABLE,
    VARIABLES,
    Name,
    option_values,
    profile_path,
    read_profile,
    shown_value,
    write_profile,
)


@command("config set", example="aftermath-solana config set rpc devnet")
def config_set(
    name: Annotated[Name, typer.Argument(help="What to store.", show_default=False)],
    value: Annotated[
        str,
        typer.Argument(
            help="Value: a cluster's name or address, a key file's path, or a run id.",
            show_default=False,
        ),
    ],
) -> Result:
    """Store a cluster, wallet or run for all commands.

    Commands with --rpc, --ws-rpc, --wallet-private-key-path or --run-id use it in this order: flag,
    variable, profile, default. A wallet is stored as its file's path, never as a key. config show
    prints the profile's path.
    """
    values = read_profile() | {str(name): _checked(name, value)}
    path = write_profile(values)
    display = shown_value(name, values[name])
    return Result(
        {"name": str(name), "value": display, "file": str(path)},
        plain_text(f"{name} {display}, in {path}"),
    )


def _checked(name: Name, value: str) -> str:
    """Return the value to store. Raises UsageError or WalletError if no command would accept it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the value for {name} is not text", "Pass it in UTF-8") from None
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
        raise UsageError("the path for wallet is empty", "Name a key file")
    refuse_key_as_path(Path(value))
    path = Path(value).expanduser().absolute()
    if not path.is_file():
        note(
            f"warning: there is no key file {path} yet; create it with show-identity --create -w {path}"
        )
    return str(path)


_DEFAULTS: dict[Name, tuple[str | None, str]] = {
    Name.RPC: (defaults.RPC, "default"),
    Name.WS_RPC: (None, "default"),
    Name.WALLET: ("~/.config/solana/id.json", "default"),
    Name.RUN: (None, "default"),
}


@command("config show", example="aftermath-solana config show")
def config_show() -> Result:
    """Show which cluster, wallet and run commands use, and why.

    An option comes first, then its environment variable, the profile (config set) and the default.
    Hides what follows the port of an address, because it may be an API key.
    """
    values = option_values()
    rows = {name: _effective_value(name, values) for name in Name}
    if rows[Name.RPC][1].startswith("variable") and rows[Name.WS_RPC][1] == "profile":
        rows[Name.WS_RPC] = _DEFAULTS[Name.WS_RPC]
    path = profile_path()
    data = {
        "file": str(path) if path is not None else None,
        "values": {
            str(name): {"value": value, "from": source} for name, (value, source) in rows.items()
        },
    }
    table = [[name, value, source] for name, (value, source) in rows.items()]
    table.append(
        ["profile", str(path) if path is not None else None, "" if values else "nothing is stored"]
    )
    return Result(data, listing(("what", "value", "from"), table))


def _effective_value(name: Name, values: dict[str, str]) -> tuple[str | None, str]:
    """Return a value for display, and its source."""
    if variable := os.environ.get(VARIABLES[name]):
        return shown_value(name, variable), f"variable {VARIABLES[name]}"
    if name is Name.WALLET and os.environ.get(KEY_VARIABLE):
        return None, f"variable {KEY_VARIABLE}"
    if name in values:
        return shown_value(name, values[name]), "profile"
    return _DEFAULTS[name]


@command("config unset", example="aftermath-solana config unset run")
def config_unset(
    name: Annotated[Name, typer.Argument(help="What to remove.", show_default=False)],
) -> Result:
    """Remove a stored cluster, wallet or run."""
    values = read_profile()
    if name not in values:
        raise CommandError(
            f"the profile has no {name}", "List its values: aftermath-solana config show"
        )
    path = write_profile({key: value for key, value in values.items() if key != name})
    return Result({"name": str(name), "file": str(path)}, plain_text(f"removed {name} from {path}"))
