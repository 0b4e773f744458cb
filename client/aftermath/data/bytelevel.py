"""The byte-level tokenizer: ids 0..255 are the bytes of UTF-8 text, 256 ends a document.

It is an ordinary `tokenizer.json` of the `tokenizers` library, so it works in any client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_TOKEN = "<|endoftext|>"
VOCAB_SIZE = 257


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with 257 ids, of which the first 256 are the bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(
        models.BPE(vocab={char: byte for byte, char in enumerate(_alphabet())}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_TOKEN, special=True)])
    return tokenizer


def _alphabet() -> list[str]:
    """Return the character of each byte in GPT-2's scheme: itself if printable, else from U+0100
    on.
    """
    prints = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    rest = iter(range(256, 512))
    return [chr(byte) if byte in prints else chr(next(rest)) for byte in range(256)]
