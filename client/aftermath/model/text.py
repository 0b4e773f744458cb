"""Text for a model: the tokenizer of a checkpoint, and the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from aftermath.base.errors import UsageError
from aftermath.model.json_documents import CheckpointError
from aftermath.model.save_checkpoint import read_companions
from aftermath.model.tokenizer import FIX, Tokenizer
from aftermath.model.tokenizer_files import TOKENIZER_FILE


def load_tokenizer(directory: Path) -> Tokenizer:
    """Return a checkpoint's tokenizer. Raises CheckpointError if it is unreadable."""
    companions = read_companions(directory)
    return tokenizer_of(companions.get(TOKENIZER_FILE), str(directory / TOKENIZER_FILE), companions)


def tokenizer_of(
    data: bytes | None, where: str, companions: Mapping[str, bytes] | None = None
) -> Tokenizer:
    """Return the tokenizer in the bytes of the file `where`, or None. Raises CheckpointError.

    `companions` are the checkpoint's other files, which name the special tokens.
    """
    if data is None:
        raise CheckpointError(f"there is no {where}", FIX)
    return Tokenizer(data, where, companions)


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise CheckpointError if the tokenizer has ids outside the model's vocabulary."""
    if (count := tokenizer.vocab_size) > vocab_size:
        raise CheckpointError(
            f"the checkpoint's tokenizer has ids up to {count - 1}, but the model's vocabulary has only {vocab_size}",
            FIX,
        )


@dataclass(frozen=True)
class Prompt:
    """A prompt, the number of tokens to add, and the tokenizer."""

    text: str
    tokens: int
    tokenizer: Tokenizer

    @cached_property
    def ids(self) -> list[int]:
        """Return the token ids of the prompt."""
        return self.tokenizer.encode(self.text)

    def continued(self, ids: Sequence[int]) -> str:
        """Return the text of the tokens after the prompt. Keep the space before its first word."""
        return self.tokenizer.decode_after(self.ids, ids)

    def check(self, vocab_size: int) -> None:
        """Raise UsageError for an empty prompt, CheckpointError for ids outside the vocabulary."""
        try:
            self.text.encode()
        except UnicodeEncodeError:  # bytes from a terminal that are not valid text
            raise UsageError("the prompt is not valid UTF-8", "Pass the prompt in UTF-8") from None
        ids = self.ids
        if not ids:
            raise UsageError("the prompt is empty", "Pass a prompt of at least one letter")
        if max(ids) >= vocab_size:
            raise CheckpointError(
                f"the checkpoint's tokenizer returns token {max(ids)}, but the model's vocabulary has only "
                f"{vocab_size}",
                FIX,
            )
