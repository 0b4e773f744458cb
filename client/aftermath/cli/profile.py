"""The user's profile: a cluster, a wallet's file and a run for all commands.

A TOML file that only its owner can read, because an address may contain an API key. A flag comes
first, then the environment variable, the profile and the default. AFTERMATH_PROFILE names another
file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from aftermath.base.errors import AftermathError

PROFILE_VARIABLE = "AFTERMATH_PROFILE"
MAX_PROFILE_BYTES = 1 << 16
KEY_VARIABLE = "RAW_WALLET_PRIVATE_KEY"  # same as in `chain.wallet`, which is slow to import


class Name(StrEnum):
    """The values that the profile can store, by the names that `options.shared` uses."""

    RPC = "rpc"
    WS_RPC = "ws-rpc"
    WALLET = "wallet"
    RUN = "run"


VARIABLES = {
    Name.RPC: "RPC",
    Name.WS_RPC: "WS_RPC",
    Name.WALLET: "WALLET_PRIVATE_KEY_PATH",
    Name.RUN: "RUN_ID",
}
"""The environment variables that override stored values."""


class ProfileError(AftermathError):
    """The profile cannot be read or written."""

    code = "profile"


def profile_path() -> Path | None:
    """Return the profile's path, which may not exist. None if AFTERMATH_PROFILE is empty."""
    variable = os.environ.get(PROFILE_VARIABLE)
    if variable is not None:
        return Path(variable).expanduser() if variable else None
    from aftermath.base.files import config_directory

    return config_directory() / "profile.toml"


def read_profile() -> dict[str, str]:
    """Read the stored values. Raises ProfileError if the file is not a valid profile."""
    path = profile_path()
    if path is None or not path.exists():
        return {}
    from aftermath.base.bounded import Malformed, toml_value

    fix = f"Correct {path}, or remove it and store it again: aftermath-solana config set"
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_PROFILE_BYTES + 1)
        if len(raw) > MAX_PROFILE_BYTES:
            raise ProfileError(f"the profile {path} is larger than {MAX_PROFILE_BYTES} bytes", fix)
        values = toml_value(raw.decode())
    except OSError as error:
        raise ProfileError(
            f"cannot read the profile {path}: {error.strerror}", "Check its permissions"
        ) from None
    except (UnicodeDecodeError, Malformed) as error:
        raise ProfileError(f"the profile {path} is not valid TOML: {error}", fix) from None
    unknown = [
        name
        for name, value in values.items()
        if name not in list(Name) or not isinstance(value, str)
    ]
    if unknown:
        raise ProfileError(
            f"the profile {path} has an unknown entry or one that is not text: {unknown[0]!r}", fix
        )
    return values


def write_profile(values: Mapping[str, str]) -> Path:
    """Replace the profile atomically with these values, readable only by this user.

    Raises ProfileError.
    """
    path = profile_path()
    if path is None:
        raise ProfileError(
            f"{PROFILE_VARIABLE} is empty, so there is no profile",
            "Unset it, or set it to the path of a file",
        )
    from aftermath.base.files import fix_of, partial_path
    from aftermath.config.keys import written

    text = (
        "# Defaults of aftermath-solana, for options and variables that are not set (config set).\n"
    )
    text += "".join(f"{name} = {written(value)}\n" for name, value in values.items())
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with partial_path(path) as partial:
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        fix = f"{fix_of(error)}: {PROFILE_VARIABLE}=FILE"
        raise ProfileError(f"cannot write the profile {path}: {error.strerror}", fix) from None
    return path


def option_values() -> dict[str, str]:
    """Return the profile's values that options may take, without a wallet if a key is given."""
    values = read_profile()
    if os.environ.get(KEY_VARIABLE):
        values.pop(Name.WALLET, None)
    return values


def profile_summary(values: Mapping[str, str]) -> str:
    """Stored values in a line, without the API keys that addresses may have."""
    return ", ".join(f"{name} {shown_value(name, value)}" for name, value in values.items())


def shown_value(name: str, value: str) -> str:
    """Return a value for display: addresses without API keys."""
    if name not in (Name.RPC, Name.WS_RPC):
        return value
    from aftermath.chain.endpoints import shown

    return shown(value)
