"""The environment of child commands, without the user's own options and keys."""

from __future__ import annotations

import os

from aftermath.chain.wallet import IDENTITY_VARIABLE, WALLET_VARIABLE
from aftermath.cli.main import INDEX, load
from aftermath.cli.next_steps import QUIET
from aftermath.cli.profile import PROFILE_VARIABLE


def child_environment() -> dict[str, str]:
    """Return this process's environment without option variables, keys and profile, and quiet."""
    options = {
        str(option.envvar) for name in INDEX for option in load(name).params if option.envvar
    }
    hidden = options | {WALLET_VARIABLE, IDENTITY_VARIABLE}
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    return inherited | {PROFILE_VARIABLE: "", QUIET: "1"}
