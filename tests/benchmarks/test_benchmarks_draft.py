"""Test that a draft does not change the text, and the names of the figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aftermath.model.generate import Continuation, generate
from benchmarks.test_benchmarks_worth import arms, module

module("distro")
codec = module("codec")
draft = module("draft")
SMALL = codec.GPT2 | {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 2}


def test_correct_draft_saves_four_of_five_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft, "NEW_TOKENS", 16)
    models = draft.agreeing(SMALL)
    comparison = draft.compared(models, [[1, 2, 3], [4]], 0.0)
    assert comparison["tokens"] == 2 * draft.NEW_TOKENS
    assert [*comparison["by_draft"]] == ["1", "2"]
    for one in comparison["by_draft"].values():
        assert one["taken"] == 1
        assert one["fewer_passes"] == round(
            draft.NEW_TOKENS / -(-draft.NEW_TOKENS // (draft.GUESSES + 1)), 3
        )
        assert one["over_alone"] == pytest.approx(
            one["tokens_per_s"] / comparison["alone_tokens_per_s"], rel=0.01
        )
    sizes = draft._parameters(models)
    assert sizes["0"] > sizes["1"] > sizes["2"]
    down = models[0].get_parameter("model.layers.0.mlp.down_proj.weight")
    assert down[:, :16].abs().min() > 0
    assert not down[:, 16:].any()


def test_draft_with_different_text_gives_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **kwargs: Any) -> Continuation:
        generation = generate(*args, **kwargs)
        return (
            replace(generation, ids=[*generation.ids[:-1], generation.ids[-1] ^ 1])
            if kwargs["draft"]
            else generation
        )

    monkeypatch.setattr(draft, "generate", wrong)
    with pytest.raises(AssertionError, match="tier 1 changes what is written"):
        draft.compared(draft.agreeing(SMALL), [[1, 2, 3]], 0.0)


def test_draft_writer_is_named_arm_with_all_tiers() -> None:
    for size in draft.CUTS.values():
        one = draft.training(size)
        assert (one.size, one.seed, one.said["tiers"]) == (size, draft.SEED, "0,1,2")
        assert one.key in arms.kept(size, draft.KIND)


@pytest.mark.nightly  # the slow tests of tests/lab cover such trainings
def test_draft_training_returns_all_tiers_and_compares_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arms, "CORPUS_BYTES", 400_000)
    one = draft.training("0.2M-depth")
    models, prompts = draft.trained(replace(one, said=one.said | {"steps": 3}), tmp_path)
    assert sorted(models) == [0, 1, 2]
    assert torch.tensor(prompts).shape == (draft.PROMPTS, draft.PROMPT_TOKENS)
    assert 0 < draft.compared(models, prompts[:1], 0.8)["by_draft"]["1"]["taken"] <= 1
