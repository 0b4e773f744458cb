"""Build what a member's own options choose, once the run's model is known.

Nothing here changes the run's arithmetic.
"""

from __future__ import annotations

from aftermath.member.archive import Hub
from aftermath.member.rounds.evaluations import Evaluations
from aftermath.model.outline import Outline
from aftermath.model.text import Prompt, check_vocabulary
from aftermath.optim.schema import Schema
from aftermath.train.option_checks import asked_of
from aftermath.train.put_links import PutLinks
from aftermath.train.settings import PROMPT_TOKENS, TrainSettings


def prompt_of(settings: TrainSettings, outline: Outline, schema: Schema) -> Prompt | None:
    """What is to be continued, if anything. Raises CheckpointError without the model's tokenizer,
    or UsageError.
    """
    if settings.prompt_text is None:
        return None
    prompt = Prompt(
        settings.prompt_text, settings.prompt_tokens or PROMPT_TOKENS, outline.tokenizer()
    )
    prompt.check(schema.state.config.vocab_size)
    return prompt


def evaluations_of(settings: TrainSettings, outline: Outline, schema: Schema) -> Evaluations | None:
    """What the model is to be asked, if anything. Raises CheckpointError without the model's
    tokenizer.
    """
    if (wish := asked_of(settings)) is None:
        return None
    tokenizer = outline.tokenizer()
    config = schema.state.config
    check_vocabulary(tokenizer, config.vocab_size)
    return Evaluations(wish, tokenizer, config.max_position_embeddings)


def hub_of(settings: TrainSettings) -> Hub | None:
    """Where checkpoints are uploaded to, if anywhere."""
    if settings.checkpoint_put_links is not None:
        return Hub("", PutLinks(settings.checkpoint_put_links).put, named=False)
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
