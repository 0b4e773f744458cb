"""Test that held-out text is not trained, and that the demo judges the whole model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aftermath.config.document import load_config
from aftermath.data.bytelevel import VOCAB_SIZE
from aftermath.data.local import open_tokens
from aftermath.demo.commands import (
    OPTIMIZERS,
    REPOSITORY,
    DemoFailed,
    DemoPaths,
    model_config,
    write_config,
)
from aftermath.demo.outcome import (
    HELD_OUT_SEQUENCES,
    OFTEN,
    QUESTIONS,
    data_of,
    held_out,
    part_answered,
    words_in,
    words_of,
)
from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from model.library_tokenizer import isolated_tokenizer


def stage(root: Path, sequences: int, optimizer: str = "sparseloco") -> DemoPaths:
    """Return a corpus in which every token of a sequence is the sequence's number."""
    paths = DemoPaths(root)
    paths.data.mkdir()
    write_config(paths, REPOSITORY / "config" / "demo" / OPTIMIZERS[optimizer][0])
    length = load_config(paths.config).llm.max_seq_len
    np.repeat(np.arange(sequences, dtype="<u2"), length).tofile(paths.data / "tokens.bin")
    return paths


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_held_out_text_is_never_trained(tmp_path: Path, optimizer: str) -> None:
    paths = stage(tmp_path, 40_000, optimizer)
    first_tokens = {int(sequence[0]) for sequence in held_out(paths, 65_536)}
    assert len(first_tokens) == HELD_OUT_SEQUENCES
    run = load_config(paths.config)
    seed = run.llm.data_location.to_chain()["shuffle_seed"]
    data = open_tokens(paths.data, 2, run.llm.max_seq_len, vocab_size=65_536, shuffle_seed=seed)
    trained = run.config.total_steps * run.config.global_batch_size_end
    assert not first_tokens & set(data.read(range(2 * trained))[:, 0].tolist())


def test_too_little_demo_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DemoFailed, match="2000 sequences, too few"):
        held_out(stage(tmp_path, 2000), 65_536)


def test_sample_words_are_frequent_in_data(tmp_path: Path) -> None:
    paths = stage(tmp_path, 1)
    text = "self.value = None\n" * 2 * OFTEN + "rarely so " * (OFTEN - 1)
    np.array(isolated_tokenizer().encode(text.ljust(1024)), "<u2").tofile(paths.data / "tokens.bin")
    known = words_of(data_of(paths, VOCAB_SIZE), isolated_tokenizer())
    assert known == {"self", "value", "none"}
    assert words_in("def Selfvalue(self): # is Rarely") == ["def", "selfvalue", "self", "rarely"]


def test_untrained_model_guesses() -> None:
    config = config_of(
        model_config(VOCAB_SIZE)
        | {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    )
    answered = part_answered(config.build(0, init_weights(config, 0)), isolated_tokenizer())
    assert round(answered * QUESTIONS, 9) == int(answered * QUESTIONS + 0.5)
    assert 0 < answered < 0.6
