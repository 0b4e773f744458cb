"""A Llama with a MatFormer feed-forward; Mistral, Qwen2 and Qwen3 are the same graph.

Parameters have Hugging Face's names and layouts, so checkpoints load in both directions.
Shapes in comments: B sequences, T tokens, D hidden size, F the tier's FFN width, H query heads,
G key/value heads, K head dimension, V vocabulary.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.arch.transformer import Rotation, Transformer, linear, rotate, scaled_rotary
from aftermath.model.key_cache import LayerCache, TextCache
from aftermath.model.network import Through, attention


class Llama(Transformer):
    """The network of one tier."""

    can_stack = True

    def __init__(self, config: LlamaConfig, tier: int = 0) -> None:
        super().__init__(config, tier, LlamaDecoder(config, tier))


# A tier is a narrower model, not a masked one: a member pays memory and compute only for the
# tensors that it holds. Embeddings are whole on every tier.
class LlamaDecoder(nn.Module):
    """Embedding, layers and final norm: token ids [B, T] -> hidden states [B, T, D]."""

    def __init__(self, config: LlamaConfig, tier: int) -> None:
        super().__init__()
        shape = config.shape(tier)
        # [V, D]; torch's own init imports its compiler
        blank = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(blank, freeze=False)
        self.layers = nn.ModuleDict(
            {str(layer): LlamaLayer(config, *shape.of_layer(layer)) for layer in shape.layers}
        )
        self.norm = _norm(config)
        self._rotation = Rotation(partial(scaled_rotary, config, config.head_dim))

    def forward(
        self, input_ids: Tensor, through: Through, cache: TextCache | None = None
    ) -> Tensor:
        hidden: Tensor = self.embed_tokens(input_ids)  # [B, T, D]
        rotation = self._rotation.after(
            cache.length if cache else 0, input_ids.shape[1], hidden.device
        )
        for name, layer in self.layers.items():
            hidden = through(layer, hidden, rotation, cache and cache.of_layer(name))
        out: Tensor = self.norm(hidden)
        return out


class LlamaLayer(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream [B, T, D]."""

    def __init__(self, config: LlamaConfig, width: int, key_heads: int) -> None:
        super().__init__()
        self.input_layernorm = _norm(config)
        self.self_attn = GroupedAttention(config, key_heads)
        self.post_attention_layernorm = _norm(config)
        self.mlp = SwiGLU(config.hidden_size, width, bias=config.mlp_bias)

    def forward(
        self, hidden: Tensor, rotation: tuple[Tensor, Tensor], cache: LayerCache | None = None
    ) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation, cache)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class GroupedAttention(nn.Module):
    """Causal attention with rotary positions: H query heads share G key/value heads."""

    def __init__(self, config: LlamaConfig, key_heads: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        keys = key_heads * config.head_dim
        queries = keys * (config.num_attention_heads // config.num_key_value_heads)
        biased = config.attention_bias
        self.q_proj = linear(config.hidden_size, queries, bias=biased)  # [H K, D]
        self.k_proj = linear(config.hidden_size, keys, bias=biased)  # [G K, D]
        self.v_proj = linear(config.hidden_size, keys, bias=biased)  # [G K, D]
        self.o_proj = linear(queries, config.hidden_size, bias=config.output_bias)  # [D, H K]
        self.normed = config.head_norm
        if self.normed:
            self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def forward(
        self, hidden: Tensor, rotation: tuple[Tensor, Tensor], cache: LayerCache | None
    ) -> Tensor:
        query = self._heads(self.q_proj(hidden))
        key = self._heads(self.k_proj(hidden))
        if self.normed:
            # a norm needs inputs of its weight's type
            query, key = self.q_norm(query.float()), self.k_norm(key.float())
        query, key = rotate(query, rotation), rotate(key, rotation)  # [B, H, T, K], [B, G, T, K]
        value = self._heads(self.v_proj(hidden))  # [B, G, T, K]
        if cache is not None:
            key, value = cache.joined(key, value)
        shared = query.shape[1] // key.shape[1]
        if (
            query.device.type == "cpu" and shared > 1
        ):  # enable_gqa saves nothing on a CPU and would change the bits of existing runs
            # [B, H, T, K]
            key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        # [B, H, T, K]
        mixed = attention(query, key, value, enable_gqa=query.shape[1] != key.shape[1])
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))  # [B, T, D]
        return out

    def _heads(self, projected: Tensor) -> Tensor:
        batch, length, _ = projected.shape
        # [B, T, n K] -> [B, n, T, K]
        return projected.view(batch, length, -1, self.head_dim).transpose(1, 2)


class SwiGLU(nn.Module):
    """Compute down(silu(gate(x)) * up(x)). Hidden units are independent, so a prefix is a model."""

    def __init__(self, hidden_size: int, width: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = linear(hidden_size, width, bias=bias)  # [F, D]
        self.up_proj = linear(hidden_size, width, bias=bias)  # [F, D]
        self.down_proj = linear(width, hidden_size, bias=bias)  # [D, F]

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


def _norm(config: LlamaConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
