"""Evaluation tasks, run on a copy of the weights while the run does not need this member.

Each task sees the weights of one step, copied when it begins (4 bytes per parameter) and freed when
it is reported. One evaluation may take several rounds and epochs. A task that fails is reported
once and not retried.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aftermath.base.concurrency import ThreadWorker, Worker, first_of
from aftermath.base.errors import AftermathError
from aftermath.evals.eval_options import EvalRequest
from aftermath.evals.likelihood import Ask
from aftermath.evals.suite import Score, evaluate
from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.model.network import LanguageModel
from aftermath.model.tokenizer import Tokenizer
from aftermath.replica.frozen import Interrupted, frozen_copy

T = TypeVar("T")


class Evaluations:
    """Evaluates one member's model again and again, between its rounds."""

    def __init__(self, request: EvalRequest, tokenizer: Tokenizer, window: int) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._window = window
        self._worker = ThreadWorker("evaluations")
        self._free = threading.Event()
        """Set while the run does not need this member."""
        self._evaluation: asyncio.Future[list[Score]] | None = None
        self._step = -1
        """Step of the weights evaluated now or last."""
        self._failed = False

    async def run(
        self,
        model: LanguageModel,
        step: int,
        events: Events,
        compute: Worker,
        over: Callable[[], Coroutine[Any, Any, object]],
    ) -> None:
        """Evaluate the weights of `step` until `over` returns or all scores are reported."""
        if self._failed or (self._evaluation is None and step == self._step):
            return
        self._free.set()
        try:
            await first_of(over(), self._evaluate_and_report(model, step, events, compute))
        finally:
            self._free.clear()

    async def _evaluate_and_report(
        self, model: LanguageModel, step: int, events: Events, compute: Worker
    ) -> None:
        try:
            if self._evaluation is None:
                copied = await compute(lambda: frozen_copy(model, self._free.is_set))
                if copied is None:
                    return
                self._step = step
                self._evaluation = asyncio.ensure_future(self._evaluate(copied))
                del copied
            scores = await asyncio.shield(self._evaluation)
        except Exception as error:
            self._failed = True
            why = (
                error.message
                if isinstance(error, AftermathError)
                else f"{type(error).__name__}: {error}"
            )
            events.emit(event_types.Warning(message=f"evaluations stopped: {why}"))
            scores = []
        self._evaluation = None
        for score in scores:
            events.emit(
                event_types.Evaluated(
                    step=self._step,
                    task=score.task,
                    metric=score.metric,
                    value=score.value,
                    error=score.error,
                    docs=score.docs,
                )
            )

    async def _evaluate(self, model: LanguageModel) -> list[Score]:
        ask = self._whenever_free(model)
        return await self._worker(
            lambda: evaluate(ask, self._tokenizer, self._window, self._request)
        )

    def _whenever_free(self, model: LanguageModel) -> Ask:
        # Passes run on their own thread after this member's share is trained. A new round
        # interrupts the pass, which is repeated later, so no round waits for it.
        def ask(question: Callable[[LanguageModel], T]) -> T:
            while True:
                self._free.wait()
                try:
                    return question(model)
                except Interrupted:
                    continue

        return ask
