"""The config of a local testnet's run: a file, a directory with one, or one of those that come with the package.

Decided: a server's state.toml serves as well as a run's config.toml, since they differ in what only says that a run
begins; a file that is taken as it is keeps its text, so that what is wrong in it is told with its lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftermath.base.bounded import Malformed, toml_value
from aftermath.base.errors import UsageError
from aftermath.base.repository import is_repository
from aftermath.config.document import RunConfig, load_config, parse_as

NAMES = ("config.toml", "state.toml")
"""What a directory calls its config."""
OF_A_SERVER = ("run_id", "run_state", "progress")
_PACKAGE = Path(__file__).resolve().parents[1]
SHIPPED = _PACKAGE / "shipped" if (_PACKAGE / "shipped").is_dir() else _PACKAGE.parents[1] / "config"
"""Where the shipped configs are: in the package, or next to it in a checkout."""


@dataclass(frozen=True)
class Chosen:
    """A config file, and what is made of it."""

    path: Path
    text: str
    config: RunConfig


def chosen(given: Path, checkpoint: str | None = None) -> Chosen:
    """The config, which begins with another checkpoint if one is given. Raises UsageError, ConfigError."""
    path = find(given)
    try:
        text = path.read_bytes().decode("utf-8-sig")
        tables = toml_value(text)
    except (OSError, ValueError, Malformed):
        return Chosen(path, "", load_config(path))  # which says what is wrong
    ours = {name: table for name, table in tables.items() if name not in OF_A_SERVER}
    if checkpoint is not None and isinstance(llm := ours.get("model", {}).get("LLM"), dict):
        llm["checkpoint"] = _place(checkpoint)
    elif len(ours) == len(tables):
        return Chosen(path, text, load_config(path))
    text = "\n".join(_written(ours)) + "\n"
    return Chosen(path, text, parse_as(text, str(path), RunConfig))


def find(given: Path) -> Path:
    """The file that is meant. Raises UsageError."""
    words = given.parts[1:] if given.parts[:1] == ("config",) else given.parts
    places = [given] if given.is_absolute() else [given, SHIPPED.joinpath(*words)]
    for place in places:
        for path in (place, *(place / name for name in NAMES)):
            if path.is_file():
                return path
    shipped = ", ".join(sorted(str(path.relative_to(SHIPPED)) for path in configs()))
    raise UsageError(
        f"there is no config at {given}", f"Name a file, a directory with a config.toml, or one of: {shipped}"
    )


def configs() -> Iterator[Path]:
    """The configs of runs that come with the package."""
    return (path for path in SHIPPED.glob("*/*config.toml"))


def _place(checkpoint: str) -> dict[str, Any]:
    if Path(checkpoint).expanduser().is_dir():
        return {"Local": str(Path(checkpoint).expanduser().absolute())}
    if is_repository(checkpoint):
        return {"Hub": {"repo_id": checkpoint}}
    raise UsageError(
        f"--first-client-checkpoint {checkpoint} is no directory and no repository",
        "Name a checkpoint's directory, or a repository of the Hub as OWNER/NAME",
    )


def _written(tables: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The lines of a TOML file that says the same."""
    values = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    if path and (values or not tables):
        yield f"[{path}]"
    yield from (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _written(value, f"{path}.{key}" if path else key)
