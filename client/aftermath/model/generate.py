"""Sample text from a model, with a smaller tier of it as an optional draft.

Sources: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (arXiv
2211.17192); Devvrit et al., "MatFormer" (arXiv 2310.07707), for nested models as drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aftermath.model.key_cache import TextCache
from aftermath.model.network import LanguageModel


@dataclass(frozen=True)
class Continuation:
    """The text that a model generated after a prompt."""

    ids: list[int]
    passes: int
    """Passes of the model, not counting those of the draft."""
    guessed: int
    """Tokens the draft proposed."""
    taken: int
    """Proposed tokens that the model confirmed."""


@dataclass(frozen=True)
class Draft:
    """A smaller tier of the same model, and the number of tokens that it guesses ahead."""

    model: LanguageModel
    tokens: int = 4


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    vocab_size: int | None = None,
    draft: Draft | None = None,
) -> Continuation:
    """Return at most `new_tokens` ids after the prompt, up to a token that ends the text.

    Temperature 0 takes the likeliest token. Otherwise tokens are drawn from softmax(logits /
    temperature) with this seed. Ids at or above `vocab_size` (rows that only pad the
    embedding) are never chosen.
    """
    if not prompt:
        raise ValueError("generation needs at least one token to start from")
    draw = _Draw(temperature, seed, vocab_size)
    window = model.config.max_position_embeddings
    ends = model.config.end_tokens
    ids = list(prompt)
    generated = 0
    passes = 0
    guessed = 0
    cache_length = 0
    text = _Text(model)
    drafted = draft and _Text(draft.model)
    while generated < new_tokens:
        room = min(draft.tokens, window - len(ids), new_tokens - generated - 1) if draft else 0
        guesses: list[int] = []
        while drafted and len(guesses) < room and (not guesses or guesses[-1] not in ends):
            guesses.append(
                draw.token(drafted.logits(ids + guesses, 1)[0], generated + len(guesses))
            )
        passes, guessed = passes + 1, guessed + len(guesses)
        for ahead, logits in enumerate(text.logits(ids + guesses, len(guesses) + 1)):
            token = draw.token(logits, generated)
            if token in ends:
                return Continuation(ids[len(prompt) :], passes, guessed, cache_length)
            ids.append(token)
            generated += 1
            if guesses[ahead : ahead + 1] != [token]:
                break
            cache_length += 1
    return Continuation(ids[len(prompt) :], passes, guessed, cache_length)


# The cache works for texts within the window if positions do not depend on the text's length.
# Beyond that, each token gets its own window, which is computed whole. Both paths give the same
# text, apart from ties in the last bits of logits.
class _Text:
    """One text and a model's cache of it."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._cache = TextCache()

    def logits(self, ids: Sequence[int], last: int) -> Tensor:
        """Return logits after each of the `last` tokens, fp32 [last, V] on the CPU."""
        config = self._model.config
        cache = None
        self._cache.cut(len(ids) - last)  # later entries may be of wrong guesses
        if len(ids) <= config.cacheable:
            cache = self._cache
            ids = ids[cache.length :]
        window = torch.tensor([ids[-config.max_position_embeddings :]], device=self._device)
        logits = self._model.head(self._model.body(window, cache)[0, -last:])  # [last, V]
        return logits.float().cpu()


# A token is the argmax of logits / temperature + Gumbel noise, and the noise depends only on the
# position. A draft with the same noise guesses what the model will draw. One pass checks several
# guesses, and the text equals that of the model without a draft. Guessing stops at the end of the
# window.
class _Draw:
    """Draws tokens, with the same noise for the same position every time."""

    def __init__(self, temperature: float, seed: int, vocab_size: int | None) -> None:
        self._temperature = temperature
        self._vocab_size = vocab_size
        self._generator = torch.Generator().manual_seed(seed)
        self._noise: list[Tensor] = []

    def token(self, logits: Tensor, place: int) -> int:
        """Return the token at a position after the prompt. `logits` are fp32 [V]."""
        logits = logits[: self._vocab_size]
        if not self._temperature:
            return int(logits.argmax())
        while len(self._noise) <= place:
            self._noise.append(
                -torch.empty(len(logits)).exponential_(generator=self._generator).log()
            )
        return int((logits / self._temperature + self._noise[place]).argmax())
