"""A NanoGPT with a MatFormer feed-forward. Parameters share a Llama's names where it has them.

Shapes in comments: B sequences, T tokens, D hidden size, F the tier's FFN width, H heads,
K head dimension, V vocabulary.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aftermath.model.arch.nanogpt_config import NanoGPTConfig
from aftermath.model.arch.transformer import Rotation, Transformer, linear, rotary, rotate
from aftermath.model.key_cache import LayerCache, TextCache
from aftermath.model.network import Through, attention


class NanoGPT(Transformer):
    """The network of one tier."""

    can_stack = True

    def __init__(self, config: NanoGPTConfig, tier: int = 0) -> None:
        super().__init__(config, tier, NanoGPTDecoder(config, tier))
        self._cap = config.logit_softcap

    def head(self, hidden: Tensor) -> Tensor:
        logits = super().head(hidden)  # [B, T, V]
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits

    def take_part(self, rank: int, ranks: int) -> None:
        for layer in self.model.layers.values():
            layer.self_attn.first = rank * (layer.self_attn.inner // ranks)


class NanoGPTDecoder(nn.Module):
    """Embeddings, layers and skips: token ids [B, T] -> hidden states [B, T, D]."""

    def __init__(self, config: NanoGPTConfig, tier: int) -> None:
        super().__init__()
        self.config = config
        shape = config.shape(tier)
        self.embed_tokens = _table(config.vocab_size, config.hidden_size)
        if tables := config.value_tables(tier):
            self.value_embeds = nn.ModuleDict(
                {
                    str(table): _table(config.vocab_size, heads * config.head_dim)
                    for table, heads in tables.items()
                }
            )
        if config.has_skips(tier):
            self.skip_lambdas = nn.Parameter(torch.empty(config.skips))
        self.layers = nn.ModuleDict(
            {
                str(number): NanoGPTLayer(config, *shape.of_layer(number), number)
                for number in shape.layers
            }
        )

        self._rotation = Rotation(partial(rotary, config.head_dim, config.rope_theta))

    def forward(
        self, input_ids: Tensor, through: Through, cache: TextCache | None = None
    ) -> Tensor:
        config = self.config
        hidden = start = _norm(self.embed_tokens(input_ids), config)  # [B, T, D]
        rotation = self._rotation.after(
            cache.length if cache else 0, input_ids.shape[1], hidden.device
        )
        layers = config.num_hidden_layers
        skips = list[Tensor]()  # outputs of the first layers, for their mirror images
        for name, layer in self.layers.items():
            number = int(name)
            # a layer that the tier skips returns its input
            skips += [hidden] * (min(number, config.skips) - len(skips))
            if number >= layers - config.skips:
                hidden = hidden + self.skip_lambdas[number - layers] * skips[layers - 1 - number]
            table = config.value_table(number)
            # [B, T, H K] or wider
            added = None if table is None else self.value_embeds[str(table)](input_ids)
            hidden = through(layer, hidden, start, added, rotation, cache and cache.of_layer(name))
            if number < config.skips:
                skips.append(hidden)
        return _norm(hidden, config)


class NanoGPTLayer(nn.Module):
    """Attention and feed-forward, each before a norm and added to the residual stream [B, T, D]."""

    def __init__(self, config: NanoGPTConfig, width: int, heads: int, number: int) -> None:
        super().__init__()
        self.config = config
        if config.x0_residual:
            self.residual_lambda = nn.Parameter(torch.empty(1))
            self.x0_lambda = nn.Parameter(torch.empty(1))
        self.self_attn = NanoGPTAttention(config, heads, config.value_table(number) is not None)
        self.mlp = NanoGPTFeedForward(config, width)

    def forward(
        self,
        hidden: Tensor,
        start: Tensor,
        added: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        cache: LayerCache | None = None,
    ) -> Tensor:
        if self.config.x0_residual:
            hidden = self.residual_lambda * hidden + self.x0_lambda * start
        hidden = hidden + self.self_attn(_norm(hidden, self.config), added, rotation, cache)
        out: Tensor = hidden + self.mlp(_norm(hidden, self.config))
        return out


class NanoGPTAttention(nn.Module):
    """Causal attention with rotary positions; a table of the tokens may be added to the values."""

    def __init__(self, config: NanoGPTConfig, heads: int, adds: bool) -> None:
        super().__init__()
        self.config = config
        inner = self.inner = heads * config.head_dim
        self.first = 0  # first column of the table that is added to these heads
        self.q_proj = linear(config.hidden_size, inner)  # [H K, D]
        self.k_proj = linear(config.hidden_size, inner)  # [H K, D]
        self.v_proj = linear(config.hidden_size, inner)  # [H K, D]
        self.o_proj = linear(inner, config.hidden_size)  # [D, H K]
        if adds:
            self.value_lambda = nn.Parameter(torch.empty(1))

    def forward(
        self,
        hidden: Tensor,
        added: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        cache: LayerCache | None,
    ) -> Tensor:
        # [B, H, T, K]
        query = self._heads(self.q_proj(hidden))
        key = self._heads(self.k_proj(hidden))
        if self.config.qk_norm:
            query, key = _norm(query, self.config), _norm(key, self.config)
        value = self.v_proj(hidden)  # [B, T, H K]
        if added is not None:
            own = value.shape[-1]
            if own < added.shape[-1]:
                added = added.narrow(-1, self.first, own)
            value = value + self.value_lambda * added
        query, key, value = rotate(query, rotation), rotate(key, rotation), self._heads(value)
        if cache is not None:
            key, value = cache.joined(key, value)
        mixed = attention(query, key, value)  # [B, H, T, K]
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))  # [B, T, D]
        return out

    def _heads(self, projected: Tensor) -> Tensor:
        batch, length, _ = projected.shape
        # [B, T, H K] -> [B, H, T, K]
        return projected.view(batch, length, -1, self.config.head_dim).transpose(1, 2)


class NanoGPTFeedForward(nn.Module):
    """Compute down(relu(up(x))^2), or SwiGLU. Hidden units are independent: a prefix is a model."""

    def __init__(self, config: NanoGPTConfig, width: int) -> None:
        super().__init__()
        self._gated = not config.relu_squared
        if self._gated:
            self.gate_proj = linear(config.hidden_size, width)  # [F, D]
        self.up_proj = linear(config.hidden_size, width)  # [F, D]
        self.down_proj = linear(width, config.hidden_size)  # [D, F]

    def forward(self, hidden: Tensor) -> Tensor:
        up = self.up_proj(hidden)  # [B, T, F]
        out: Tensor = self.down_proj(
            F.silu(self.gate_proj(hidden)) * up if self._gated else F.relu(up).square()
        )
        return out


def _norm(hidden: Tensor, config: NanoGPTConfig) -> Tensor:
    return F.rms_norm(hidden, (hidden.shape[-1],), eps=config.rms_norm_eps)


def _table(rows: int, columns: int) -> nn.Embedding:
    blank = torch.empty(rows, columns)  # torch's own init imports its compiler
    table: nn.Embedding = nn.Embedding.from_pretrained(blank, freeze=False)
    return table
