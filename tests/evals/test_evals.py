"""What a model is asked: likelihoods, the task of our own, the harness, and a member between its rounds."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import threading
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from aftermath.base.errors import Unsuitable, UsageError
from aftermath.base.worker import ThreadWorker
from aftermath.data.bytelevel import VOCAB_SIZE, byte_tokenizer
from aftermath.evals import source_choice
from aftermath.evals.likelihood import asked_of, likelihood, written
from aftermath.evals.suite import check_known, evaluated
from aftermath.evals.wish import SOURCE_CHOICE, Wanted, wanted
from aftermath.member.rounds.evaluations import Evaluations
from aftermath.model.architectures import config_of
from aftermath.model.initial import init_weights
from aftermath.model.network import LanguageModel
from aftermath.model.tokenizer import Tokenizer
from aftermath.watch import kinds
from aftermath.watch.events import Events
from model.of_library import in_its_process

torch.set_num_threads(1)
CONFIG = config_of(
    {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 24,
        "eos_token_id": VOCAB_SIZE - 1,
    }
)
TEXT = "for i in range(3): print(i)\n"


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """A model that knows one text by heart."""
    torch.manual_seed(0)
    network = CONFIG.build(0, {name: tensor * 4 for name, tensor in init_weights(CONFIG, 3).items()})
    ids = torch.tensor([byte_tokenizer().encode(TEXT * 2).ids])
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for start in list(range(20)) * 12:
        optimizer.zero_grad()
        network.loss(ids[:, start : start + 24]).backward()
        optimizer.step()
    return network


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return in_its_process()


# --- likelihoods ------------------------------------------------------------------------------------------------------


def test_a_likelihood_is_the_loss_of_the_continuation(model: LanguageModel) -> None:
    ids = torch.arange(20)
    nats, _ = likelihood(model, ids[:1].tolist(), ids[1:].tolist())
    assert nats == pytest.approx(-model.loss(ids[None]).item() * 19, rel=1e-5)
    first, _ = likelihood(model, ids[:1].tolist(), ids[1:8].tolist())
    second, _ = likelihood(model, ids[:8].tolist(), ids[8:].tolist())
    assert first + second == pytest.approx(nats, rel=1e-5)


def test_a_text_longer_than_the_window_counts_by_its_end(model: LanguageModel) -> None:
    ids = torch.arange(60).tolist()
    assert likelihood(model, ids[:50], ids[50:]) == likelihood(model, ids[35:50], ids[50:])
    long, _ = likelihood(model, ids[:1], ids[1:])
    assert long == likelihood(model, ids[:-24], ids[-24:])[0]
    with pytest.raises(ValueError, match="before it"):
        likelihood(model, [], [1])


def test_what_the_model_would_have_written_is_known(model: LanguageModel, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    made = written(asked_of(model), ids[:16], 8, lambda made: False)
    assert likelihood(model, ids[:16], made)[1]
    assert not likelihood(model, ids[:16], [*made[:-1], (made[-1] + 1) % 256])[1]
    assert len(written(asked_of(model), ids[:16], 8, lambda made: len(made) == 3)) == 3


# --- the task of our own ----------------------------------------------------------------------------------------------


def test_questions_are_the_seeds_and_have_one_right_answer() -> None:
    some, again, others = (list(source_choice.questions(30, seed)) for seed in (1, 1, 2))
    assert some == again != others
    assert {question.right for question in some} == {0, 1, 2, 3}
    assert all(len(question.answers) == 4 for question in some)
    assert {len(answer) for question in some for answer in question.answers} == {40}


def test_who_knows_the_text_is_right(model: LanguageModel, tokenizer: Tokenizer) -> None:
    answers = ("print(i)", "zzzzzzzz", "qqqqqqqq", "!!!!!!!!")
    for right in range(4):
        turned = tuple(answers[(number - right) % 4] for number in range(4))
        question = source_choice.Question("for i in range(3): ", turned, right)
        assert source_choice.is_right(asked_of(model), tokenizer, question)


def test_figures_come_with_their_spread(model: LanguageModel, tokenizer: Tokenizer) -> None:
    wish = Wanted((SOURCE_CHOICE,), seed=5, docs=20)
    (score,) = evaluated(asked_of(model), tokenizer, 24, wish)
    assert (score.task, score.metric, score.docs) == (SOURCE_CHOICE, "acc", 20)
    assert score.error == pytest.approx(math.sqrt(score.value * (1 - score.value) / 20))
    assert evaluated(asked_of(model), tokenizer, 24, wish) == [score]


@pytest.mark.parametrize("fewshot", [None, 0])
def test_our_own_task_is_asked_without_examples(fewshot: int | None) -> None:
    assert wanted(SOURCE_CHOICE, fewshot, None, None).tasks == (SOURCE_CHOICE,)


@pytest.mark.parametrize(
    ("tasks", "fewshot", "says"),
    [
        ("", None, "no task"),
        (" , ", None, "no task"),
        (SOURCE_CHOICE, 1, "no examples"),
        ("unheard_of", 0, "no task unheard_of"),
    ],
)
def test_wrong_wishes_are_named(tasks: str, fewshot: int | None, says: str) -> None:
    if tasks.startswith("un"):
        pytest.importorskip("lm_eval")
    with pytest.raises(UsageError, match=says):
        check_known(wanted(tasks, fewshot, None, None))


# --- the harness ------------------------------------------------------------------------------------------------------


def task(place: Path, answer: str = TEXT[16:19], **said: Any) -> str:
    """A task of one's own: a YAML file and its data."""
    lines = [{"q": TEXT[:16], "c": [answer, "~~~"], "a": 0}, {"q": TEXT[:10], "c": ["~~~", TEXT[10:13]], "a": 1}]
    (place / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = {
        "task": "of_ours",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(place / "data.jsonl")}, "cache_dir": str(place)},
        "test_split": "test",
        "doc_to_text": "{{q}}",
        "target_delimiter": "",
    }
    (place / "task.yaml").write_text(json.dumps(document | said))  # JSON is YAML
    return str(place / "task.yaml")


CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_choice": "{{c}}",
    "doc_to_target": "{{a}}",
    "metric_list": [{"metric": "acc"}],
}


def test_the_harness_asks_for_choices(model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    wish = wanted(task(tmp_path, **CHOICE), 0, 0, 10)
    (score,) = evaluated(asked_of(model), tokenizer, 24, wish)
    assert (score.task, score.metric, score.value, score.docs) == ("of_ours", "acc", 1.0, 2)


def test_the_harness_asks_for_text(model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    said = {
        "output_type": "generate_until",
        "doc_to_target": "{{c[0]}}",
        "generation_kwargs": {"until": ["~"], "max_gen_toks": 6},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    ids = written(asked_of(model), tokenizer.encode(TEXT[:16]), 6, lambda made: False)
    named = task(tmp_path, answer=tokenizer.decode(ids), **said)
    (score,) = evaluated(asked_of(model), tokenizer, 24, wanted(named, 0, 0, 1))
    assert (score.metric, score.value) == ("exact_match", 1.0)


def test_the_harness_asks_for_whole_texts(model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    said = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{q}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    }
    (score,) = evaluated(asked_of(model), tokenizer, 24, wanted(task(tmp_path, **said), 0, 0, 1))
    nats, _ = likelihood(model, [0], tokenizer.encode(TEXT[:16]))
    assert score.value == pytest.approx(math.exp(-nats / 16), rel=1e-5)


def test_data_that_cannot_be_had_are_a_sentence(model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    named = task(tmp_path, **CHOICE)
    (tmp_path / "data.jsonl").unlink()
    with pytest.raises(Unsuitable, match="cannot be had"):
        evaluated(asked_of(model), tokenizer, 24, wanted(named, 0, 0, 1))


@pytest.mark.parametrize("text", ["- a list", "task: 7", "{", None])
def test_a_file_that_is_no_task_is_named(text: str | None, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    file = tmp_path / "t.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=r"t\.yaml"):
        check_known(wanted(str(file), 0, 0, 1))


# --- between rounds ---------------------------------------------------------------------------------------------------


class Member:
    """Rounds that leave a member some hundredths of a second each, in which its model is asked."""

    def __init__(self, asked: Evaluations, model: LanguageModel) -> None:
        self.asked, self.model, self.step = asked, model, 0
        self.told: list[kinds.Event] = []
        self.compute = ThreadWorker("replica")
        self._events = Events(lambda: 0.0, [self.told.append])

    async def rounds(self, most: int, enough: int = 2) -> list[kinds.Event]:
        """So many rounds at most, and what was told by then."""
        for _ in range(most):
            if len(self.told) >= enough:
                break
            await self.round(lambda: asyncio.sleep(0.03))
        return self.told

    async def round(self, over: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """One, which ends when that returns."""
        self.step += 1
        await self.asked.go_on(self.model, self.step, self._events, self.compute, over)
        await asyncio.sleep(0.01)


def asking(docs: int) -> Evaluations:
    return Evaluations(Wanted((SOURCE_CHOICE,), docs=docs), in_its_process(), 24)


async def test_a_member_is_asked_between_rounds_and_told_of_whole(model: LanguageModel, tokenizer: Tokenizer) -> None:
    member = Member(asking(80), model)
    told = await member.rounds(600)
    found = [event for event in told if isinstance(event, kinds.Evaluated)]
    assert len(found) == len(told) == 2
    (at_rest,) = evaluated(asked_of(model), tokenizer, 24, Wanted((SOURCE_CHOICE,), docs=80))
    for event in found:
        assert (event.task, event.metric, event.value, event.docs) == (SOURCE_CHOICE, "acc", at_rest.value, 80)
    assert found[0].step == 1 < found[1].step < member.step, "it took more than a round"


async def test_answers_are_of_the_step_that_is_told(tokenizer: Tokenizer) -> None:
    """The weights change after every round."""
    trained = CONFIG.build(0, init_weights(CONFIG, 3))
    at_first = evaluated(asked_of(trained), tokenizer, 24, Wanted((SOURCE_CHOICE,), docs=80))[0].value
    member = Member(asking(80), trained)
    while not member.told:
        await member.rounds(1, 1)
        with torch.no_grad():
            for tensor in trained.parameters():
                tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(member.step)))
    assert member.step > 1, "it took more than a round"
    (event,) = member.told
    assert isinstance(event, kinds.Evaluated)
    assert (event.step, event.value) == (1, at_first)
    assert evaluated(asked_of(trained), tokenizer, 24, Wanted((SOURCE_CHOICE,), docs=80))[0].value != at_first


async def test_a_round_that_begins_waits_for_no_pass(model: LanguageModel, tokenizer: Tokenizer) -> None:
    """It begins in the middle of one, and has the replica's thread at once; the pass is made again."""
    begun, goes_on = threading.Event(), threading.Event()

    def hold(module: nn.Module, _: object) -> None:
        if threading.current_thread().name == "evaluations" and isinstance(module, nn.RMSNorm):
            begun.set()
            goes_on.wait()

    member = Member(asking(20), model)
    held = register_module_forward_pre_hook(hold)
    try:
        await member.round(lambda: asyncio.to_thread(begun.wait, 60))
        assert begun.is_set()
        assert await member.compute(lambda: torch.is_tensor(model(torch.zeros(1, 4, dtype=torch.int64))))
    finally:
        goes_on.set()
        held.remove()
    (event,) = await member.rounds(600, 1)
    (at_rest,) = evaluated(asked_of(model), tokenizer, 24, Wanted((SOURCE_CHOICE,), docs=20))
    assert isinstance(event, kinds.Evaluated)
    assert (event.step, event.value) == (1, at_rest.value)


async def test_the_copy_is_freed_once_all_is_told(model: LanguageModel) -> None:
    held = weakref.WeakSet[nn.Module]()

    def see(module: nn.Module, _: object) -> None:
        if threading.current_thread().name == "evaluations":
            held.add(module)

    member = Member(asking(20), model)
    seen = register_module_forward_pre_hook(see)
    try:
        await member.rounds(600, 1)
    finally:
        seen.remove()
    gc.collect()
    assert len(member.told) == 1
    assert not held


async def test_a_task_that_fails_is_told_once(model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    named = task(tmp_path, **CHOICE)
    (tmp_path / "data.jsonl").unlink()
    (event,) = await Member(Evaluations(wanted(named, 0, 0, 1), tokenizer, 24), model).rounds(100)
    assert isinstance(event, kinds.Warning)
    assert "cannot be had" in event.message
