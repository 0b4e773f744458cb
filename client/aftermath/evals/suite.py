"""`source-choice`: which of four pieces of Python source continues another? A task that needs no network.

Decided
- Text is that of Python's standard library, the files that the demonstration and the laboratory hold out, so that a
  model trained on their other side has not seen it. Another version of Python has another text.
- The right answer is what stands there; the wrong ones are as long, from other held-out files. Guessing is right in one
  of four. Answers are compared by their likelihood per byte.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aftermath.data.tokenise import hold_out, standard_library, standard_library_root
from aftermath.evals.eval_options import SOURCE_CHOICE, Wanted
from aftermath.evals.likelihood import Ask, likelihood
from aftermath.model.tokenizer import Tokenizer

_CORPUS_BYTES, _HELD_OUT_PERCENT = 16_000_000, 20
_CONTEXT, _ANSWER, _ANSWERS = 160, 40, 4  # characters; answers


@dataclass(frozen=True)
class Question:
    """A piece of text, and pieces that may follow."""

    context: str
    answers: tuple[str, ...]
    right: int


def questions(count: int, seed: int) -> Iterator[Question]:
    """Yield `count` questions, the same ones for the same seed and Python."""
    texts, draw = _texts(), random.Random(seed)
    for _ in range(count):
        chosen = draw.sample(range(len(texts)), _ANSWERS)
        places = [draw.randrange(len(texts[one]) - _CONTEXT - _ANSWER) for one in chosen]
        pieces = [texts[one][place : place + _CONTEXT + _ANSWER] for one, place in zip(chosen, places, strict=True)]
        order = draw.sample(range(_ANSWERS), _ANSWERS)
        answers = tuple(pieces[number][_CONTEXT:] for number in order)
        yield Question(pieces[0][:_CONTEXT], answers, order.index(0))


def is_right(ask: Ask, tokenizer: Tokenizer, question: Question) -> bool:
    """Whether the model gives the right answer the most per byte."""
    context = tokenizer.encode(question.context)
    given = []
    for answer in question.answers:
        whole = tokenizer.encode(question.context + answer)
        kept = len(context) if whole[: len(context)] == context else len(context) - 1  # a token across the border
        nats, _ = ask(lambda model, whole=whole, kept=kept: likelihood(model, whole[:kept], whole[kept:]))  # type: ignore[misc]
        given.append(nats / len(answer.encode()))
    return max(range(len(given)), key=given.__getitem__) == question.right


@functools.cache
def _texts() -> tuple[str, ...]:
    """What is asked about: some MB, kept, since finding it takes a third of a second."""
    _, files = hold_out(standard_library(_CORPUS_BYTES), standard_library_root(), _HELD_OUT_PERCENT)
    return tuple(text for file in files if len(text := _read(file)) > 4 * (_CONTEXT + _ANSWER))


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="ignore")


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
    right = [is_right(ask, tokenizer, question) for question in questions(wish.docs, wish.seed)]
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
