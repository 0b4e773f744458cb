"""Tensors in a file without a name, so that copies of a large model or state take no memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

MEMORY = 512 << 20
"""Maximum bytes of memory for the copies of one owner: start weights, or private states.

If all copies together need more, each is in a file.
"""


def mapped_if_large(
    tensors: Mapping[str, Tensor], copies: int, directory: Path | None
) -> Mapping[str, Tensor]:
    """Return tensors as they are if that many `copies` fit into MEMORY, or mapped from a file.

    The tensors must be on the CPU. The caller must not change them later, because they may be
    returned as they are. Without a directory they stay in memory. Raises OSError or SafetensorError
    if the file cannot be written.
    """
    size = sum(tensor.nbytes for tensor in tensors.values())
    if directory is None or size * copies <= MEMORY:
        return tensors
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The file has no name after this block. The system frees its space with the last mapping, also
    # if the process is killed.
    with tempfile.NamedTemporaryFile(dir=directory, suffix=".safetensors") as file:
        save_file(dict(tensors), file.name)
        mapped: Mapping[str, Tensor] = load_file(file.name)
    return mapped
