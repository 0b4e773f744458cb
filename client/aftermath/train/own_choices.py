"""Build a member's prompt, evaluations and checkpoint upload, once the run's model is known.

None of them changes the run's arithmetic.
"""

from __future__ import annotations

from aftermath.member.checkpoint_writer import Hub
from aftermath.member.rounds.evaluations import Evaluations
from aftermath.model.outline import Outline
from aftermath.model.text import Prompt, check_vocabulary
from aftermath.optim.schema import Schema
from aftermath.train.option_checks import eval_request_of
from aftermath.train.put_links import PutLinks
from aftermath.train.settings import PROMPT_TOKENS, TrainSettings


def prompt_of(settings: TrainSettings, outline: Outline, schema: Schema) -> Prompt | None:
    """Return the prompt of --prompt-text, or None.

    Raises UsageError, or CheckpointError if the model has no tokenizer.
    """
    if settings.prompt_text is None:
        return None
    prompt = Prompt(
        settings.prompt_text, settings.prompt_tokens or PROMPT_TOKENS, outline.tokenizer()
    )
    prompt.check(schema.state.config.vocab_size)
    return prompt


def evaluations_of(settings: TrainSettings, outline: Outline, schema: Schema) -> Evaluations | None:
    """Return the evaluations of --eval-tasks, or None.

    Raises CheckpointError if the model has no tokenizer.
    """
    if (request := eval_request_of(settings)) is None:
        return None
    tokenizer = outline.tokenizer()
    config = schema.state.config
    check_vocabulary(tokenizer, config.vocab_size)
    return Evaluations(request, tokenizer, config.max_position_embeddings)


def hub_of(settings: TrainSettings) -> Hub | None:
    """Return the upload of checkpoints that the options choose, or None."""
    if settings.checkpoint_put_links is not None:
        return Hub("", PutLinks(settings.checkpoint_put_links).put, recordable=False)
    if settings.hub_repo is None:
        return None
    from aftermath.model.hub import upload

    token = settings.hub_token
    repo = settings.hub_repo
    return Hub(
        repo,
        lambda directory, message: upload(
            directory, repo, token=token, message=message, card=False
        ),
    )
