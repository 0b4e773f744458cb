"""Sampling text from a model. No key/value cache: the texts are short and the whole window is recomputed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aftermath.model.llama import Llama


@torch.no_grad()
def generate(
    model: Llama,
    prompt: Sequence[int],
    *,
    new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    vocab_size: int | None = None,
) -> list[int]:
    """The prompt's continuation, at most `new_tokens` ids, ending before any of the tokens that end a text.

    Temperature 0 takes the likeliest token, otherwise tokens are drawn from softmax(logits / temperature) with a
    generator of this seed. Ids at or above `vocab_size` (rows that only pad the embedding) are never chosen.
    """
    if not prompt:
        raise ValueError("generation needs at least one token to start from")
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    window = model.config.max_position_embeddings
    ids = list(prompt)
    for _ in range(new_tokens):
        logits = model(torch.tensor([ids[-window:]], device=device))[0, -1].float().cpu()  # [V]
        logits = logits[:vocab_size]
        if temperature > 0:
            choice = int(torch.multinomial(torch.softmax(logits / temperature, 0), 1, generator=generator))
        else:
            choice = int(logits.argmax())
        if choice in model.config.end_tokens:
            break
        ids.append(choice)
    return ids[len(prompt) :]
