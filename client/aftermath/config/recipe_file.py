"""The recipe file NAME.files.toml next to a config NAME.toml: how to make its model and tokens.

`aftermath-solana run-files` makes them.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from aftermath.base.bounded import Malformed, toml_value
from aftermath.base.errors import ConfigError

RECIPE_SUFFIX = ".files.toml"


def recipe_file(path: Path) -> Path:
    """Return the path of the recipe file for the config at `path`. It may not exist."""
    return path.with_suffix(RECIPE_SUFFIX)


def recipe_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return the contents of the file next to a config; empty without one. Raises ConfigError."""
    file = recipe_file(path)
    try:
        return toml_value(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (UnicodeDecodeError, Malformed) as error:
        raise ConfigError(
            f"{file} is not valid TOML: {error}", "Correct it, or remove it"
        ) from None


def run_files_command(path: Path) -> str:
    """Return the command that creates a config's model and tokens from its recipe file."""
    return f"aftermath-solana run-files {shlex.quote(str(path))}"


def missing_file_fix(path: Path, *tables: str) -> str:
    """Return the fix for a missing file that the recipe can create, or an empty string."""
    if recipe_of(path).keys().isdisjoint(tables):
        return ""
    return f"Create it first, as {recipe_file(path)} describes: {run_files_command(path)}"
