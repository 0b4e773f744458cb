"""The base class of networks: logits, loss, recomputation and the cache of a text.

Shapes in comments: B sequences, n heads, T tokens of this pass, S cached and new tokens, D hidden
size, K head dimension, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aftermath.model.config import ModelConfig
from aftermath.model.key_cache import TextCache


def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Return causal attention [B, n, T, K]. Queries belong to the last T of the keys' tokens."""
    # Autocast would cast the rotated queries and keys too, but it does not see this call in `vmap`.
    query = query.to(value.dtype)
    key = key.to(value.dtype)
    length = query.shape[2]
    key_length = key.shape[2]
    if length == key_length:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, **options)
    mask = None  # the last token sees all
    if length > 1:
        # [T, S]
        mask = torch.ones(length, key_length, dtype=torch.bool, device=query.device).tril(
            key_length - length
        )
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)


Through = Callable[..., Tensor]
"""Type of `LanguageModel.through`: wraps a layer, which may be recomputed."""


# In training, the logits of a large vocabulary are never whole in memory: the loss is a sum over
# groups of positions, whose logits are recomputed for the gradient. With `recompute`, a layer
# stores only its inputs. On a CPU, the bits are the same either way.
class LanguageModel(nn.Module, ABC):
    """The causal language model of one tier, usually made by its config's `build`."""

    def __init__(self, config: ModelConfig, tier: int) -> None:
        super().__init__()
        self.config = config
        self.tier = tier

    @classmethod
    def of(cls, config: Any, tier: int, params: Mapping[str, Tensor]) -> Self:
        """Return a network on these tensors (no copy). Raises RuntimeError if they do not fit."""
        with torch.device("meta"):
            model = cls(config, tier)
        model.load_state_dict(dict(params), strict=True, assign=True)
        return model.requires_grad_(True)

    recompute: bool = False
    """Whether layers are computed twice."""
    can_recompute: bool = True
    can_stack: bool = False
    """Whether `torch.func.vmap` can compute the loss of several members at once."""

    def take_part(self, rank: int, ranks: int) -> None:
        """Prepare for tensor parallelism, after the matrices of `tensor_plan` were cut.

        Modules that take their sizes from their matrices need no preparation.
        """

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return next-token logits [B, T, V] of token ids [B, T]."""
        return self.head(self.body(input_ids))

    @abstractmethod
    def body(self, input_ids: Tensor, cache: TextCache | None = None) -> Tensor:
        """Return the last hidden states [B, T, D] of token ids [B, T].

        With a cache, the tokens follow those in the cache and are added to it, up to
        `config.cacheable`.
        """

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] of hidden states [..., D]."""

    def loss(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the mean next-token cross-entropy of [B, T] in fp32 and nats per token.

        With `labels` [B, T], predict each label at its own position instead. A label of -100 (as in
        torch) is ignored. The mean over no labels is 0.
        """
        hidden = self.body(input_ids[:, :-1])  # [B, T-1, D]
        targets = (input_ids if labels is None else labels)[:, 1:].flatten()  # [B (T-1)]
        at_once = LOGITS_AT_ONCE_ON_A_GPU if hidden.device.type == "cuda" else LOGITS_AT_ONCE
        rows = max(1, at_once // self.config.vocab_size)
        if len(targets) > rows:
            parts = zip(hidden.flatten(0, 1).split(rows), targets.split(rows), strict=True)
            total = torch.stack([recomputed(self._summed, *part) for part in parts]).sum()
        elif labels is None:
            return F.cross_entropy(self.head(hidden).float().flatten(0, 1), targets)
        else:
            total = self._summed(hidden.flatten(0, 1), targets)
        return total / (len(targets) if labels is None else (targets >= 0).sum().clamp(min=1))

    def _summed(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(hidden).float(), targets, reduction="sum")

    # A layer's input is its own graph node, so one layer's gradients are summed before others are
    # added. FSDP2 sums in this order, and the order determines the bits.
    def through(self, layer: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """Return `layer(*inputs)`, recomputed in the backward pass if `recompute` is set."""
        inputs = tuple(
            value.view_as(value) if isinstance(value, Tensor) else value for value in inputs
        )
        return recomputed(layer, *inputs) if self.recompute else layer(*inputs)


LOGITS_AT_ONCE = 1 << 25
"""Maximum logits at a time: 128 MiB of fp32."""
LOGITS_AT_ONCE_ON_A_GPU = (1 << 31) - 1
"""Maximum logits at a time on a GPU, which is slower with fewer. `PassSize` accounts for them."""


def recomputed(compute: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Return `compute(*inputs)` and recompute it in the backward pass."""
    if not torch.is_grad_enabled():
        return compute(*inputs)
    from torch.utils.checkpoint import checkpoint

    out: Tensor = checkpoint(compute, *inputs, use_reentrant=False, preserve_rng_state=False)
    return out
