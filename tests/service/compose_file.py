"""compose.yaml as Docker parses it: each service's command and health check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
_PROGRAM = ["aftermath-solana"]
"""The image's entry point, which the Dockerfile also states."""


@dataclass(frozen=True)
class Service:
    """A service of the compose file."""

    name: str
    command: list[str]
    """The whole command line."""
    environment: dict[str, str]
    health: list[str] | None
    """The command of the health check, or None for the image's."""
    after: dict[str, str]
    """The services that it waits for, and their required conditions."""
    restart: str | None
    entry: dict[str, Any]


def services() -> dict[str, Service]:
    """Return all services by name."""
    document = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return {name: _service(name, entry) for name, entry in document["services"].items()}


def _service(name: str, entry: dict[str, Any]) -> Service:
    words = [*entry.get("entrypoint", _PROGRAM), *entry["command"]]
    test = entry.get("healthcheck", {}).get("test")
    assert test is None or test[0] == "CMD"
    return Service(
        name,
        [_plain(word) for word in words],
        dict(entry.get("environment", {})),
        [_plain(word) for word in test[1:]] if test else None,
        {other: how["condition"] for other, how in entry.get("depends_on", {}).items()},
        entry.get("restart"),
        entry,
    )


def _plain(word: str) -> str:
    """Return a word without the escape that keeps a dollar sign literal."""
    assert "$" not in word.replace("$$", ""), f"{word!r} is a variable of the shell"
    return word.replace("$$", "$")
