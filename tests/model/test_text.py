"""A checkpoint's tokenizer, and prompts that fit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.base.errors import UsageError
from aftermath.data.bytelevel import byte_tokenizer
from aftermath.model.json_documents import CheckpointError
from aftermath.model.text import Prompt, load_tokenizer
from model.library_tokenizer import isolated_tokenizer


def test_tokenizer_file_loads(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().to_str())
    prompt = Prompt("def ", 8, load_tokenizer(tmp_path))
    assert prompt.ids == [*b"def "]
    prompt.check(257)


@pytest.mark.parametrize("content", [b"{}", b"\xff", b"[" * 10_000, b"", None])
def test_invalid_tokenizer_file_is_refused_with_fix(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json") as caught:
        load_tokenizer(tmp_path)
    assert caught.value.fix == "Put the model's tokenizer.json there"


def test_prompt_needs_tokens_known_to_model() -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        Prompt("", 8, isolated_tokenizer()).check(257)
    with pytest.raises(UsageError, match="is not valid UTF-8"):
        Prompt("\udcff", 8, isolated_tokenizer()).check(257)
    with pytest.raises(
        CheckpointError, match="returns token 102, but the model's vocabulary has only 100"
    ):
        Prompt("def", 8, isolated_tokenizer()).check(100)
