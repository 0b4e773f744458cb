"""The byte-level tokenizer: ids 0..255 are the bytes of UTF-8 text themselves, 256 ends a document.

Decided: it is an ordinary `tokenizer.json` of the `tokenizers` library, so a checkpoint that carries it works anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_TOKEN = "<|endoftext|>"
VOCAB_SIZE = 257


def byte_tokenizer() -> Tokenizer:
    """A tokenizer of 257 ids whose first 256 are exactly the bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab={char: byte for byte, char in enumerate(_alphabet())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_TOKEN, special=True)])
    return tokenizer


def _alphabet() -> list[str]:
    """The character of each byte in GPT-2's byte-level scheme: itself where it prints, else one from U+0100 on."""
    prints = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in prints else chr(next(others)) for byte in range(256)]
