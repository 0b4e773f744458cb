"""Measure a model's loss on held-out text.

The sequences are spread evenly over all files, in order, so every training is measured on the same
sequences from as many documents as possible.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aftermath.data.source import Source
from aftermath.model.network import LanguageModel

_BATCH = 32  # sequences in a pass


def spread(data: Source, count: int) -> Tensor:
    """Return at most `count` evenly spaced sequences, int64 [n, seq_len]."""
    number = min(count, data.sequences)
    return torch.from_numpy(
        data.read([index * data.sequences // number for index in range(number)])
    )


@torch.no_grad()
def loss_on(model: LanguageModel, sequences: Tensor) -> float:
    """Return the mean cross-entropy in nats per token."""
    device = next(model.parameters()).device
    parts = sequences.split(_BATCH)
    return sum(model.loss(part.to(device)).item() * len(part) for part in parts) / len(sequences)
