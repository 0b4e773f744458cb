"""Find options of a member that contradict each other, before anything is opened."""

from __future__ import annotations

from aftermath.base.errors import UsageError
from aftermath.evals.eval_options import EvalRequest, eval_request
from aftermath.events.trackers import TrackerOptions
from aftermath.p2p.discovery import parse_static_peers
from aftermath.p2p.line_faults import bandwidth_of
from aftermath.train.settings import TrainSettings


def check_choices(settings: TrainSettings) -> None:
    """Raise UsageError for contradicting or incomplete options, Unsuitable for missing extras."""
    if settings.peer is not None:
        parse_static_peers(settings.peer)
    bandwidth_of("--fault-bandwidth-limit", settings.fault_bandwidth_limit)
    _check_prompt(settings)
    _check_sums(settings)
    _check_evaluations(settings)
    TrackerOptions.of(settings).check()


def _check_prompt(settings: TrainSettings) -> None:
    """Raise UsageError for --prompt-tokens without --prompt-text."""
    if settings.prompt_tokens is not None and settings.prompt_text is None:
        raise UsageError(
            "--prompt-tokens requires --prompt-text",
            "Pass --prompt-text TEXT, or omit --prompt-tokens",
        )


def _check_sums(settings: TrainSettings) -> None:
    """Raise UsageError for --no-grad-accum-in-fp32."""
    if not settings.grad_accum_in_fp32:
        raise UsageError(
            "--no-grad-accum-in-fp32 is not supported: weights, gradients and their sums are fp32",
            "Omit it; --precision bf16 makes passes smaller and faster",
        )


def _check_evaluations(settings: TrainSettings) -> None:
    """Raise UsageError for evaluation options without --eval-tasks."""
    limits = settings.eval_fewshot, settings.eval_seed, settings.eval_task_max_docs
    if eval_request_of(settings) is None and any(number is not None for number in limits):
        raise UsageError(
            "--eval-fewshot, --eval-seed and --eval-task-max-docs require --eval-tasks",
            "Pass --eval-tasks TASKS, or omit them",
        )


def eval_request_of(settings: TrainSettings) -> EvalRequest | None:
    """Return the evaluation that the options ask for, or None. Raises UsageError.

    Does not check that the tasks exist.
    """
    if settings.eval_tasks is None:
        return None
    return eval_request(
        settings.eval_tasks, settings.eval_fewshot, settings.eval_seed, settings.eval_task_max_docs
    )
