"""Evaluation: likelihoods, our own task, and a member between its rounds."""

from __future__ import annotations

import asyncio
import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from aftermath.base.concurrency import ThreadWorker
from aftermath.base.errors import Unsuitable, UsageError
from aftermath.evals import suite
from aftermath.evals.eval_options import SOURCE_CHOICE, EvalRequest, eval_request
from aftermath.evals.likelihood import asked_of, generate_greedily, likelihood
from aftermath.evals.suite import check_known, evaluate
from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.member.rounds import evaluations
from aftermath.member.rounds.evaluations import Evaluations
from aftermath.model.initial_weights import init_weights
from aftermath.model.network import LanguageModel
from aftermath.model.tokenizer import Tokenizer
from evals.known_text import CONFIG, TEXT
from model.library_tokenizer import isolated_tokenizer

torch.set_num_threads(1)
# --- likelihoods ---


def test_likelihood_equals_loss_of_continuation(model: LanguageModel) -> None:
    ids = torch.arange(20)
    nats, _ = likelihood(model, ids[:1].tolist(), ids[1:].tolist())
    assert nats == pytest.approx(-model.loss(ids[None]).item() * 19, rel=1e-5)
    first, _ = likelihood(model, ids[:1].tolist(), ids[1:8].tolist())
    second, _ = likelihood(model, ids[:8].tolist(), ids[8:].tolist())
    assert first + second == pytest.approx(nats, rel=1e-5)


def test_text_longer_than_window_counts_by_its_end(model: LanguageModel) -> None:
    ids = torch.arange(60).tolist()
    assert likelihood(model, ids[:50], ids[50:]) == likelihood(model, ids[35:50], ids[50:])
    long, _ = likelihood(model, ids[:1], ids[1:])
    assert long == likelihood(model, ids[:-24], ids[-24:])[0]
    with pytest.raises(ValueError, match="must follow at least one token"):
        likelihood(model, [], [1])


def test_likelihood_recognises_greedy_continuation(
    model: LanguageModel, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(TEXT)
    tokens = generate_greedily(asked_of(model), ids[:16], 8, lambda tokens: False)
    assert likelihood(model, ids[:16], tokens)[1]
    assert not likelihood(model, ids[:16], [*tokens[:-1], (tokens[-1] + 1) % 256])[1]
    assert (
        len(generate_greedily(asked_of(model), ids[:16], 8, lambda tokens: len(tokens) == 3)) == 3
    )


# --- the task of our own ---


def test_questions_follow_seed_and_have_one_right_answer() -> None:
    some, again, others = (list(suite.questions(30, seed)) for seed in (1, 1, 2))
    assert some == again != others
    assert {question.right for question in some} == {0, 1, 2, 3}
    assert all(len(question.answers) == 4 for question in some)
    assert {len(answer) for question in some for answer in question.answers} == {40}


def test_model_of_known_text_answers_correctly(model: LanguageModel, tokenizer: Tokenizer) -> None:
    answers = ("print(i)", "zzzzzzzz", "qqqqqqqq", "!!!!!!!!")
    for right in range(4):
        turned = tuple(answers[(number - right) % 4] for number in range(4))
        question = suite.SourceQuestion("for i in range(3): ", turned, right)
        assert suite.is_right(asked_of(model), tokenizer, question)


def test_eval_figures_have_spread(model: LanguageModel, tokenizer: Tokenizer) -> None:
    request = EvalRequest((SOURCE_CHOICE,), seed=5, docs=20)
    (score,) = evaluate(asked_of(model), tokenizer, 24, request)
    assert (score.task, score.metric, score.docs) == (SOURCE_CHOICE, "acc", 20)
    assert score.error == pytest.approx(math.sqrt(score.value * (1 - score.value) / 20))
    assert evaluate(asked_of(model), tokenizer, 24, request) == [score]


@pytest.mark.parametrize("fewshot", [None, 0])
def test_own_task_ignores_fewshot(fewshot: int | None) -> None:
    assert eval_request(SOURCE_CHOICE, fewshot, None, None).tasks == (SOURCE_CHOICE,)


@pytest.mark.parametrize(
    ("tasks", "fewshot", "says"),
    [
        ("", None, "list of tasks is empty"),
        (" , ", None, "list of tasks is empty"),
        (SOURCE_CHOICE, 1, "no few-shot examples"),
    ],
)
def test_invalid_eval_requests_are_refused(tasks: str, fewshot: int | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_known(eval_request(tasks, fewshot, None, None))


@pytest.mark.parametrize("text", ["- a list", "task: 7", "{", None])
def test_invalid_task_file_is_refused(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=r"t\.yaml"):
        check_known(eval_request(str(file), 0, 0, 1))


def test_task_without_installed_harness_is_unsuitable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(Unsuitable, match="LM Evaluation Harness, which is not installed"):
        check_known(eval_request("hellaswag", 0, None, None))


# --- between rounds ---


class Member:
    """A member whose rounds each leave time for `passes` passes of its model."""

    passes = 40

    def __init__(self, evaluations: Evaluations, model: LanguageModel) -> None:
        self.evaluations = evaluations
        self.model = model
        self.step = 0
        self.events: list[event_types.Event] = []
        self.compute = ThreadWorker("replica")
        self._events = Events(lambda: 0.0, [self.events.append])

    async def rounds(self, most: int, enough: int = 2) -> list[event_types.Event]:
        """Run at most `most` rounds, and return the events."""
        for _ in range(most):
            if len(self.events) >= enough:
                break
            await self.round(self._some_passes)
        return self.events

    async def round(self, over: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run one round, which ends when `over` returns."""
        self.step += 1
        await self.evaluations.run(self.model, self.step, self._events, self.compute, over)

    async def _some_passes(self) -> None:
        begun = 0
        enough = asyncio.Event()
        loop = asyncio.get_running_loop()

        def count(module: nn.Module, _: object) -> None:
            nonlocal begun
            if threading.current_thread().name != "evaluations" or not isinstance(
                module, LanguageModel
            ):
                return
            begun += 1
            if begun == self.passes:
                loop.call_soon_threadsafe(enough.set)

        counting = register_module_forward_pre_hook(count)
        try:
            await enough.wait()
        finally:
            counting.remove()


def asking(docs: int) -> Evaluations:
    return Evaluations(EvalRequest((SOURCE_CHOICE,), docs=docs), isolated_tokenizer(), 24)


@pytest.mark.slow
async def test_member_is_evaluated_between_rounds(
    model: LanguageModel, tokenizer: Tokenizer
) -> None:
    member = Member(asking(32), model)
    events = await member.rounds(600)
    evaluations = [event for event in events if isinstance(event, event_types.Evaluated)]
    assert len(evaluations) == len(events) == 2
    (at_rest,) = evaluate(asked_of(model), tokenizer, 24, EvalRequest((SOURCE_CHOICE,), docs=32))
    for event in evaluations:
        assert (event.task, event.metric, event.value, event.docs) == (
            SOURCE_CHOICE,
            "acc",
            at_rest.value,
            32,
        )
    assert evaluations[0].step == 1 < evaluations[1].step < member.step, "it took more than a round"


async def test_evaluated_weights_are_of_reported_step(tokenizer: Tokenizer) -> None:
    """The weights change in the first round."""
    trained = CONFIG.build(0, init_weights(CONFIG, 3))
    at_first = evaluate(asked_of(trained), tokenizer, 24, EvalRequest((SOURCE_CHOICE,), docs=32))[
        0
    ].value
    member = Member(asking(32), trained)
    while not member.events:
        await member.rounds(1, 1)
        with torch.no_grad():
            for tensor in trained.parameters():
                tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)))
    assert member.step > 1, "it took more than a round"
    (event,) = member.events
    assert isinstance(event, event_types.Evaluated)
    assert (event.step, event.value) == (1, at_first)
    assert (
        evaluate(asked_of(trained), tokenizer, 24, EvalRequest((SOURCE_CHOICE,), docs=32))[0].value
        != at_first
    )


async def test_starting_round_interrupts_evaluation_pass(
    model: LanguageModel, tokenizer: Tokenizer
) -> None:
    """The round begins during a pass and gets the thread at once. The pass is repeated."""
    begun = threading.Event()
    resumed = threading.Event()

    def hold(module: nn.Module, _: object) -> None:
        if threading.current_thread().name == "evaluations" and isinstance(module, nn.RMSNorm):
            begun.set()
            resumed.wait()

    member = Member(asking(20), model)
    hook = register_module_forward_pre_hook(hold)
    try:
        await member.round(lambda: asyncio.to_thread(begun.wait, 60))
        assert begun.is_set()
        assert await member.compute(
            lambda: torch.is_tensor(model(torch.zeros(1, 4, dtype=torch.int64)))
        )
    finally:
        resumed.set()
        hook.remove()
    (event,) = await member.rounds(600, 1)
    (at_rest,) = evaluate(asked_of(model), tokenizer, 24, EvalRequest((SOURCE_CHOICE,), docs=20))
    assert isinstance(event, event_types.Evaluated)
    assert (event.step, event.value) == (1, at_rest.value)


async def test_evaluated_copy_is_freed_afterwards(model: LanguageModel) -> None:
    modules = weakref.WeakSet[nn.Module]()

    def see(module: nn.Module, _: object) -> None:
        if threading.current_thread().name == "evaluations":
            modules.add(module)

    member = Member(asking(20), model)
    hook = register_module_forward_pre_hook(see)
    try:
        await member.rounds(600, 1)
    finally:
        hook.remove()
    gc.collect()
    assert len(member.events) == 1
    assert not modules


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Unsuitable("the task x cannot be had", "Name another"), "cannot be had"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
async def test_failing_evaluation_is_reported_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(evaluations, "evaluate", fail)
    (event,) = await Member(asking(20), model).rounds(5)
    assert isinstance(event, event_types.Warning)
    assert says in event.message
