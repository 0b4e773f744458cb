"""What a member's own options choose: looked at before anything is opened, and made once the run's model is known.

Nothing here changes the run's arithmetic.
"""

from __future__ import annotations

from aftermath.base.errors import UsageError
from aftermath.evals.suite import wanted
from aftermath.member.archive import Hub
from aftermath.member.rounds.evaluations import Evaluations
from aftermath.model.outline import Outline
from aftermath.model.text import Prompt, check_vocabulary
from aftermath.optim.schema import Schema
from aftermath.p2p.named import peers_named
from aftermath.ranks.mesh import Mesh, mesh_of
from aftermath.train.settings import PROMPT_TOKENS, TrainSettings
from aftermath.watch.trackers import Wanted


def check_choices(settings: TrainSettings) -> None:
    """Raises UsageError for options that mean nothing together, or alone, Unsuitable for extras that are missing."""
    if settings.peer is not None:
        peers_named(settings.peer)
    _check_prompt(settings)
    _check_sums(settings)
    _check_evaluations(settings)
    Wanted.of(settings).check()


def _check_prompt(settings: TrainSettings) -> None:
    """Raises UsageError for the length of a continuation without a text."""
    if settings.prompt_tokens is not None and settings.prompt_text is None:
        raise UsageError("--prompt-tokens is the length of a continuation, of no text", "Pass --prompt-text as well")


def _check_sums(settings: TrainSettings) -> None:
    """Raises UsageError for gradients that would be summed in anything but fp32."""
    if not settings.grad_accum_in_fp32:
        raise UsageError(
            "--no-grad-accum-in-fp32: gradients are fp32 here, as their weights are, and so are their sums",
            "Leave it out; --precision bf16 makes passes smaller and faster",
        )


def _check_evaluations(settings: TrainSettings) -> None:
    """Raises UsageError for options of an evaluation without tasks, and for tasks that there are not."""
    said = settings.eval_fewshot, settings.eval_seed, settings.eval_task_max_docs
    if settings.eval_tasks is not None:
        wanted(settings.eval_tasks, *said)
    elif any(number is not None for number in said):
        raise UsageError("--eval-fewshot, --eval-seed and --eval-task-max-docs are of --eval-tasks", "Pass it as well")


def mesh_named(settings: TrainSettings) -> Mesh:
    """The devices that the options name. Raises UsageError or Unsuitable."""
    mesh = mesh_of(settings.device, settings.data_parallelism, settings.tensor_parallelism)
    if not mesh.alone and settings.compile == "on":
        raise UsageError("--compile on: passes on several devices are not compiled", "Leave it out")
    return mesh


def prompt_of(settings: TrainSettings, outline: Outline, schema: Schema) -> Prompt | None:
    """What is to be continued, if anything. Raises CheckpointError without the model's tokenizer, or UsageError."""
    if settings.prompt_text is None:
        return None
    prompt = Prompt(settings.prompt_text, settings.prompt_tokens or PROMPT_TOKENS, outline.tokenizer())
    prompt.check(schema.state.config.vocab_size)
    return prompt


def evaluations_of(settings: TrainSettings, outline: Outline, schema: Schema) -> Evaluations | None:
    """What the model is to be asked, if anything. Raises CheckpointError without the model's tokenizer."""
    if settings.eval_tasks is None:
        return None
    wish = wanted(settings.eval_tasks, settings.eval_fewshot, settings.eval_seed, settings.eval_task_max_docs)
    tokenizer, config = outline.tokenizer(), schema.state.config
    check_vocabulary(tokenizer, config.vocab_size)
    return Evaluations(wish, tokenizer, config.max_position_embeddings)


def hub_of(settings: TrainSettings) -> Hub | None:
    """Where checkpoints are uploaded to, if anywhere."""
    if settings.hub_repo is None:
        return None
    from aftermath.model.hub import upload

    token = settings.hub_token.get_secret_value() if settings.hub_token else None
    repo = settings.hub_repo
    return Hub(repo, lambda directory, message: upload(directory, repo, token=token, message=message))
