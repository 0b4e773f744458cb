"""Sample text during training: it arrives, changes no weights and delays no round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from aftermath.model.text import Prompt
from aftermath.model.tokenizer import Tokenizer
from aftermath.sim.setup import CONFIG
from aftermath.sim.simulation import SimulatedRun, play
from member.short_runs import EITHER_OVERLAP, SHORT
from model.library_tokenizer import isolated_tokenizer

WORDS = [f"w{number}" for number in range(CONFIG.vocab_size)]


def word_tokenizer() -> Tokenizer:
    """Return a tokenizer whose ids are words."""
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="w0")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return isolated_tokenizer(tokenizer)


def whole_run(place: Path, prompt: Prompt | None, **rules: Any) -> SimulatedRun:
    async def scenario(sim: SimulatedRun) -> None:
        sim.prompt = prompt
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    return play(place, scenario, **SHORT, **rules)


@pytest.mark.parametrize("overlap", EITHER_OVERLAP)
def test_members_continue_prompt_with_equal_replicas(tmp_path: Path, overlap: int) -> None:
    sim = whole_run(tmp_path, Prompt("w3 w10", 3, word_tokenizer()), overlap=overlap)
    assert sim.check() == 24, "all rounds were applied by all"
    assert sim.run.lost_sequences == 0
    for sim_member in sim.sim_members:
        samples = sim_member.saw("sample")
        assert samples
        assert not sim_member.saw("warning")
        for event in samples:
            assert event["prompt"] == "w3 w10"
            assert len(event["text"].split()) == 3
            assert {*event["text"].split()} <= {*WORDS}
        steps = [event["step"] for event in samples]
        assert steps == sorted({*steps}), "one text a round at most"
        assert 1 <= steps[0] <= steps[-1] <= 6 + overlap, (
            "with overlap one more round applies the last results"
        )


@pytest.mark.slow
def test_continuation_longer_than_round_delays_nobody(tmp_path: Path) -> None:
    """Generate 3,000 tokens at one per second: longer than the whole run."""
    silent = whole_run(tmp_path / "silent", None)
    sim = whole_run(tmp_path / "told", Prompt("w1", 3000, word_tokenizer()))
    assert sim.check() == silent.check() == 24
    assert not any(
        sim_member.saw("sample") or sim_member.saw("warning") for sim_member in sim.sim_members
    )
    assert sim.now_at_end < 1.5 * silent.now_at_end
