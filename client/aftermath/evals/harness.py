"""Evaluate our models with EleutherAI's LM Evaluation Harness.

The harness is an extra (`pip install 'aftermath[eval]'`), imported when one of its tasks is named.
A task is a harness name or a YAML file. Its data is downloaded when the task starts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aftermath.base.errors import Unsuitable, UsageError
from aftermath.evals.likelihood import Ask, generate_greedily, likelihood
from aftermath.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from aftermath.evals.eval_options import EvalRequest
    from aftermath.evals.suite import Score

_MOST_TOKENS = 256
_FILES = (".yaml", ".yml")
_FIX = "Run pip install 'aftermath[eval]', or use the task source-choice"


def check(names: Sequence[str]) -> None:
    """Raise Unsuitable if the harness is missing, and UsageError for an unknown task."""
    task_names = {name: _task_name(name) for name in names}
    known = set(_manager(names).all_tasks)
    for name in names:
        if task_names[name] not in known:
            raise UsageError(
                f"there is no task {name}",
                "Use source-choice, a task of the LM Evaluation Harness, or one of its YAML files",
            )


def scores(
    ask: Ask, tokenizer: Tokenizer, window: int, name: str, request: EvalRequest
) -> list[Score]:
    """Return the scores of one task or group. Raises Unsuitable if its data cannot be
    downloaded.
    """
    from lm_eval import evaluator

    from aftermath.evals.suite import Score

    seeds = {
        f"{kind}_seed": request.seed
        for kind in ("random", "numpy_random", "torch_random", "fewshot_random")
    }
    asker = _model(ask, tokenizer, window)
    # it runs git, which prints an error outside a repository
    evaluator.get_git_commit_hash = lambda: None
    try:
        evaluation: Any = evaluator.simple_evaluate(
            model=asker,
            tasks=[_task_name(name)],
            num_fewshot=request.fewshot,
            limit=request.docs,
            task_manager=_manager([name]),
            bootstrap_iters=0,
            log_samples=False,
            **seeds,
        )
    except (OSError, ImportError, ValueError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise Unsuitable(
            f"cannot load the task {name}: {first}",
            "Check that the Hugging Face Hub is reachable, or use the task source-choice",
        ) from None
    results = []
    for task, figures in evaluation["results"].items():
        for key, value in figures.items():
            metric, has_filter, filter_name = key.partition(",")
            if not has_filter or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            spread = figures.get(f"{metric}_stderr,{filter_name}")
            stderr = spread if isinstance(spread, float) and math.isfinite(spread) else None
            docs = evaluation.get("n-samples", {}).get(task, {}).get("effective", 0)
            results.append(
                Score(
                    task,
                    metric if filter_name == "none" else f"{metric} ({filter_name})",
                    float(value),
                    stderr,
                    docs,
                )
            )
    return results


def _task_name(name: str) -> str:
    """Return a task's name. For a YAML file, read it from the file."""
    if not name.endswith(_FILES):
        return name
    import yaml

    try:
        document = yaml.safe_load(Path(name).expanduser().read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(
            f"cannot read {name} as a task: {error}", "Name a YAML file of the harness"
        ) from None
    task = document.get("task") if isinstance(document, dict) else None
    if not isinstance(task, str):
        raise UsageError(f"{name} has no task name", "Add the line task: NAME")
    return task


def _manager(names: Sequence[str]) -> Any:
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise Unsuitable(
            f"the task {names[0]} needs the LM Evaluation Harness, which is not installed", _FIX
        ) from None
    from tqdm import tqdm

    # members and commands draw their own screens
    tqdm.__init__ = partialmethod(tqdm.__init__, disable=True)
    for loud in ("lm_eval", "datasets", "huggingface_hub", "fsspec"):
        logging.getLogger(loud).setLevel(logging.ERROR)
    files = [name for name in names if name.endswith(_FILES)]
    folders = [str(Path(name).expanduser().absolute().parent) for name in files]
    return TaskManager(include_path=folders or None, include_defaults=len(files) < len(names))


def _model(ask: Ask, tokenizer: Tokenizer, window: int) -> Any:
    """Return our model behind the harness's model interface."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    class Asked(TemplateLM):  # type: ignore[misc]  # the harness has no types
        @property
        def eot_token_id(self) -> int:
            return _end_token(ask, tokenizer)

        # Same as lm_eval's Hugging Face model (HFLM): the token that begins a text, else the one
        # that ends it.
        @property
        def prefix_token_id(self) -> int:
            return tokenizer.begin_id if tokenizer.begin_id is not None else self.eot_token_id

        def tok_encode(
            self, string: str, add_special_tokens: bool | None = None, **_: Any
        ) -> list[int]:
            if add_special_tokens is None:
                prefix = tokenizer.token_of(self.prefix_token_id)
                add_special_tokens = not (prefix and string.startswith(prefix))
            return tokenizer.encode(string, special=add_special_tokens)

        def loglikelihood(
            self, requests: Any, disable_tqdm: bool = True
        ) -> list[tuple[float, bool]]:
            del disable_tqdm
            likelihoods: list[tuple[float, bool]] = super().loglikelihood(
                requests, disable_tqdm=True
            )
            return likelihoods

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            return [
                ask(lambda model, c=context, a=answer: likelihood(model, c, a))  # type: ignore[misc]
                for _, context, answer in requests
            ]

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
            del disable_tqdm
            likelihoods = []
            for request in requests:
                windows = get_rolling_token_windows(
                    token_list=self.tok_encode(request.args[0]),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=window,
                    context_len=1,
                )
                parts = [(None, *make_disjoint_window(pair)) for pair in windows]
                likelihoods.append(sum(nats for nats, _ in self._loglikelihood_tokens(parts)))
            return likelihoods

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            del disable_tqdm
            return [self._text(*request.args) for request in requests]

        def _text(self, context: str, settings: dict[str, Any]) -> str:
            stops = (
                [settings["until"]]
                if isinstance(settings.get("until"), str)
                else list(settings.get("until") or ())
            )

            def ends(generated: Sequence[int]) -> bool:
                text = tokenizer.decode(list(generated))
                return any(stop in text for stop in stops)

            ids = self.tok_encode(context) or [self.prefix_token_id]
            text = tokenizer.decode(
                generate_greedily(ask, ids, int(settings.get("max_gen_toks") or _MOST_TOKENS), ends)
            )
            for stop in filter(None, stops):
                text = text.split(stop)[0]
            return text

    return Asked()


def _end_token(ask: Ask, tokenizer: Tokenizer) -> int:
    """Return the token that ends a text: the tokenizer's, else the model's, else 0, since the
    harness needs one.
    """
    if tokenizer.end_id is not None:
        return tokenizer.end_id
    ends = ask(lambda model: model.config.end_tokens)
    return ends[0] if ends else 0
