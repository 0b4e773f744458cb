"""Refuse tokens that no tokenizer writes: a wrong width or byte order, or only zeros.

Such tokens can all be inside the vocabulary, so training would continue with garbage. Statistics of
the data play no part: each rule is about bytes that cannot stand where they stand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermath.data.source import WrongTokens

WIDTHS = {2: "TwoBytes", 4: "FourBytes"}
_FEW = 64  # fewer tokens say nothing
_FEW_FOR_ORDER = 256
_FEW_DIFFERENT = 16
_LARGEST_VOCABULARY = 1 << 20  # published tokenizers have at most about 2^18 tokens
_HIGH_HALF = (_LARGEST_VOCABULARY - 1) >> 16  # the largest second half of a 4-byte token
_SAVE = "Write the tokens again, as numpy.asarray(tokens, '<u4').tofile(NAME)"


def set_width(token_bytes: int) -> str:
    """Return the fix for files whose tokens have another width than the run says."""
    return f'Set token_size_in_bytes = "{WIDTHS[token_bytes]}" (data inspect: --token-bytes {token_bytes})'


def check_width_and_order(name: str, tokens: NDArray[Any]) -> None:
    """Raise WrongTokens if consecutive tokens of a file, from an even position on, have another
    width or byte order.
    """
    count = len(tokens) // 2 * 2
    if count < _FEW:
        return
    even = tokens[0:count:2]
    odd = tokens[1:count:2]
    if even.any() != odd.any():
        width = 2 * tokens.dtype.itemsize
        fix = set_width(width) if width in WIDTHS else _SAVE
        raise WrongTokens(f"{name} has a 0 in every second place: its tokens seem to have {width} bytes", fix)
    if tokens.dtype.itemsize == 2 and odd.max() <= _HIGH_HALF and even.max() >= 1000:
        raise WrongTokens(
            f"{name} has at most {odd.max()} in every second place: its tokens seem to have 4 bytes", set_width(4)
        )
    if _has_other_order(tokens):
        raise WrongTokens(
            f"{name} seems to be big-endian: its largest token is {tokens.max()}, and {tokens.byteswap().max()} with "
            "the bytes of each token swapped",
            f"Write the tokens little-endian, as numpy.asarray(tokens, '{tokens.dtype.str}').tofile(NAME)",
        )
    if tokens.dtype.itemsize == 4 and np.count_nonzero(tokens >= _LARGEST_VOCABULARY) * 2 > len(tokens):
        raise WrongTokens(f"{name} has tokens up to {tokens.max()}: its tokens seem to have 2 bytes", set_width(2))


def check_not_only_zeros(name: str, tokens: NDArray[Any]) -> None:
    """Raise WrongTokens if tokens from all over a file are all 0, as those of a file that was never
    filled.
    """
    if len(tokens) >= _FEW and not tokens.any():
        raise WrongTokens(f"{name} holds only zeros", "Copy, download or tokenise it again")


def _has_other_order(tokens: NDArray[Any]) -> bool:
    """Return whether swapping bytes makes the largest token clearly smaller.

    The low byte of a token takes all values and the high byte only those of the vocabulary. So
    swapped tokens are the larger ones, unless they were swapped before. Vocabularies of nearly 2^16
    are not told apart.
    """
    if len(tokens) < _FEW_FOR_ORDER or len(np.unique(tokens)) < _FEW_DIFFERENT:
        return False
    return int(tokens.byteswap().max()) * 5 < int(tokens.max()) * 4
