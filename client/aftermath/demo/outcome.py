"""Measure the trained model: held-out loss, generated text and answered questions for each tier.

The held-out sequences are the last ones in the run's data order, which the run never reaches.
Generated text is judged by how many of its words the data often contains.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from aftermath.config.document import load_config
from aftermath.data.local import open_tokens
from aftermath.data.tokens import TokenFiles
from aftermath.demo.commands import RUN_ID, TIERS, DemoFailed, DemoPaths
from aftermath.evals.eval_options import SOURCE_CHOICE, EvalRequest
from aftermath.evals.likelihood import asked_of
from aftermath.evals.suite import evaluate
from aftermath.lab.held_out import loss_on
from aftermath.model.checkpoint import load
from aftermath.model.checkpoint import load_config as load_model_config
from aftermath.model.generate import generate
from aftermath.model.network import LanguageModel
from aftermath.model.saved_checkpoints import saved_steps, step_of
from aftermath.model.text import load_tokenizer
from aftermath.model.tokenizer import Tokenizer

PROMPT = "def "
SAMPLE_TOKENS = 120
TEMPERATURE = 0.5
HELD_OUT_SEQUENCES = 128
OFTEN = 10
"""How often a word must be in the data to count as known."""
_WORD = re.compile(r"[a-z]{3,}")
QUESTIONS = 50  # takes about a second


@dataclass(frozen=True)
class TierOutcome:
    """What one tier of the last checkpoint achieves."""

    step: int
    """The checkpoint's step."""
    tier: int
    held_out: float
    """Nats per token."""
    text: str
    words: tuple[int, int] = (0, 0)
    """Number of the text's words that are known from the data, and number of all its words."""
    answered: float | None = None
    """The fraction of `QUESTIONS` that the tier answered correctly. None if it was not asked."""


def outcomes(paths: DemoPaths) -> Iterator[TierOutcome]:
    """Yield every tier of the newest checkpoint, tier 0 first. Raises DemoFailed without a
    checkpoint.
    """
    torch.set_num_threads(1)
    checkpoint_steps = saved_steps(paths.checkpoints, RUN_ID)
    if not checkpoint_steps:
        raise DemoFailed(f"no member wrote a checkpoint to {paths.checkpoints}")
    newest = checkpoint_steps[-1]
    config = load_model_config(newest)
    tokenizer = load_tokenizer(newest)
    sequences = held_out(paths, config.vocab_size)
    sample_words = words_of(data_of(paths, config.vocab_size), tokenizer)
    for tier in TIERS:
        model = config.build(tier, load(newest, tier, "universal"))
        generated = generate(
            model,
            tokenizer.encode(PROMPT),
            new_tokens=SAMPLE_TOKENS,
            temperature=TEMPERATURE,
        )
        answered = part_answered(model, tokenizer) if tier == TIERS[0] else None
        text = tokenizer.decode(generated.ids)
        words = words_in(text)
        real = sum(word in sample_words for word in words)
        yield TierOutcome(
            step_of(newest), tier, loss_on(model, sequences), text, (real, len(words)), answered
        )


def words_in(text: str) -> list[str]:
    """Return the runs of three or more letters, in lower case."""
    return _WORD.findall(text.lower())


def words_of(data: TokenFiles, tokenizer: Tokenizer) -> set[str]:
    """Return the words that occur often in this data."""
    tokens = data.read(range(data.sequences)).reshape(-1).tolist()
    return {
        word
        for word, count in Counter(words_in(tokenizer.decode(tokens))).items()
        if count >= OFTEN
    }


def part_answered(model: LanguageModel, tokenizer: Tokenizer) -> float:
    """Return the fraction of `QUESTIONS` that the model answers correctly."""
    request = EvalRequest((SOURCE_CHOICE,), docs=QUESTIONS)
    (score,) = evaluate(asked_of(model), tokenizer, model.config.max_position_embeddings, request)
    return score.value


def held_out(paths: DemoPaths, vocab_size: int) -> torch.Tensor:
    """Return sequences, int64 [n, seq_len], that the run does not reach."""
    run = load_config(paths.config).to_chain()
    data = data_of(paths, vocab_size)
    first = data.sequences - HELD_OUT_SEQUENCES
    if (
        first < 2 * run["config"]["global_batch_size_end"] * run["config"]["total_steps"]
    ):  # room for sequences that are trained again after a lost result
        raise DemoFailed(
            f"the data has {data.sequences} sequences, too few to hold out {HELD_OUT_SEQUENCES}"
        )
    return torch.from_numpy(data.read(range(first, data.sequences)))


def data_of(paths: DemoPaths, vocab_size: int) -> TokenFiles:
    """Return the run's data in its order."""
    llm = load_config(paths.config).llm
    location = llm.data_location.to_chain()
    return open_tokens(
        Path(location["primary"]),
        location["token_bytes"],
        llm.max_seq_len,
        vocab_size=vocab_size,
        shuffle_seed=location["shuffle_seed"],
    )
