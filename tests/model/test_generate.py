"""Sampling: greedy is the argmax, seeds repeat, padding rows and the end token are respected."""

import pytest
import torch

from aftermath.model.config import LlamaConfig
from aftermath.model.generate import generate
from aftermath.model.initial import init_weights
from aftermath.model.llama import Llama

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
    """The same model, whose texts end at these tokens."""
    config = LlamaConfig.from_hf(CONFIG.to_hf() | {"eos_token_id": ends})
    return Llama.of(config, 0, init_weights(config, 0))


def test_greedy_takes_the_likeliest_token_of_the_window() -> None:
    ids = generate(MODEL, [1, 2, 3], new_tokens=12)
    everything = [1, 2, 3, *ids]
    assert len(ids) == 12
    for place in (3, 9, 14):
        window = torch.tensor([everything[max(0, place - 8) : place]])
        assert everything[place] == int(MODEL(window)[0, -1].argmax())


def test_a_seed_repeats_and_another_differs() -> None:
    def draw(seed: int, temperature: float = 1.0) -> list[int]:
        return generate(MODEL, [1], new_tokens=20, temperature=temperature, seed=seed)

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1, 1e-6) == generate(MODEL, [1], new_tokens=20)


def test_padding_rows_are_never_chosen_and_any_end_token_ends() -> None:
    def draw(model: Llama) -> list[int]:
        return generate(model, [1], new_tokens=200, temperature=5.0, vocab_size=4)

    ids = draw(MODEL)
    assert set(ids) == {0, 1, 2, 3}
    assert draw(ending(2)) == ids[: ids.index(2)]
    assert draw(ending([31, 2])) == ids[: ids.index(2)]
    assert draw(ending([2, 3])) == ids[: min(ids.index(2), ids.index(3))]
    assert draw(ending([3, 2])) == ids[: min(ids.index(2), ids.index(3))]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        generate(MODEL, [], new_tokens=1)
