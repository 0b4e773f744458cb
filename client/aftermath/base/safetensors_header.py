"""The header of a safetensors file with the same bytes on every machine.

safetensors' own writer orders metadata randomly. This header orders tensors by name, and the file
can be written one tensor at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from aftermath.base.canonical_json import canonical

_SIZES = {"U8": 1, "F32": 4}  # bytes of an element, by its name in the format
# bytes of the header's length; alignment of the first tensor
_LENGTH = 8
_ALIGNED = 8


def header(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """Return the bytes before the tensors (U8 or F32), which follow in the order of names."""
    places: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (kind, shape) in sorted(tensors.items()):
        start, end = end, end + _SIZES[kind] * math.prod(shape)
        places[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = canonical(places)
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(_LENGTH, "little") + text
