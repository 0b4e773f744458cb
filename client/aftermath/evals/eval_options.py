"""The tasks to evaluate and their settings. Imports no torch, because help reads it."""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.base.errors import UsageError

SOURCE_CHOICE = "source-choice"
"""The name of our own task."""
DOCS = 100


@dataclass(frozen=True)
class EvalRequest:
    """Tasks and their settings."""

    tasks: tuple[str, ...]
    fewshot: int = 0
    """Examples before each question."""
    seed: int = 0
    docs: int = DOCS
    """Maximum number of questions per task."""


def eval_request(
    tasks: str, fewshot: int | None, seed: int | None, docs: int | None
) -> EvalRequest:
    """Return the request that the options describe, without looking for the tasks. Raises
    UsageError.
    """
    names = tuple(dict.fromkeys(name for name in tasks.replace(",", " ").split()))
    if not names:
        raise UsageError("the list of tasks is empty", f"Name a task, for example {SOURCE_CHOICE}")
    if fewshot and SOURCE_CHOICE in names:
        raise UsageError(
            f"{SOURCE_CHOICE} takes no few-shot examples",
            "Omit the number of examples, or name another task",
        )
    return EvalRequest(names, fewshot or 0, seed or 0, docs or DOCS)
