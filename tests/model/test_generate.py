"""Sampling: greedy is the argmax, seeds repeat, padding rows and the end token are respected."""

import pytest
import torch

from aftermath.model.arch.llama import Llama
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.generate import Draft, generate
from aftermath.model.initial_weights import init_weights

torch.set_num_threads(1)

CONFIG = LlamaConfig.from_hf(
    {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 8,
        "eos_token_id": None,
    }
)
MODEL = Llama.of(CONFIG, 0, init_weights(CONFIG, 0))


def ending(ends: int | list[int]) -> Llama:
    """Return a copy of the model whose texts end at these tokens."""
    config = LlamaConfig.from_hf(CONFIG.to_hf() | {"eos_token_id": ends})
    return Llama.of(config, 0, init_weights(config, 0))


def test_greedy_generation_takes_most_likely_token() -> None:
    ids = generate(MODEL, [1, 2, 3], new_tokens=12).ids
    everything = [1, 2, 3, *ids]
    assert len(ids) == 12
    for place in (3, 9, 14):
        window = torch.tensor([everything[max(0, place - 8) : place]])
        assert everything[place] == int(MODEL(window)[0, -1].argmax())


def test_generation_with_same_seed_repeats() -> None:
    def draw(seed: int, temperature: float = 1.0) -> list[int]:
        return generate(MODEL, [1], new_tokens=20, temperature=temperature, seed=seed).ids

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1, 1e-6) == generate(MODEL, [1], new_tokens=20).ids


def test_generation_excludes_padding_and_ends_at_end_token() -> None:
    def draw(model: Llama) -> list[int]:
        return generate(model, [1], new_tokens=200, temperature=5.0, vocab_size=4).ids

    ids = draw(MODEL)
    assert set(ids) == {0, 1, 2, 3}
    assert draw(ending(2)) == ids[: ids.index(2)]
    assert draw(ending([31, 2])) == ids[: ids.index(2)]
    assert draw(ending([2, 3])) == ids[: min(ids.index(2), ids.index(3))]
    assert draw(ending([3, 2])) == ids[: min(ids.index(2), ids.index(3))]


def test_generation_with_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        generate(MODEL, [], new_tokens=1)


WIDE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 40,
}


def of_tier(tier: int, ends: int | None = None, **changes: int) -> Llama:
    config = LlamaConfig.from_hf(WIDE | {"eos_token_id": ends} | changes)
    return Llama.of(config, tier, init_weights(config, 3, tier))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("tokens", [1, 3, 16])
@pytest.mark.parametrize("new_tokens", [1, 2, 8, 20])
def test_generation_with_draft_equals_text_without(
    temperature: float, tokens: int, new_tokens: int
) -> None:
    """The draft stops guessing at the end of the window."""
    options = {"new_tokens": new_tokens, "temperature": temperature, "seed": 5}
    full = of_tier(0, max_position_embeddings=12)
    alone = generate(full, [1, 2, 3], **options)
    assert (alone.passes, alone.guessed, alone.taken) == (len(alone.ids), 0, 0)
    for tier in (1, 2):
        smaller = of_tier(tier, max_position_embeddings=12)
        drafted = generate(full, [1, 2, 3], **options, draft=Draft(smaller, tokens))
        assert drafted.ids == alone.ids
        assert drafted.passes == len(alone.ids) - drafted.taken
        assert drafted.taken <= drafted.guessed


def test_generation_with_itself_as_draft_accepts_all() -> None:
    model = of_tier(0)
    generation = generate(model, [7], new_tokens=30, temperature=1.0, draft=Draft(model, 4))
    assert generation.taken == generation.guessed == 24
    assert generation.passes == 6


def test_generation_with_draft_ends_like_model() -> None:
    alone = generate(of_tier(0), [1], new_tokens=30, temperature=1.5, seed=2).ids
    ends = alone[11]
    cut = alone[: alone.index(ends)]
    for tier in (0, 1):
        generation = generate(
            of_tier(0, ends),
            [1],
            new_tokens=30,
            temperature=1.5,
            seed=2,
            draft=Draft(of_tier(tier, ends), 5),
        )
        assert generation.ids == cut


def test_generation_samples_match_model_probabilities() -> None:
    drawn = [
        generate(MODEL, [4, 9], new_tokens=1, temperature=0.7, seed=seed).ids[0]
        for seed in range(1000)
    ]
    likely = torch.softmax(MODEL(torch.tensor([[4, 9]]))[0, -1].detach() / 0.7, 0)
    counts = torch.bincount(torch.tensor(drawn), minlength=32) / 1000
    assert (counts - likely).abs().max() < 0.04
