"""The model and the tokens that a run's config names and that are not there yet: made as a file next to it says.

Next to NAME.toml, NAME.files.toml has the options of `model init` in [model], of `data tokenize` in [tokens] and of
`data fetch` in [fetch]. `aftermath-solana run-files CONFIG` makes what is missing and nothing else.

Decided: they are made where the config says that they are, as every member will look for them, and kept for the next
time; under another name first, so that what is there is whole.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aftermath.base.errors import AftermathError, UsageError
from aftermath.base.files import parents_made
from aftermath.base.quiet import Quietly
from aftermath.config.document import RunConfig
from aftermath.config.recipe import recipe_of
from aftermath.testnet.chain import SOLANA
from aftermath.testnet.configs import chosen
from aftermath.testnet.processes import call

COMMANDS = {
    "model": ("model init", "--out"),
    "tokens": ("data tokenize", "--output"),
    "fetch": ("data fetch", "--output"),
}
"""What a table has the options of, and which of these says where to."""


def log_of(path: Path) -> Path:
    """Return where the commands write that make the files of a config."""
    return Path("runs") / "logs" / f"{path.stem}-files.log"


def make_missing(
    path: Path,
    config: RunConfig,
    log: Path,
    environment: Mapping[str, str],
    begins: Callable[[Path], None] = lambda _: None,
) -> list[Path]:
    """Make what the config of this file names and nobody has made, and return what that was.

    `begins` is called with each place before it is made. Raises UsageError, StageError.
    """
    missing: list[tuple[str, Mapping[str, Any], Path]] = []
    for what, tables in (("model", ("model",)), ("tokens", ("tokens", "fetch"))):
        place = _named(config, what)
        if place is None or place.exists():
            continue
        recipe = recipe_of(path)
        table = next((name for name in tables if name in recipe), None)
        if table is None:
            words, option = COMMANDS[tables[0]]
            raise UsageError(
                f"{path} names {place}, which is not there", f"Make it: aftermath-solana {words} {option} {place}"
            )
        missing.append((table, recipe[table], place))
    for table, options, place in missing:
        begins(place)
        _make(table, options, place, log, environment)
    return [place for _, _, place in missing]


def _named(config: RunConfig, what: str) -> Path | None:
    llm = config.llm
    local = llm.checkpoint.Local if what == "model" else llm.data_location.Local
    return Path(local.path).expanduser() if local is not None else None


def _make(table: str, options: Mapping[str, Any], place: Path, log: Path, environment: Mapping[str, str]) -> None:
    words, option = COMMANDS[table]
    part = place.with_name(f"{place.name}.part-{os.getpid()}")
    with parents_made(part.parent):
        try:
            call([*SOLANA, *words.split(), option, str(part), *flags(options)], log, environment)
            part.rename(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def flags(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        yield f"--{name}"
        if value is not True:
            yield str(value)


def main(words: Sequence[str]) -> int:
    """Make what is missing for one config, as `aftermath-solana run-files` does, which replaces this module's call."""
    if len(words) != 1 or words[0] in ("-h", "--help"):
        print("Usage: aftermath-solana run-files FILE")
        return 0 if words and words[0] in ("-h", "--help") else 2
    try:
        found = chosen(Path(words[0]))
        for place in make_missing(found.path, found.config, log_of(found.path), os.environ):
            print(f"made {place}")
    except AftermathError as error:
        print(f"error: {error.message}\nfix: {error.fix}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    with Quietly():
        sys.exit(main(sys.argv[1:]))
