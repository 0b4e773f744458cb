"""`config show`: which cluster, wallet and run commands take where nothing is said, and from where."""

from __future__ import annotations

import os

from aftermath.chain import defaults
from aftermath.cli.command import command
from aftermath.cli.present import Result, listing
from aftermath.cli.profile import KEY_VARIABLE, VARIABLES, Name, profile_path, shown_value, stored

_DEFAULTS: dict[Name, tuple[str | None, str]] = {
    Name.RPC: (defaults.RPC, "default"),
    Name.WS_RPC: (None, "default"),
    Name.WALLET: ("~/.config/solana/id.json", "default"),
    Name.RUN: (None, "default"),
}


@command("config show", example="aftermath-solana config show")
def config_show() -> Result:
    """Show what commands take where nothing is said, and where that comes from.

    An option comes before its environment variable, this before the profile (config set), and that before the default.
    What an address has after its port is not shown, since it may be an API key.
    """
    held = stored()
    rows = {name: _found(name, held) for name in Name}
    if rows[Name.RPC][1].startswith("variable") and rows[Name.WS_RPC][1] == "profile":
        rows[Name.WS_RPC] = _DEFAULTS[Name.WS_RPC]
    path = profile_path()
    data = {
        "file": str(path) if path is not None else None,
        "values": {str(name): {"value": value, "from": source} for name, (value, source) in rows.items()},
    }
    table = [[name, value, source] for name, (value, source) in rows.items()]
    table.append(["profile", str(path) if path is not None else None, "" if held else "nothing is stored"])
    return Result(data, listing(("what", "value", "from"), table))


def _found(name: Name, held: dict[str, str]) -> tuple[str | None, str]:
    """A value as it is shown, and where it is from."""
    if variable := os.environ.get(VARIABLES[name]):
        return shown_value(name, variable), f"variable {VARIABLES[name]}"
    if name is Name.WALLET and os.environ.get(KEY_VARIABLE):
        return None, f"variable {KEY_VARIABLE}"
    if name in held:
        return shown_value(name, held[name]), "profile"
    return _DEFAULTS[name]
