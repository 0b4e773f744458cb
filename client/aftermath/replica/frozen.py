"""A copy of a network's weights for evaluation on another thread, which can be interrupted.

An interrupt ends copying at the next piece, and a pass at the next module. The caller can repeat an
interrupted pass later with the same weights. The copy takes 4 bytes per parameter of the tier, on
the model's device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from aftermath.model.network import LanguageModel

_PIECE = 1 << 24  # numbers copied at once: 64 MiB, which takes hundredths of a second


class Interrupted(Exception):
    """A pass was interrupted."""


@torch.no_grad()
def frozen_copy(model: LanguageModel, may_continue: Callable[[], bool]) -> LanguageModel | None:
    """Return a network with the model's weights, or None if interrupted.

    Its interrupted passes raise Interrupted.
    """
    copies: dict[str, Tensor] = {}
    for name, tensor in model.named_parameters():
        copies[name] = torch.empty_like(tensor, requires_grad=False)
        for there, here in zip(
            copies[name].view(-1).split(_PIECE), tensor.view(-1).split(_PIECE), strict=True
        ):
            if not may_continue():
                return None
            there.copy_(here)
    copied = model.config.build(model.tier, copies).requires_grad_(False)

    def give_way(*_: object) -> None:
        if not may_continue():
            raise Interrupted

    for module in copied.modules():
        module.register_forward_pre_hook(give_way)
    return copied
