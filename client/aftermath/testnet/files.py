"""Find a run's config, and create the model and the tokens that it names.

A server's state.toml also serves as a config. Next to NAME.toml, NAME.files.toml holds the options
of `model init`, `data tokenize` and `data fetch`. `aftermath-solana run-files CONFIG` creates the
missing ones. It writes under a temporary name first, so an interrupted run leaves no partial files.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aftermath.base.bounded import Malformed, toml_value
from aftermath.base.errors import AftermathError, UsageError
from aftermath.base.files import parents_made
from aftermath.base.quiet_interrupts import QuietInterrupts
from aftermath.base.text import is_repository
from aftermath.config.document import RunConfig, load_config, parse_as
from aftermath.config.recipe_file import recipe_of
from aftermath.testnet.chain import SOLANA
from aftermath.testnet.processes import call

NAMES = ("config.toml", "state.toml")
"""File names of a config in a directory."""
OF_A_SERVER = ("run_id", "run_state", "progress")
_PACKAGE = Path(__file__).resolve().parents[1]
SHIPPED = (
    _PACKAGE / "shipped" if (_PACKAGE / "shipped").is_dir() else _PACKAGE.parents[1] / "config"
)
"""Directories of the shipped configs: in the package, or next to it in a checkout."""


@dataclass(frozen=True)
class ChosenConfig:
    """A config file, its text and its parsed config."""

    path: Path
    text: str
    config: RunConfig


def chosen(name_or_path: Path, checkpoint: str | None = None) -> ChosenConfig:
    """Return the config, with another checkpoint if one is given. Raises UsageError,
    ConfigError.
    """
    path = find(name_or_path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
        tables = toml_value(text)
    except (OSError, ValueError, Malformed):
        return ChosenConfig(path, "", load_config(path))  # raises with the reason
    ours = {name: table for name, table in tables.items() if name not in OF_A_SERVER}
    if checkpoint is not None and isinstance(llm := ours.get("model", {}).get("LLM"), dict):
        llm["checkpoint"] = _config_path(checkpoint)
    elif len(ours) == len(tables):
        return ChosenConfig(path, text, load_config(path))
    text = "\n".join(_written(ours)) + "\n"
    return ChosenConfig(path, text, parse_as(text, str(path), RunConfig))


def find(name_or_path: Path) -> Path:
    """Return the config file of a path. Raises UsageError."""
    words = name_or_path.parts[1:] if name_or_path.parts[:1] == ("config",) else name_or_path.parts
    places = (
        [name_or_path] if name_or_path.is_absolute() else [name_or_path, SHIPPED.joinpath(*words)]
    )
    for candidate in places:
        for path in (candidate, *(candidate / name for name in NAMES)):
            if path.is_file():
                return path
    shipped = ", ".join(sorted(str(path.relative_to(SHIPPED)) for path in configs()))
    raise UsageError(
        f"there is no config at {name_or_path}",
        f"Name a file, a directory with a config.toml, or one of: {shipped}",
    )


def configs() -> Iterator[Path]:
    """Return the configs of runs that come with the package."""
    return (path for path in SHIPPED.glob("*/*config.toml"))


def _config_path(checkpoint: str) -> dict[str, Any]:
    if Path(checkpoint).expanduser().is_dir():
        return {"Local": str(Path(checkpoint).expanduser().absolute())}
    if is_repository(checkpoint):
        return {"Hub": {"repo_id": checkpoint}}
    raise UsageError(
        f"--first-client-checkpoint {checkpoint} is neither a directory nor a repository",
        "Name a checkpoint's directory, or a repository of the Hub as OWNER/NAME",
    )


def _written(tables: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Return the lines of an equivalent TOML file."""
    values = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    if path and (values or not tables):
        yield f"[{path}]"
    yield from (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _written(value, f"{path}.{key}" if path else key)


COMMANDS = {
    "model": ("model init", "--out"),
    "tokens": ("data tokenize", "--output"),
    "fetch": ("data fetch", "--output"),
}
"""The command whose options a table has, and the option for its output."""


def log_of(path: Path) -> Path:
    """Return the log of the commands that make the files of a config."""
    return Path("runs") / "logs" / f"{path.stem}-files.log"


def make_missing(
    path: Path,
    config: RunConfig,
    log: Path,
    environment: Mapping[str, str],
    begins: Callable[[Path], None] = lambda _: None,
) -> list[Path]:
    """Create the missing files that this config names, and return them.

    `begins` is called with each path before it is created. Raises UsageError, ProcessError.
    """
    missing: list[tuple[str, Mapping[str, Any], Path]] = []
    for kind, tables in (("model", ("model",)), ("tokens", ("tokens", "fetch"))):
        path_in_config = _configured_path(config, kind)
        if path_in_config is None or path_in_config.exists():
            continue
        recipe = recipe_of(path)
        table = next((name for name in tables if name in recipe), None)
        if table is None:
            words, option = COMMANDS[tables[0]]
            raise UsageError(
                f"{path} names {path_in_config}, which is not there",
                f"Make it: aftermath-solana {words} {option} {path_in_config}",
            )
        missing.append((table, recipe[table], path_in_config))
    for table, options, path_in_config in missing:
        begins(path_in_config)
        _make(table, options, path_in_config, log, environment)
    return [path_in_config for _, _, path_in_config in missing]


def _configured_path(config: RunConfig, kind: str) -> Path | None:
    llm = config.llm
    local = llm.checkpoint.Local if kind == "model" else llm.data_location.Local
    return Path(local.path).expanduser() if local is not None else None


def _make(
    table: str, options: Mapping[str, Any], path: Path, log: Path, environment: Mapping[str, str]
) -> None:
    words, option = COMMANDS[table]
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    with parents_made(part.parent):
        try:
            call([*SOLANA, *words.split(), option, str(part), *flags(options)], log, environment)
            part.rename(path)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def flags(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        yield f"--{name}"
        if value is not True:
            yield str(value)


def main(arguments: Sequence[str]) -> int:
    """Create the missing files of one config, as `aftermath-solana run-files` does."""
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        print("Usage: aftermath-solana run-files FILE")
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    try:
        choice = chosen(Path(arguments[0]))
        for path in make_missing(choice.path, choice.config, log_of(choice.path), os.environ):
            print(f"made {path}")
    except AftermathError as error:
        print(f"error: {error.message}\nfix: {error.fix}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    with QuietInterrupts():
        sys.exit(main(sys.argv[1:]))
