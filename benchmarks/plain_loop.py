"""A standard PyTorch training loop, the reference for a member's step.

It uses no code of this project: a Llama of torch's own modules, compiled with its loss, clipping,
and fused AdamW. It waits for the GPU only at the end of a share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Plain(nn.Module):
    """A Llama: token ids [B, T] -> logits [B, T, V]. As many key/value heads as heads, embeddings
    tied.
    """

    def __init__(
        self, *, vocabulary: int, hidden: int, layers: int, heads: int, width: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, width) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.head_dim = hidden // heads

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        powers = torch.arange(0, self.head_dim, 2, device=ids.device) / self.head_dim
        angles = torch.outer(
            torch.arange(ids.shape[1], device=ids.device), 10000.0**-powers
        ).repeat(1, 2)
        cosine = angles.cos()
        sine = angles.sin()
        for block in self.blocks:
            x = block(x, cosine, sine)
        return F.linear(self.norm(x), self.embedding.weight)


class Block(nn.Module):
    """Attention and SwiGLU, each after a norm."""

    def __init__(self, hidden: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.RMSNorm(hidden, eps=1e-5)
        self.between = nn.RMSNorm(hidden, eps=1e-5)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(hidden, width, bias=False) for _ in range(2))
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        normed = self.before(x)
        q, k, v = (
            each(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        q, k = (turned * cosine + _half_turn(turned) * sine for turned in (q, k))
        x = x + self.o(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        normed = self.between(x)
        out: Tensor = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return out


def _half_turn(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def of_llama(weights: Mapping[str, Tensor], *, heads: int) -> Plain:
    """Return a model with a copy of a Llama's weights (tied, without biases)."""
    vocabulary, hidden = weights["model.embed_tokens.weight"].shape
    width = weights["model.layers.0.mlp.up_proj.weight"].shape[0]
    layers = sum(name.endswith("up_proj.weight") for name in weights)
    model = Plain(vocabulary=vocabulary, hidden=hidden, layers=layers, heads=heads, width=width)
    names = {"embed_tokens": "embedding", "layers": "blocks", "input_layernorm": "before"}
    names |= {"post_attention_layernorm": "between", "self_attn": "", "mlp": ""}

    def renamed(name: str) -> str:
        parts = (
            names.get(part, part).removesuffix("_proj")
            for part in name.removeprefix("model.").split(".")
        )
        return ".".join(part for part in parts if part)

    model.load_state_dict({renamed(name): tensor for name, tensor in weights.items()})
    return model


class Loop:
    """Trains on shares of tokens with AdamW, in `steps` steps per share."""

    def __init__(
        self,
        model: Plain,
        *,
        micro_batch: int,
        steps: int,
        bf16: bool = False,
        compiled: bool = False,
    ) -> None:
        self.model = model
        self._micro = micro_batch
        self._steps = steps
        self._bf16 = bf16
        own = list(model.parameters())
        self._optimizer = torch.optim.AdamW(
            own, lr=4e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self._loss = torch.compile(self.loss, dynamic=False) if compiled else self.loss
        self._device = own[0].device

    def step(self, share: Tensor) -> float:
        """Train on token ids [n, T] and return the mean loss. Nothing else is read from the GPU."""
        losses = []
        placed = share.to(self._device)
        for part in placed.tensor_split(self._steps):
            self._optimizer.zero_grad()
            for micro in part.split(self._micro):
                loss = self._loss(micro) * (len(micro) / len(part))
                loss.backward()
                losses.append(loss.detach() * (len(part) / len(share)))
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self._optimizer.step()
        return float(torch.stack(losses).sum())

    def loss(self, ids: Tensor) -> Tensor:
        """Return the mean cross-entropy of the next token."""
        cast = (
            torch.autocast(ids.device.type, dtype=torch.bfloat16)
            if self._bf16
            else contextlib.nullcontext()
        )
        with cast:
            logits = self.model(ids[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
