"""A Llama with a MatFormer feed-forward: tier k holds, and computes with, the first 1/2^k of every FFN.

Decided
- Parameter names and layouts are Hugging Face's `LlamaForCausalLM`, so checkpoints go both ways.
- A tier is a narrower model, not a masked one: a member pays memory, compute and traffic for what it holds only.
- Heads and embeddings are whole on every tier. Tied embeddings have no `lm_head.weight`.

Shapes in comments: B sequences, T tokens, D hidden size, F the tier's FFN width, H query heads, G key/value heads,
K head dimension, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.network import LanguageModel


class Llama(LanguageModel):
    """The network of one tier."""

    def __init__(self, config: LlamaConfig, tier: int = 0) -> None:
        super().__init__(config, tier)
        self.model = Decoder(config, config.width(tier))
        if not config.tie_word_embeddings:
            self.lm_head = linear(config.hidden_size, config.vocab_size)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.model(input_ids)  # [B, T, D]
        head = self.model.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return F.linear(hidden, head.weight)


class Decoder(nn.Module):
    """Embedding, layers and final norm: token ids [B, T] -> hidden states [B, T, D]."""

    def __init__(self, config: LlamaConfig, width: int) -> None:
        super().__init__()
        self.config = config
        blank = torch.empty(config.vocab_size, config.hidden_size)  # [V, D]; torch's own init imports its compiler
        self.embed_tokens = nn.Embedding.from_pretrained(blank, freeze=False)
        self.layers = nn.ModuleList(Layer(config, width) for _ in range(config.num_hidden_layers))
        self.norm = _norm(config)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden: Tensor = self.embed_tokens(input_ids)  # [B, T, D]
        rotation = rotary(self.config.head_dim, self.config.rope_theta, input_ids.shape[1], hidden.device)
        for layer in self.layers:
            hidden = layer(hidden, rotation)
        out: Tensor = self.norm(hidden)
        return out


class Layer(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream [B, T, D]."""

    def __init__(self, config: LlamaConfig, width: int) -> None:
        super().__init__()
        self.input_layernorm = _norm(config)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = _norm(config)
        self.mlp = FeedForward(config.hidden_size, width)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions: H query heads share G key/value heads."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = linear(config.hidden_size, queries)  # [H K, D]
        self.k_proj = linear(config.hidden_size, keys)  # [G K, D]
        self.v_proj = linear(config.hidden_size, keys)  # [G K, D]
        self.o_proj = linear(queries, config.hidden_size)  # [D, H K]

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        query = rotate(self._heads(self.q_proj(hidden)), rotation)  # [B, H, T, K]
        key = rotate(self._heads(self.k_proj(hidden)), rotation)  # [B, G, T, K]
        value = self._heads(self.v_proj(hidden))  # [B, G, T, K]
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)  # [B, H, T, K]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # [B, H, T, K]
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))  # [B, T, D]
        return out

    def _heads(self, projected: Tensor) -> Tensor:
        batch, length, _ = projected.shape
        return projected.view(batch, length, -1, self.head_dim).transpose(1, 2)  # [B, T, n K] -> [B, n, T, K]


class FeedForward(nn.Module):
    """SwiGLU of a tier's width: down(silu(gate(x)) * up(x)). Hidden units are independent, so a prefix is a model."""

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.gate_proj = linear(hidden_size, width)  # [F, D]
        self.up_proj = linear(hidden_size, width)  # [F, D]
        self.down_proj = linear(width, hidden_size)  # [D, F]

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


def rotary(head_dim: int, theta: float, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine [T, K] of RoPE (arXiv 2104.09864) in Hugging Face's half-split layout."""
    half = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim  # [K/2]
    frequencies = 1.0 / theta**half  # the same roundings as transformers, which long texts would show
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequencies)  # [T, K/2]
    angles = torch.cat((angles, angles), dim=-1)  # [T, K]
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate [B, n, T, K] by position: dimension i pairs with i + K/2."""
    cosine, sine = rotation
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A matrix without a bias."""
    return nn.Linear(inputs, outputs, bias=False)


def _norm(config: LlamaConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
