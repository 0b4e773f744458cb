"""Tasks that the model is asked while it is trained, for whoever wants to see what it can do.

Decided
- Questions wait for the time from when this member's share of a round is done until the run goes on, and are answered
  one pass of the model at a time: the next round waits for one pass at most.
- One evaluation may take several rounds, and the weights change under it: it is told whole, with the steps of its first
  and last answer. When it is told the next begins, at the member's next round.
- A task that fails is told once, and asked no more; the run goes on.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from tokenizers import Tokenizer

from aftermath.base.errors import AftermathError
from aftermath.base.worker import Worker
from aftermath.evals.suite import Score, evaluated
from aftermath.evals.wish import Wanted
from aftermath.model.network import LanguageModel
from aftermath.watch import kinds
from aftermath.watch.events import Events

T = TypeVar("T")
_LOOK_AGAIN = 0.05  # seconds between looks for the next question, which are a moment apart


class Over(Exception):
    """Nobody answers any more."""


class Evaluations:
    """Asks one member's model again and again; the asking has a thread of its own, and no part in computing."""

    def __init__(self, wish: Wanted, tokenizer: Tokenizer, window: int) -> None:
        self._wish, self._tokenizer, self._window = wish, tokenizer, window
        self._questions: queue.SimpleQueue[tuple[Callable[[LanguageModel], Any], Future[Any]]] = queue.SimpleQueue()
        self._done: Future[list[Score]] | None = None
        self._began: int | None = None
        self._stopped = threading.Event()
        self._failed = False

    def stop(self) -> None:
        """Answer nothing more; whoever waits for an answer is told."""
        self._stopped.set()
        while not self._questions.empty():
            self._questions.get()[1].set_exception(Over())

    async def go_on(
        self, model: LanguageModel, events: Events, compute: Worker, step: int, same_round: Callable[[], bool]
    ) -> None:
        """Answer until the run is no longer in the round that trained the step."""
        if self._failed or self._stopped.is_set():
            return
        if self._done is None:
            self._done, self._began = Future(), step
            threading.Thread(target=self._ask_all, args=(self._done,), name="evaluations", daemon=True).start()
        while same_round():
            try:
                question, answer = self._questions.get_nowait()
            except queue.Empty:
                if self._done.done():
                    self._tell(events, step)
                    return
                await asyncio.sleep(_LOOK_AGAIN)
                continue
            try:
                answer.set_result(await compute(lambda: question(model)))  # noqa: B023  # run at once
            except Exception as error:
                answer.set_exception(error)
            except BaseException:
                answer.set_exception(Over())
                raise

    def _ask_all(self, done: Future[list[Score]]) -> None:
        try:
            done.set_result(evaluated(self._ask, self._tokenizer, self._window, self._wish))
        except Exception as error:
            done.set_exception(error)

    def _ask(self, question: Callable[[LanguageModel], T]) -> T:
        answer: Future[T] = Future()
        if self._stopped.is_set():
            raise Over
        self._questions.put((question, answer))
        return answer.result()

    def _tell(self, events: Events, step: int) -> None:
        assert self._done is not None
        assert self._began is not None
        error = self._done.exception()
        if error is None:
            for score in self._done.result():
                events.emit(
                    kinds.Evaluated(
                        first_step=self._began,
                        step=step,
                        task=score.task,
                        metric=score.metric,
                        value=score.value,
                        error=score.error,
                        docs=score.docs,
                    )
                )
        else:
            self._failed = True
            said = error.message if isinstance(error, AftermathError) else f"{type(error).__name__}: {error}"
            events.emit(kinds.Warning(message=f"this member evaluates no more: {said}"))
        self._done = None
