"""Text for a model: a checkpoint's tokenizer, and what a text is to begin with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from aftermath.base.errors import UsageError
from aftermath.model.documents import CheckpointError, read_limited
from aftermath.model.store import MAX_COMPANION_BYTES
from aftermath.model.tokenizer import FIX, Tokenizer

TOKENIZER_FILE = "tokenizer.json"


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory. Raises CheckpointError if there is none that can be read."""
    file = directory / TOKENIZER_FILE
    return tokenizer_of(read_limited(file, MAX_COMPANION_BYTES) if file.is_file() else None, str(file))


def tokenizer_of(data: bytes | None, where: str) -> Tokenizer:
    """The tokenizer in the bytes of the file at `where`, if there is one. Raises CheckpointError."""
    if data is None:
        raise CheckpointError(f"there is no {where}", FIX)
    return Tokenizer(data, where)


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raises CheckpointError for a tokenizer with tokens that the model lacks."""
    if (count := tokenizer.vocab_size) > vocab_size:
        raise CheckpointError(f"the checkpoint's tokenizer has {count} tokens, and the model {vocab_size}", FIX)


@dataclass(frozen=True)
class Prompt:
    """What a text begins with, how many tokens more it gets, and the tokenizer of both."""

    text: str
    tokens: int
    tokenizer: Tokenizer

    @cached_property
    def ids(self) -> list[int]:
        """The tokens of the beginning."""
        return self.tokenizer.encode(self.text)

    def check(self, vocab_size: int) -> None:
        """Raises UsageError if there is nothing to begin with, CheckpointError if it is not of this vocabulary."""
        try:
            self.text.encode()
        except UnicodeEncodeError:  # bytes of a terminal that are no text
            raise UsageError("the prompt is not text", "Pass it in UTF-8") from None
        ids = self.ids
        if not ids:
            raise UsageError("the prompt has no token", "Pass at least one letter as prompt")
        if max(ids) >= vocab_size:
            raise CheckpointError(
                f"the checkpoint's tokenizer gives a token {max(ids)}, and the model's vocabulary has {vocab_size}",
                FIX,
            )
