"""Score and generate text with a model, one forward pass at a time through `Ask`.

Outside a run, `Ask` is a plain call. In a run, the member executes it between its rounds. Shapes in
comments: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch

from aftermath.model.generate import generate
from aftermath.model.network import LanguageModel

T = TypeVar("T")


class Ask(Protocol):
    """Run a function on the model and return its result. Raises errors that end the evaluation."""

    def __call__(self, question: Callable[[LanguageModel], T], /) -> T: ...


def asked_of(model: LanguageModel) -> Ask:
    """Return an `Ask` for a model that nothing else uses."""

    def ask(question: Callable[[LanguageModel], T]) -> T:
        return question(model)

    return ask


@torch.no_grad()
def likelihood(
    model: LanguageModel, context: Sequence[int], continuation: Sequence[int]
) -> tuple[float, bool]:
    """Return a continuation's log-likelihood in nats, and whether greedy decoding would give it.

    A text longer than the model's window is cut at the front. Raises ValueError without a context.
    """
    if not context:
        raise ValueError("a continuation must follow at least one token")
    window = model.config.max_position_embeddings
    target_ids = list(continuation[-window:])
    ids = [*context, *continuation][-(window + 1) :]
    device = next(model.parameters()).device
    # [T, V]
    logits = model(torch.tensor([ids[:-1]], device=device))[0, -len(target_ids) :].float().cpu()
    targets = torch.tensor(target_ids)
    target_logits = logits.log_softmax(-1).gather(1, targets[:, None])  # [T, 1]
    return float(target_logits.double().sum()), bool((logits.argmax(-1) == targets).all())


def generate_greedily(
    ask: Ask, context: Sequence[int], max_tokens: int, ends: Callable[[Sequence[int]], bool]
) -> list[int]:
    """Generate up to `max_tokens` tokens greedily, until the text ends or `ends` is true."""
    generated: list[int] = []
    while len(generated) < max_tokens and not ends(generated):
        tokens = [*context, *generated]
        following = ask(lambda model: generate(model, tokens, new_tokens=1).ids)  # noqa: B023  # asked at once
        if not following:
            break
        generated += following
    return generated
