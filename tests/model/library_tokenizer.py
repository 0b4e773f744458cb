"""A tokenizer of the library as a checkpoint's."""

from __future__ import annotations

import tokenizers

from aftermath.data.bytelevel import byte_tokenizer
from aftermath.model.tokenizer import Tokenizer


def isolated_tokenizer(tokenizer: tokenizers.Tokenizer | None = None) -> Tokenizer:
    """This one, or one token for each byte."""
    return Tokenizer((tokenizer or byte_tokenizer()).to_str().encode(), "tokenizer.json")
