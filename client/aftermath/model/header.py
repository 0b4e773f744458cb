"""The header of a safetensors file, the same bytes for every writer.

Decided: canonical JSON, and tensors in ascending order of their names; safetensors' own writer orders metadata by
chance. With it a file can be written tensor by tensor, without all of them in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from aftermath.model.canonical import canonical

_SIZES = {"U8": 1, "F32": 4}  # bytes of an element, by its name in the format
_LENGTH, _ALIGNED = 8, 8  # bytes of the header's length; what the first tensor's place is a multiple of


def header(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The bytes before the tensors, of which type (U8 or F32) and shape are given; these follow, ordered by name."""
    places: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (kind, shape) in sorted(tensors.items()):
        start, end = end, end + _SIZES[kind] * math.prod(shape)
        places[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = canonical(places)
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(_LENGTH, "little") + text
