"""A local replacement for the Hub that takes uploads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from aftermath.member.checkpoint_writer import Hub


class Repository:
    """Copies each upload to a directory per commit, named by the commit message."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.sources = list[Path]()
        self.before: Callable[[], None] = lambda: None
        """Called at every upload; what it raises is the upload's failure."""
        place.mkdir()

    def upload(self, directory: Path, message: str) -> str:
        self.sources.append(directory)
        self.before()
        commit = message.replace(" ", "-")
        shutil.copytree(directory, self.place / commit)
        return commit

    @property
    def commits(self) -> list[str]:
        return sorted(path.name for path in self.place.iterdir())

    @property
    def hub(self) -> Hub:
        return Hub("team/model", self.upload)


def raising(error: Exception) -> Callable[[], None]:
    """Return a function that raises this error."""

    def fail() -> None:
        raise error

    return fail
