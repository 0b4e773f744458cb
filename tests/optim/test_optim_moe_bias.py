"""Balance vectors of experts: members vote on load errors, and nothing else changes the vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.model.network import LanguageModel
from aftermath.optim import compiled_sparse, distro_apply, sparseloco_apply
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Engine
from aftermath.optim.level_votes import Votes
from aftermath.optim.moe_bias import load_error
from aftermath.optim.schema import Schema, build_schema
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo

torch.set_num_threads(1)

V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
CONFIG = config_of(V3)
DISTRO = Distro(
    topk=3, topk_embeddings=3, chunk=7, quantize_1bit=True, decay=0.999, weight_decay=0.1, clip=1.0
)
FLOAT = Distro(
    topk=3, topk_embeddings=3, chunk=7, quantize_1bit=False, decay=0.999, weight_decay=0.1, clip=1.0
)
INNER = SparseLoCo(inner_steps=1, topk=3, topk_embeddings=3, chunk=7, weight_decay=0.1, clip=1.0)
MUON = SparseLoCo(
    inner_steps=2, inner_optimizer="muon", topk=3, topk_embeddings=3, chunk=7, weight_decay=0.1
)
OUTER = SparseLoCo(
    inner_steps=2, topk=3, topk_embeddings=3, chunk=7, weight_decay=0.1, orthogonal_lr=15.0
)
ALL = {"distro": DISTRO, "values": FLOAT, "inner": INNER, "muon": MUON, "outer": OUTER}
COUNTS = ([9, 1, 0, 6, 4, 4, 4, 4], [12, 0, 4, 0, 4, 4, 4, 4], [0, 12, 4, 0, 8, 4, 0, 4])
RATE = 2.0**-7


@pytest.fixture(params=["kernels", "torch"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with compiled kernels, and without."""
    if request.param == "torch":
        for module in (compiled_sparse, sparseloco_apply, distro_apply):
            monkeypatch.setattr(module, "usable", lambda params: False)


def member(schema: Schema, tier: int = 0) -> tuple[dict[str, Tensor], Engine]:
    params = init_weights(CONFIG, 1, tier)
    params[BIAS] = torch.linspace(-1, 1, 8)
    return params, Engine(schema, tier, params)


def trained(engine: Engine, counts: list[int], size: float = 1e-3, **options: Any) -> Any:
    """Train a share in which experts were chosen `counts` times. Other gradients are `size`."""

    def backward(_: Tensor) -> float:
        for tensor in engine._params.values():
            tensor.grad = torch.full_like(tensor, size)
        engine._params[BIAS].grad = torch.tensor(counts, dtype=torch.float32)
        return 0.0

    return engine.train(torch.zeros(2, 3, dtype=torch.int64), backward, RATE, 0.0, **options)


def votes(schema: Schema, results: list[Mapping[int, bytes]]) -> dict[int, list[Votes]]:
    levels = sorted({level for result in results for level in result})
    return {
        level: [
            decode_level(result[level], schema.results, level)
            for result in results
            if level in result
        ]
        for level in levels
    }


def test_load_error_has_the_exact_sign() -> None:
    counts = torch.tensor([2.0**23 + 1, 2.0**23, 2.0**23, 2.0**23 - 1])
    assert load_error(counts).sign().tolist() == [1, 0, 0, -1]
    assert load_error(torch.tensor([3.0, 1.0, 0.0, 0.0])).tolist() == [0.5, 0, -0.25, -0.25]
    assert not load_error(torch.zeros(4)).any()


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("rounds", [1, 3])
def test_distro_moves_balance_by_the_majority_sign(rounds: int) -> None:
    """No residual is left over from earlier rounds. Weight decay applies to all other parameters
    only.
    """
    schema = build_schema(V3, 3, DISTRO)
    everyone = [member(schema, tier) for tier in range(3)]
    signs = (
        torch.tensor([[(8 * c > sum(own)) - (8 * c < sum(own)) for c in own] for own in COUNTS])
        .sum(0)
        .sign()
    )
    assert sorted(set(signs.tolist())) == [-1, 0, 1]
    expected = everyone[0][0][BIAS].clone()
    for _ in range(rounds):
        payloads = [
            trained(engine, counts).payloads
            for (_, engine), counts in zip(everyone, COUNTS, strict=True)
        ]
        for tier, (_, engine) in enumerate(everyone):
            engine.apply(
                votes(schema, [{k: v for k, v in own.items() if k >= tier} for own in payloads]),
                RATE,
            )
        expected -= RATE * signs
    for params, _ in everyone:
        assert torch.equal(params[BIAS], expected)


@pytest.mark.usefixtures("by")
def test_sparseloco_moves_balance_by_the_mean_step() -> None:
    schema = build_schema(V3, 1, INNER)
    everyone = [member(schema) for _ in COUNTS]
    signs = torch.tensor([[(8 * c > sum(own)) - (8 * c < sum(own)) for c in own] for own in COUNTS])
    payloads = [
        trained(engine, counts).payloads
        for (_, engine), counts in zip(everyone, COUNTS, strict=True)
    ]
    before = everyone[0][0][BIAS].clone()
    for _, engine in everyone:
        engine.apply(votes(schema, payloads), RATE)
    counts = signs.ne(0).sum(0).clamp(min=1)  # unchanged values are not sent or counted
    torch.testing.assert_close(everyone[0][0][BIAS], before - RATE * signs.sum(0) / counts)
    assert all(torch.equal(params[BIAS], everyone[0][0][BIAS]) for params, _ in everyone)


def test_muon_inner_steps_move_balance_at_the_vector_rate() -> None:
    schema = build_schema(V3, 1, MUON)
    params, engine = member(schema)
    before = params[BIAS].clone()
    engine.apply(votes(schema, [trained(engine, COUNTS[0]).payloads]), RATE)
    distance = 2 * 0.1 * RATE  # inner steps, each at a tenth of the rate of matrices
    torch.testing.assert_close(
        (before - params[BIAS]).abs(), torch.tensor([distance] * 4 + [0.0] * 4), rtol=0.5, atol=0
    )


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("kind", ALL)
def test_balance_without_load_error_is_unchanged(kind: str) -> None:
    schema = build_schema(V3, 2, ALL[kind])
    params, engine = member(schema)
    before = {name: tensor.clone() for name, tensor in params.items()}
    for counts in ([5] * 8, [0] * 8):
        engine.apply(votes(schema, [trained(engine, counts).payloads]), RATE)
        engine.apply({}, RATE)
    assert {name for name, tensor in params.items() if torch.equal(tensor, before[name])} == {BIAS}


@pytest.mark.parametrize("kind", ALL)
def test_expert_counts_do_not_affect_clip_metrics_or_state(kind: str) -> None:
    schema = build_schema(V3, 2, ALL[kind])
    ends = []
    figures = []
    states = []
    for counts in (COUNTS[0], [1_000_000, *COUNTS[1][1:]]):
        params, engine = member(schema)
        result = trained(engine, counts, size=1.0, measured=True)
        states.append(engine.state_tensors())
        engine.apply(votes(schema, [result.payloads]), RATE)
        ends.append({name: tensor for name, tensor in params.items() if name != BIAS})
        figures.append(result.measured)
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
    assert figures[0] == figures[1]
    assert not any(name.endswith(BIAS) for name in states[0])
    assert states[0].keys() == engine.sizes().keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [pytest.param(DISTRO, id="distro"), pytest.param(INNER, id="inner")]
)
def test_balancing_evens_out_expert_load(settings: Optimizer) -> None:
    """Two members of two tiers start with a bias in favour of two experts."""
    schema = build_schema(V3, 2, settings)
    rate = 0.004
    uneven = []
    for even in (True, False):
        nets = []
        for tier in (0, 1):
            params = init_weights(CONFIG, 1, tier)
            params[BIAS] = torch.tensor([0.06, 0.06] + [0.0] * 6)
            nets.append(CONFIG.build(tier, params))
        engines = [
            Engine(schema, tier, dict(net.named_parameters())) for tier, net in enumerate(nets)
        ]
        most = []
        for number in range(12):
            loads = torch.zeros(8)
            payloads = []
            for who, (net, engine) in enumerate(zip(nets, engines, strict=True)):

                def backward(
                    part: Tensor, net: LanguageModel = net, loads: Tensor = loads
                ) -> float:
                    loss = net.loss(part)
                    loss.backward()
                    counts = net.get_parameter(BIAS).grad
                    assert counts is not None
                    loads.add_(counts)
                    return loss.item()

                draws = torch.Generator().manual_seed(100 * number + who)
                payloads.append(
                    engine.train(
                        torch.randint(48, (8, 17), generator=draws), backward, rate, 0.0
                    ).payloads
                )
            most.append(float(loads.max() / loads.mean()))
            for tier, (net, engine) in enumerate(zip(nets, engines, strict=True)):
                bias = net.get_parameter(BIAS).detach()
                before = bias.clone()
                engine.apply(
                    votes(
                        schema, [{k: v for k, v in own.items() if k >= tier} for own in payloads]
                    ),
                    rate,
                )
                if not even:
                    bias.copy_(before)
        assert torch.equal(nets[0].get_parameter(BIAS), nets[1].get_parameter(BIAS))
        uneven.append(sum(most[6:]) / 6)
    assert uneven[0] < 1.6 < 2.5 < uneven[1]
