"""Turn a tokenizer of the `tokenizers` library into a checkpoint's tokenizer."""

from __future__ import annotations

import tokenizers

from aftermath.data.bytelevel import byte_tokenizer
from aftermath.model.tokenizer import Tokenizer


def isolated_tokenizer(tokenizer: tokenizers.Tokenizer | None = None) -> Tokenizer:
    """Return this tokenizer in a child process, or one with a token for each byte."""
    return Tokenizer((tokenizer or byte_tokenizer()).to_str().encode(), "tokenizer.json")
