"""Compare the expert counts in a share's gradients with counts from the gates' logits."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.model.network import LanguageModel
from aftermath.replica.options import Arithmetic
from aftermath.replica.passes import Passes
from aftermath.replica.replica import accumulate

torch.set_num_threads(1)
FILE: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "initializer_range": 0.3,
}
SEQUENCES = 4
LENGTH = 9
BIAS = ".e_score_correction_bias"


def build_model(tier: int) -> LanguageModel:
    """Return a network whose biases are large enough to change choices."""
    config = config_of(FILE)
    params = init_weights(config, 7, tier)
    draws = torch.Generator().manual_seed(3)
    for name in sorted(params):
        if name.endswith(BIAS):
            params[name] = torch.rand(params[name].shape, generator=draws) - 0.5
    return config.build(tier, params)


def share(labels: bool) -> Tensor:
    """Return sequences [n, T], or [n, 2, T] with labels, many of which are not learnt."""
    draws = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 48, (SEQUENCES, LENGTH), generator=draws)
    left_out = torch.rand(ids.shape, generator=draws) < 0.5
    return torch.stack((ids, ids.masked_fill(left_out, -100)), 1) if labels else ids


def counted_alone(net: LanguageModel, ids: Tensor) -> dict[str, list[int]]:
    """Count how often each expert is chosen, by the name of its bias. Only tokens that predict
    another one count.

    One token and one group after the other, in fp64 and in Python, of what the gates are given in a
    pass of its own.
    """
    all_counts: dict[str, list[int]] = {}

    def look(name: str, gate: Any, inputs: tuple[Tensor, ...]) -> None:
        counts = all_counts.setdefault(name + BIAS, [0] * 8)
        logits = inputs[0].double() @ gate.weight.double().T
        for row in (logits.sigmoid() + gate.e_score_correction_bias.double()).tolist():
            groups = [row[first : first + 2] for first in range(0, 8, 2)]
            best = sorted(range(4), key=lambda group: -sum(sorted(groups[group])[-2:]))[:2]
            allowed = [expert for expert in range(8) if expert // 2 in best]
            for expert in sorted(allowed, key=lambda expert: -row[expert])[:3]:
                counts[expert] += 1

    gates = [(name, module) for name, module in net.named_modules() if name.endswith("mlp.gate")]
    hooks = [
        gate.register_forward_pre_hook(lambda module, inputs, name=name: look(name, module, inputs))
        for name, gate in gates
    ]
    with torch.no_grad():
        net(ids[:, :-1])
    for hook in hooks:
        hook.remove()
    return all_counts


def counts_of(net: LanguageModel) -> dict[str, list[float]]:
    return {
        name: p.grad.tolist()
        for name, p in net.named_parameters()
        if name.endswith(BIAS) and p.grad is not None
    }


# Micro-batch size, recomputed layers, labels, bf16. The slow tier adds the combinations that no
# branch depends on.
FAST_WAYS = [
    (SEQUENCES, False, False, False),
    (3, True, True, False),
    (3, False, False, True),
    (1, False, True, False),
    (1, True, False, True),
]
SLOW_WAYS = [
    (3, *flags)
    for flags in itertools.product([False, True], repeat=3)
    if (3, *flags) not in FAST_WAYS
]


@pytest.mark.parametrize(
    ("micro", "recompute", "labels", "bf16"),
    FAST_WAYS + [pytest.param(*way, marks=pytest.mark.slow) for way in SLOW_WAYS],
)
def test_expert_counts_of_share_count_each_token_once(
    micro: int, recompute: bool, labels: bool, bf16: bool
) -> None:
    for tier in (0, 1):
        net = build_model(tier)
        net.recompute = recompute
        sequences = share(labels)
        expected = counted_alone(net, sequences[:, 0] if labels else sequences)
        assert all(sum(counts) == 3 * SEQUENCES * (LENGTH - 1) for counts in expected.values())
        accumulate(Passes(net, Arithmetic(bf16, False)), sequences, micro, threading.Event())
        if bf16:  # bf16 rounds the inputs of gates, so close choices may differ
            assert {name: sum(counts) for name, counts in counts_of(net).items()} == {
                name: sum(counts) for name, counts in expected.items()
            }
        else:
            assert counts_of(net) == expected


@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "recomputed"])
def test_expert_counts_exclude_evaluations_and_add_up(recompute: bool) -> None:
    net = build_model(0)
    net.recompute = recompute
    passes = Passes(net)
    sequences = share(False)
    expected = counted_alone(net, sequences)
    with torch.no_grad():
        passes.loss(sequences)
    assert counts_of(net) == {}
    passes.loss(sequences)  # with a graph, but without a backward pass
    assert counts_of(net) == {}
    for times in (1, 2):
        accumulate(passes, sequences, 2, threading.Event())
        with torch.no_grad():
            passes.loss(sequences)
        assert counts_of(net) == {
            name: [times * count for count in counts] for name, counts in expected.items()
        }
