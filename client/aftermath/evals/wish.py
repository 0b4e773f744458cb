"""What is to be evaluated. No torch here: settings and help take their words from it."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE_CHOICE = "source-choice"
"""The task of our own."""
DOCS = 100


@dataclass(frozen=True)
class Wanted:
    """Tasks, and how they are asked."""

    tasks: tuple[str, ...]
    fewshot: int = 0
    """Examples before each question."""
    seed: int = 0
    docs: int = DOCS
    """Questions of each task at most."""
