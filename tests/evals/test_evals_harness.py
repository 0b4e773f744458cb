"""The LM Evaluation Harness evaluates our models. All tests that import it are here.

They are nightly: importing it takes 12 CPU seconds, and its requests to a model change only with
its releases.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from aftermath.base.errors import Unsuitable, UsageError
from aftermath.data.bytelevel import byte_tokenizer
from aftermath.evals.eval_options import eval_request
from aftermath.evals.harness import _model
from aftermath.evals.likelihood import asked_of, generate_greedily, likelihood
from aftermath.evals.suite import check_known, evaluate
from aftermath.model.network import LanguageModel
from aftermath.model.tokenizer import Tokenizer
from evals.known_text import TEXT

pytestmark = pytest.mark.nightly


@pytest.fixture(autouse=True)
def harness() -> None:
    pytest.importorskip("lm_eval")


def test_task_unknown_to_harness_is_named() -> None:
    with pytest.raises(UsageError, match="no task unheard_of"):
        check_known(eval_request("unheard_of", 0, None, None))


def task(place: Path, answer: str = TEXT[16:19], **fields: Any) -> str:
    """A user's task: a YAML file and its data."""
    lines = [
        {"q": TEXT[:16], "c": [answer, "~~~"], "a": 0},
        {"q": TEXT[:10], "c": ["~~~", TEXT[10:13]], "a": 1},
    ]
    (place / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = {
        "task": "of_ours",
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(place / "data.jsonl")},
            "cache_dir": str(place),
        },
        "test_split": "test",
        "doc_to_text": "{{q}}",
        "target_delimiter": "",
    }
    (place / "task.yaml").write_text(json.dumps(document | fields))  # JSON is YAML
    return str(place / "task.yaml")


CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_choice": "{{c}}",
    "doc_to_target": "{{a}}",
    "metric_list": [{"metric": "acc"}],
}


def test_harness_choice_task_is_scored(
    model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    request = eval_request(task(tmp_path, **CHOICE), 0, 0, 10)
    (score,) = evaluate(asked_of(model), tokenizer, 24, request)
    assert (score.task, score.metric, score.value, score.docs) == ("of_ours", "acc", 1.0, 2)


def test_harness_generation_task_is_scored(
    model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    fields = {
        "output_type": "generate_until",
        "doc_to_target": "{{c[0]}}",
        "generation_kwargs": {"until": ["~"], "max_gen_toks": 6},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    ids = generate_greedily(asked_of(model), tokenizer.encode(TEXT[:16]), 6, lambda tokens: False)
    task_name = task(tmp_path, answer=tokenizer.decode(ids), **fields)
    (score,) = evaluate(asked_of(model), tokenizer, 24, eval_request(task_name, 0, 0, 1))
    assert (score.metric, score.value) == ("exact_match", 1.0)


def test_harness_rolling_task_is_scored(
    model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    fields = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{q}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    }
    (score,) = evaluate(
        asked_of(model), tokenizer, 24, eval_request(task(tmp_path, **fields), 0, 0, 1)
    )
    nats, _ = likelihood(model, [tokenizer.end_id or 0], tokenizer.encode(TEXT[:16]))
    assert score.value == pytest.approx(math.exp(-nats / 16), rel=1e-5)


@pytest.mark.parametrize(
    ("special_tokens", "prefix"),
    [
        # as lm_eval's HFLM: the first token, else the last
        ({"bos_token": "a", "eos_token": "b"}, 97),
        ({"eos_token": "b"}, 98),
        ({}, 256),
    ],
)
def test_prefix_token_is_first_or_last_of_text(
    model: LanguageModel, special_tokens: dict[str, str], prefix: int
) -> None:
    companions = {"tokenizer_config.json": json.dumps(special_tokens).encode()}
    tokenizer = Tokenizer(byte_tokenizer().to_str().encode(), "tokenizer.json", companions)
    assert _model(asked_of(model), tokenizer, 24).prefix_token_id == prefix


def test_special_tokens_are_added_only_if_harness_asks(model: LanguageModel) -> None:
    begins = byte_tokenizer()
    begins.post_processor = processors.TemplateProcessing(single="! $A", special_tokens=[("!", 33)])
    companions = {"tokenizer_config.json": b'{"bos_token": "!"}'}
    harness_model = _model(
        asked_of(model), Tokenizer(begins.to_str().encode(), "tokenizer.json", companions), 24
    )
    assert harness_model.tok_encode("go") == [*b"!go"]
    assert harness_model.tok_encode("go", add_special_tokens=False) == [*b"go"]
    assert harness_model.tok_encode("!go") == [*b"!go"]  # a text that already has the prefix


def test_missing_harness_data_is_unsuitable(
    model: LanguageModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    task_name = task(tmp_path, **CHOICE)
    (tmp_path / "data.jsonl").unlink()
    with pytest.raises(Unsuitable, match="cannot be had"):
        evaluate(asked_of(model), tokenizer, 24, eval_request(task_name, 0, 0, 1))
