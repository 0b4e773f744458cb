"""The environment of commands that are started from here: what a user's own runs need must not
steer them.
"""

from __future__ import annotations

import os

from aftermath.chain.wallet import IDENTITY_VARIABLE, WALLET_VARIABLE
from aftermath.cli.main import INDEX, load
from aftermath.cli.next_steps import QUIET
from aftermath.cli.profile import PROFILE_VARIABLE


def environment() -> dict[str, str]:
    """The variables of this process but for those that options are read from, and those that hold
    keys; no profile, and quiet.
    """
    options = {
        str(option.envvar) for name in INDEX for option in load(name).params if option.envvar
    }
    read = options | {WALLET_VARIABLE, IDENTITY_VARIABLE}
    kept = {name: value for name, value in os.environ.items() if name not in read}
    return kept | {PROFILE_VARIABLE: "", QUIET: "1"}
