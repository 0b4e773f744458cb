"""DeepSeek V2 and V3 with MatFormer feed-forwards: latent attention, shared and routed experts.

Shapes in comments: B sequences, T tokens, N = B T, D hidden size, H heads, P and R head
dimensions without and with positions, K value head dimension, C rank of keys and values,
E routed experts, S experts per token, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aftermath.model.arch.deepseek_config import DeepseekConfig, DeepseekV2Config, DeepseekV3Config
from aftermath.model.arch.llama import SwiGLU
from aftermath.model.arch.transformer import Rotation, Transformer, linear, rotate, scaled_rotary
from aftermath.model.key_cache import LayerCache, TextCache
from aftermath.model.network import Through, attention

# The published model uses this epsilon for latent norms, whatever `rms_norm_eps` says.
_LATENT_EPSILON = 1e-6


class Deepseek(Transformer):
    """The network of one tier."""

    def __init__(self, config: DeepseekConfig, tier: int = 0) -> None:
        super().__init__(config, tier, DeepseekDecoder(config, tier))

    def take_part(self, rank: int, ranks: int) -> None:
        del rank
        for layer in self.model.layers.values():
            layer.self_attn.heads //= ranks


class DeepseekDecoder(nn.Module):
    """Embedding, layers and final norm: token ids [B, T] -> hidden states [B, T, D]."""

    def __init__(self, config: DeepseekConfig, tier: int) -> None:
        super().__init__()
        blank = torch.empty(config.vocab_size, config.hidden_size)  # [V, D]
        self.embed_tokens = nn.Embedding.from_pretrained(blank, freeze=False)
        shape = config.shape(tier)
        widths = {layer: shape.of_layer(layer)[0] for layer in shape.layers}
        self.layers = nn.ModuleDict(
            {str(layer): DeepseekLayer(config, width, layer) for layer, width in widths.items()}
        )
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._rotation = Rotation(partial(scaled_rotary, config, config.qk_rope_head_dim))

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


class DeepseekLayer(nn.Module):
    """Pre-norm attention and feed-forward or experts on the residual stream [B, T, D]."""

    def __init__(self, config: DeepseekConfig, width: int, number: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = LatentAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        dense = number < config.dense_layers
        self.mlp = SwiGLU(config.hidden_size, width) if dense else Experts(config, width)

    def forward(
        self, hidden: Tensor, rotation: tuple[Tensor, Tensor], cache: LayerCache | None = None
    ) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation, cache)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class LatentAttention(nn.Module):
    """Causal attention. One vector of rank C gives keys and values; heads share the rotated key."""

    def __init__(self, config: DeepseekConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        rank = config.q_lora_rank
        heads = self.heads = config.num_attention_heads
        self.shared_key = nn.Identity()  # ranks exchange tensors here (`TensorPlan`)
        queries = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)
        if rank is None:
            self.q_proj = linear(hidden, queries)  # [H (P + R), D]
        else:
            self.q_a_proj = linear(hidden, rank)
            self.q_a_layernorm = nn.RMSNorm(rank, eps=_LATENT_EPSILON)
            self.q_b_proj = linear(rank, queries)
        # [C + R, D]
        self.kv_a_proj_with_mqa = linear(hidden, config.kv_lora_rank + config.qk_rope_head_dim)
        self.kv_a_layernorm = nn.RMSNorm(config.kv_lora_rank, eps=_LATENT_EPSILON)
        self.kv_b_proj = linear(
            config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim)
        )
        self.o_proj = linear(heads * config.v_head_dim, hidden)  # [D, H K]
        self._pairs = not isinstance(config, DeepseekV3Config) or config.rope_interleave

    def forward(
        self, hidden: Tensor, rotation: tuple[Tensor, Tensor], cache: LayerCache | None
    ) -> Tensor:
        config = self.config
        queries = (
            self.q_proj(hidden)
            if config.q_lora_rank is None
            else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden).float()))
        )
        plain, turned = self._heads(queries).split(
            (config.qk_nope_head_dim, config.qk_rope_head_dim), -1
        )
        query = torch.cat((plain, self._rotate(turned, rotation)), -1)  # [B, H, T, P + R]
        latent, shared = self.kv_a_proj_with_mqa(hidden).split(
            (config.kv_lora_rank, config.qk_rope_head_dim), -1
        )
        both = self._heads(self.kv_b_proj(self.kv_a_layernorm(latent.float())))  # [B, H, T, P + K]
        plain, value = both.split((config.qk_nope_head_dim, config.v_head_dim), -1)
        shared = self.shared_key(shared).unsqueeze(1)  # [B, 1, T, R]
        turned = self._rotate(shared, rotation).expand(-1, self.heads, -1, -1)  # [B, H, T, R]
        key = torch.cat((plain, turned), -1)  # [B, H, T, P + R]
        if cache is not None:
            key, value = cache.joined(key, value)
        mixed = attention(query, key, value, scale=config.attention_scale)  # [B, H, T, K]
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))  # [B, T, D]
        return out

    def _heads(self, projected: Tensor) -> Tensor:
        batch, length, _ = projected.shape
        return projected.view(batch, length, self.heads, -1).transpose(1, 2)  # [B, H, T, n]

    def _rotate(self, heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate heads. Published weights pair 2i with 2i + 1, so move them to i and i + R/2."""
        if self._pairs:
            heads = heads.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        return rotate(heads, rotation)


class Gate(nn.Module):
    """Choose the experts of each token: [N, D] -> indices and weights [N, S]."""

    def __init__(self, config: DeepseekConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        if isinstance(config, DeepseekV3Config):
            self.e_score_correction_bias = nn.Parameter(torch.empty(config.n_routed_experts))

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        with torch.autocast(hidden.device.type, enabled=False):  # bf16 would choose other experts
            logits = F.linear(hidden.float(), self.weight)  # [N, E]
        if isinstance(config, DeepseekV2Config):
            scores = logits.softmax(-1)
            chosen = self._choose(scores.detach(), 1, 0.0)
            return chosen, scores.gather(1, chosen) * config.routed_scaling_factor
        assert isinstance(config, DeepseekV3Config)
        bias = self.e_score_correction_bias
        scores = logits.sigmoid()
        chosen = self._choose((scores + bias).detach(), 2, float("-inf"))
        weights = _counted(scores.gather(1, chosen), bias, chosen)  # the bias only chooses
        if config.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * config.routed_scaling_factor

    def _choose(self, scores: Tensor, best: int, below: float) -> Tensor:
        """Return the experts [N, S] with the highest scores [N, E].

        Only the groups with the largest sum of their `best` highest scores compete.
        """
        groups, allowed = self.config.groups
        if allowed < groups:
            grouped = scores.unflatten(-1, (groups, -1))  # [N, groups, E / groups]
            strength = grouped.topk(best, -1).values.sum(-1)  # ties do not change the values
            mask = torch.zeros_like(strength, dtype=torch.bool).scatter(
                1, _highest(strength, allowed), True
            )
            scores = grouped.masked_fill(~mask.unsqueeze(-1), below).flatten(1)
        return _highest(scores, self.config.num_experts_per_tok)


class Experts(nn.Module):
    """Add the shared experts, as one feed-forward, and the routed experts of each token."""

    def __init__(self, config: DeepseekConfig, width: int) -> None:
        super().__init__()
        hidden = config.hidden_size
        # ranks exchange tensors here (`TensorPlan`)
        self.given = nn.Identity()
        self.made = nn.Identity()
        self.gate = Gate(config)
        self.shared_experts = SwiGLU(hidden, width * config.n_shared_experts)
        self.experts = nn.ModuleList(SwiGLU(hidden, width) for _ in range(config.n_routed_experts))

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, 1)  # [N, D]
        chosen, weights = self.gate(tokens)  # [N, S]
        tokens, weights = self.given(tokens), self.given(weights)
        # Experts add to their tokens in ascending order, so sums do not depend on a device's write
        # order. An expert without tokens stays in the graph, so its gradient is zero and not
        # missing.
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            # rows are unique: a token takes an expert once
            rows, places = (chosen == number).nonzero(as_tuple=True)
            output = expert(tokens[rows]) * weights[rows, places].unsqueeze(-1)
            out = out.index_add(0, rows, output.to(out.dtype))
        both: Tensor = self.made(out.view_as(hidden) + self.shared_experts(self.given(hidden)))
        return both


def _highest(scores: Tensor, count: int) -> Tensor:
    """Return the indices [N, count] of the highest scores per row, lower index first on ties."""
    # The stable sort gives equal scores to the lower index on every device.
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]


# The backward pass visits every token of a share exactly once, even if layers are recomputed. So
# each choice is counted there.
class _Counted(torch.autograd.Function):
    """Pass weights through. The backward pass gives the bias the expert counts as its gradient."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, bias: Tensor, chosen: Tensor) -> Tensor:
        taken = torch.zeros(len(chosen), len(bias), dtype=torch.bool, device=chosen.device).scatter(
            1, chosen, True
        )
        ctx.save_for_backward(taken.sum(0).to(bias.dtype))
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients
        (counts,) = ctx.saved_tensors
        return gradient, counts, None


def _counted(weights: Tensor, bias: Tensor, chosen: Tensor) -> Tensor:
    """Return the weights [N, S] of the chosen experts [N, S]; the bias [E] learns from them."""
    counted: Tensor = _Counted.apply(weights, bias, chosen)
    return counted
