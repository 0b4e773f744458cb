"""A copy of a network's weights to look at, in a network of its own, which gives way at once.

Decided
- It is asked on another thread than the one that trains. Where it may not go on, copying ends at the next piece, and a
  pass at the next module that it comes to: whoever asked begins again later, with the same weights.
- It costs 4 bytes a parameter of the tier, where the model is, as long as somebody holds it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from aftermath.model.network import LanguageModel

_PIECE = 1 << 24  # numbers copied at once: 64 MiB, some hundredths of a second


class GivenWay(Exception):
    """A pass was given up on its way."""


@torch.no_grad()
def frozen_copy(model: LanguageModel, may_go_on: Callable[[], bool]) -> LanguageModel | None:
    """A network of its own with the model's weights; None where it might not go on. Its passes raise GivenWay then."""
    copies: dict[str, Tensor] = {}
    for name, tensor in model.named_parameters():
        copies[name] = torch.empty_like(tensor, requires_grad=False)
        for there, here in zip(copies[name].view(-1).split(_PIECE), tensor.view(-1).split(_PIECE), strict=True):
            if not may_go_on():
                return None
            there.copy_(here)
    copied = model.config.build(model.tier, copies).requires_grad_(False)

    def give_way(*_: object) -> None:
        if not may_go_on():
            raise GivenWay

    for module in copied.modules():
        module.register_forward_pre_hook(give_way)
    return copied
