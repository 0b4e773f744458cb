"""Run evaluation tasks by name: our own `source-choice`, and those of the LM Evaluation Harness.

`source-choice` asks which of four pieces of Python source continues another, and needs no network.
Its text is the held-out part of the standard library, so it depends on the Python version.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aftermath.data.tokenise import hold_out, standard_library, standard_library_root
from aftermath.evals.eval_options import SOURCE_CHOICE, EvalRequest
from aftermath.evals.likelihood import Ask, likelihood
from aftermath.model.tokenizer import Tokenizer

_CORPUS_BYTES = 16_000_000
_HELD_OUT_PERCENT = 20
# characters; answers
_CONTEXT = 160
_ANSWER = 40
_ANSWERS = 4


@dataclass(frozen=True)
class SourceQuestion:
    """A piece of source text and its possible continuations."""

    context: str
    answers: tuple[str, ...]
    right: int


def questions(count: int, seed: int) -> Iterator[SourceQuestion]:
    """Yield `count` questions, the same ones for the same seed and Python."""
    texts = _texts()
    draw = random.Random(seed)
    for _ in range(count):
        files = draw.sample(range(len(texts)), _ANSWERS)
        starts = [draw.randrange(len(texts[file]) - _CONTEXT - _ANSWER) for file in files]
        pieces = [
            texts[file][start : start + _CONTEXT + _ANSWER]
            for file, start in zip(files, starts, strict=True)
        ]
        order = draw.sample(range(_ANSWERS), _ANSWERS)
        answers = tuple(pieces[number][_CONTEXT:] for number in order)
        yield SourceQuestion(pieces[0][:_CONTEXT], answers, order.index(0))


def is_right(ask: Ask, tokenizer: Tokenizer, question: SourceQuestion) -> bool:
    """Return whether the model gives the right answer the highest likelihood per byte."""
    context = tokenizer.encode(question.context)
    scores = []
    for answer in question.answers:
        tokens = tokenizer.encode(question.context + answer)
        # a token may span the border
        split = len(context) if tokens[: len(context)] == context else len(context) - 1
        nats, _ = ask(
            functools.partial(likelihood, context=tokens[:split], continuation=tokens[split:])
        )
        scores.append(nats / len(answer.encode()))
    return max(range(len(scores)), key=scores.__getitem__) == question.right


@functools.cache
def _texts() -> tuple[str, ...]:
    """Return the held-out source files. The result is cached, because reading some MB takes a third
    of a second.
    """
    _, files = hold_out(standard_library(_CORPUS_BYTES), standard_library_root(), _HELD_OUT_PERCENT)
    return tuple(text for file in files if len(text := _read(file)) > 4 * (_CONTEXT + _ANSWER))


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="ignore")


@dataclass(frozen=True)
class Score:
    """One metric of a task."""

    task: str
    metric: str
    value: float
    error: float | None
    """Standard error, if the task has one."""
    docs: int


def check_known(request: EvalRequest) -> None:
    """Raise UsageError for an unknown task, and Unsuitable if it needs the harness and that is
    missing.
    """
    if harness_tasks := [name for name in request.tasks if name != SOURCE_CHOICE]:
        from aftermath.evals.harness import check

        check(harness_tasks)


def evaluate(ask: Ask, tokenizer: Tokenizer, window: int, request: EvalRequest) -> list[Score]:
    """Return the scores of all tasks, in order. Raises Unsuitable for a task that cannot be run."""
    results = []
    for name in request.tasks:
        if name == SOURCE_CHOICE:
            results.append(_source_choice_score(ask, tokenizer, request))
            continue
        from aftermath.evals.harness import scores

        results += scores(ask, tokenizer, window, name, request)
    return results


def _source_choice_score(ask: Ask, tokenizer: Tokenizer, request: EvalRequest) -> Score:
    right = [
        is_right(ask, tokenizer, question) for question in questions(request.docs, request.seed)
    ]
    accuracy = sum(right) / len(right)
    return Score(
        SOURCE_CHOICE,
        "acc",
        accuracy,
        math.sqrt(accuracy * (1 - accuracy) / len(right)),
        len(right),
    )


def lines(scores: Sequence[Score]) -> str:
    """Return one line per score."""
    return "\n".join(
        f"{one.task}  {one.metric} {one.value:.4f}"
        + (f" ± {one.error:.4f}" if one.error is not None else "")
        + f"  ({one.docs} questions)"
        for one in scores
    )
