"""Tasks by name: one of our own, and those of the LM Evaluation Harness where it is installed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aftermath.evals import source_choice
from aftermath.evals.likelihood import Ask
from aftermath.evals.wish import SOURCE_CHOICE, Wanted
from aftermath.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class Score:
    """A figure of a task."""

    task: str
    metric: str
    value: float
    error: float | None
    """Its standard error, where the task has one."""
    docs: int


def check_known(wish: Wanted) -> None:
    """Raises UsageError for tasks that there are not, Unsuitable without the harness for one of its own."""
    if others := [name for name in wish.tasks if name != SOURCE_CHOICE]:
        from aftermath.evals.harness import check

        check(others)


def evaluated(ask: Ask, tokenizer: Tokenizer, window: int, wish: Wanted) -> list[Score]:
    """The figures of all tasks, in their order. Raises Unsuitable for a task that cannot be had."""
    found = []
    for name in wish.tasks:
        if name == SOURCE_CHOICE:
            found.append(_of_our_own(ask, tokenizer, wish))
            continue
        from aftermath.evals.harness import scores

        found += scores(ask, tokenizer, window, name, wish)
    return found


def _of_our_own(ask: Ask, tokenizer: Tokenizer, wish: Wanted) -> Score:
    right = [
        source_choice.is_right(ask, tokenizer, question) for question in source_choice.questions(wish.docs, wish.seed)
    ]
    part = sum(right) / len(right)
    return Score(SOURCE_CHOICE, "acc", part, math.sqrt(part * (1 - part) / len(right)), len(right))


def lines(scores: Sequence[Score]) -> str:
    """A line for each figure."""
    return "\n".join(
        f"{one.task}  {one.metric} {one.value:.4f}"
        + (f" ± {one.error:.4f}" if one.error is not None else "")
        + f"  ({one.docs} questions)"
        for one in scores
    )
