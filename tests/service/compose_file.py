"""compose.yaml as Docker would read it: what each service starts, and by what its health
is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
_PROGRAM = ["aftermath-solana"]
"""The image's entry point, which Dockerfile states too."""


@dataclass(frozen=True)
class Service:
    """A service of the compose file."""

    name: str
    command: list[str]
    """The whole line."""
    environment: dict[str, str]
    health: list[str] | None
    """The command that asks; None for that of the image."""
    after: dict[str, str]
    """Services that it waits for, and for what of them."""
    restart: str | None
    given: dict[str, Any]


def services() -> dict[str, Service]:
    """All services, by name."""
    document = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return {name: _service(name, given) for name, given in document["services"].items()}


def _service(name: str, given: dict[str, Any]) -> Service:
    words = [*given.get("entrypoint", _PROGRAM), *given["command"]]
    test = given.get("healthcheck", {}).get("test")
    assert test is None or test[0] == "CMD"
    return Service(
        name,
        [_plain(word) for word in words],
        dict(given.get("environment", {})),
        [_plain(word) for word in test[1:]] if test else None,
        {other: how["condition"] for other, how in given.get("depends_on", {}).items()},
        given.get("restart"),
        given,
    )


def _plain(word: str) -> str:
    """A word without the form that keeps a dollar sign from being a variable of the file."""
    assert "$" not in word.replace("$$", ""), f"{word!r} is a variable of the shell"
    return word.replace("$$", "$")
