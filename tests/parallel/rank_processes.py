"""Rank processes (the test is rank 0), and pairs of replicas trained by several ranks and by
one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfig
from aftermath.model.initial_weights import init_weights
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Trained
from aftermath.optim.inner_steps import InnerSteps
from aftermath.optim.schema import build_schema
from aftermath.optim.state_merkle import tree_of
from aftermath.parallel.group import Ranks
from aftermath.parallel.launch import RankProcesses, launch_ranks
from aftermath.parallel.mesh import Mesh
from aftermath.parallel.multi_device_replica import MultiDeviceReplica
from aftermath.parallel.sharded import ShardedModel
from aftermath.parallel.sharded_inner import ShardedInner
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import Optimizer
from aftermath.rules.sparseloco import SparseLoCo

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,  # each tensor of a layer needs at least one message between ranks
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
}
NANOGPT: dict[str, Any] = {
    "model_type": "nanogpt",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
}
WHOLE = NANOGPT | {
    "relu_squared": False,
    "value_embeddings": 2,
    "x0_residual": True,
    "unet_skips": True,
    "head_dim": 6,
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": True},
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "named": LLAMA
    | {
        "num_hidden_layers": 3,
        "matformer_tiers": [{"layers": [0, 2]}, {"layers": [2], "intermediate_size": 24}],
    },
    "uneven": LLAMA
    | {"matformer_tiers": [{"intermediate_size": [64, 31]}, {"num_key_value_heads": 1}]},
    "nanogpt": NANOGPT,
    "skipping nanogpt": NANOGPT | {"unet_skips": True},
    "whole nanogpt": WHOLE,
    "named nanogpt": WHOLE
    | {
        "matformer_tiers": [
            {"layers": [1, 2, 3], "num_key_value_heads": [4, 2, 2]},
            {"layers": [1], "num_key_value_heads": 2},
        ]
    },
    "deepseek": DEEPSEEK,
    "deepseek v2": DEEPSEEK
    | {
        "model_type": "deepseek_v2",
        "q_lora_rank": None,
        "topk_method": "group_limited_greedy",
        "n_shared_experts": 3,
    },
    "narrow deepseek": DEEPSEEK
    | {"matformer_tiers": [{"moe_intermediate_size": 9}, {"layers": [0]}]},
    "named deepseek": DEEPSEEK
    | {
        "matformer_tiers": [{"moe_intermediate_size": 10, "intermediate_size": 20}, {"layers": [1]}]
    },
}
CUT = ["llama", "qwen2", "qwen3", "named", "nanogpt", "whole nanogpt", "named nanogpt"]
CUT += ["deepseek", "deepseek v2", "named deepseek"]
"""Models whose layers can be split over two ranks in every tier."""
WIDE = LLAMA | {
    "vocab_size": 1000,
    "hidden_size": 96,
    "intermediate_size": 252,
    "num_hidden_layers": 2,
}
DISTRO = Distro(
    topk=8, topk_embeddings=8, chunk=16, quantize_1bit=False, decay=0.99, weight_decay=0.1, clip=1.0
)
RATE = 1e-2
SIGNS = Distro(
    topk=5, topk_embeddings=9, chunk=16, quantize_1bit=True, decay=0.99, weight_decay=0.1, clip=1.0
)
FLOATS = Distro(
    topk=3, topk_embeddings=3, chunk=11, quantize_1bit=False, decay=0.9, weight_decay=0.0, clip=None
)
SPARSE = SparseLoCo(inner_steps=2, chunk=16, topk=16, topk_embeddings=16)
DIGITS = SparseLoCo(
    inner_steps=2, inner_optimizer="muon", chunk=16, topk=256, topk_embeddings=200, bits=1
)
SETTINGS: dict[str, Optimizer] = {
    "signs": SIGNS,
    "floats": FLOATS,
    "sparse": SPARSE,
    "digits": DIGITS,
}
TWO = (2, 1)
"""Data and tensor parallelism of two ranks that share the micro-batches."""
FOUR = (4, 1)
PAIR = (1, 2)
"""Two ranks that split the layers."""
SQUARE = (2, 2)


@contextmanager
def ranks_on_cpu(data: int, tensor: int = 1) -> Iterator[tuple[RankProcesses, Ranks]]:
    """Yield `data` * `tensor` ranks, with one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with launch_ranks(Mesh((torch.device("cpu"),) * (data * tensor), data, tensor), 1) as processes:
        try:
            yield processes, processes.join()
        finally:
            dist.destroy_process_group()
            torch.set_num_threads(before)


class RankPool:
    """Runs the ranks of one shape at a time. Starts new ones when a rank has ended and when the
    shape changes.
    """

    _processes: RankProcesses
    _ranks: Ranks

    def __init__(self) -> None:
        self._until_close = ExitStack()
        self._shape: tuple[int, int] | None = None

    def running(self, data: int, tensor: int) -> tuple[RankProcesses, Ranks]:
        """Return the processes of these ranks and the first rank, which is this process."""
        if self._shape != (data, tensor) or self._processes.lost() is not None:
            self.close()
            self._processes, self._ranks = self._until_close.enter_context(
                ranks_on_cpu(data, tensor)
            )
            self._shape = (data, tensor)
        return self._processes, self._ranks

    def close(self) -> None:
        self._shape = None
        self._until_close.close()


def share(count: int, round_: int = 0) -> Tensor:
    draws = torch.Generator().manual_seed(round_)
    return torch.randint(64, (count, 16), generator=draws)


def any_weights(config: ModelConfig, tier: int) -> dict[str, Tensor]:
    """Return weights as of a trained network. Unlike initial scalars, norms and biases, none of
    them is 0 or 1.
    """
    draws = torch.Generator().manual_seed(1)
    initial = init_weights(config, 0, tier)
    return {
        name: initial[name] + torch.randn(initial[name].shape, generator=draws) / 4
        for name in sorted(initial)
    }


def replica_pair(
    ranks: Ranks,
    model: str,
    tier: int,
    micro: int,
    settings: Optimizer = DISTRO,
    *,
    recompute: bool = False,
) -> tuple[Replica, MultiDeviceReplica]:
    """Return a replica trained by this process on its device, and an equal one trained by all
    ranks, in host memory.
    """
    config = config_of(MODELS[model])
    schema = build_schema(config.to_hf(), 3, settings)
    size = PassSize(micro, "on" if recompute else "auto")
    options: dict[str, Any] = {"pass_size": size, "stopwatch": lambda: 0.0}
    weights = any_weights(config, tier)
    alone = Replica(
        schema,
        config,
        tier,
        {n: t.clone() for n, t in weights.items()},
        device=ranks.device,
        **options,
    )
    network = ranks.build(ShardedModel, config.to_hf(), tier)
    return alone, MultiDeviceReplica(
        network, schema, config, tier, weights, device=torch.device("cpu"), **options
    )


def parameter_counts(ranks: Ranks, model: str, tier: int) -> tuple[int, int]:
    """Return the number of parameters of a tier, and of those on the first rank."""
    config = config_of(MODELS[model])
    whole = sum(torch.Size(shape).numel() for shape in config.parameter_shapes(tier).values())
    return whole, ranks.build(ShardedModel, config.to_hf(), tier).parameter_count


def gradients(replica: Replica, sequences: Tensor) -> tuple[float, dict[str, Tensor]]:
    loss = float(replica._backward(replica.passes, sequences, threading.Event()))
    gradients = {
        name: parameter.grad
        for name, parameter in replica.params.items()
        if parameter.grad is not None
    }
    replica.model.zero_grad(set_to_none=True)
    return loss, gradients


def apply(replica: Replica, payloads: dict[int, bytes]) -> None:
    replica.apply(
        {level: [decode_level(p, replica.schema.results, level)] for level, p in payloads.items()},
        RATE,
    )


def bits(state: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in state.items()}


def sharded_inner(led: Replica) -> ShardedInner:
    """Return the inner optimizer of a replica whose ranks hold its moments."""
    step = led.optimizer._step
    assert isinstance(step, InnerSteps)
    assert isinstance(step._inner, ShardedInner)
    return step._inner


def train_both(alone: Replica, led: Replica, count: int, number: int) -> Trained:
    """Train one share on both replicas, assert equal payloads and loss, and return the result."""
    one, other = (train_share(replica, number, count=count) for replica in (alone, led))
    assert one.payloads == other.payloads
    assert one.loss == other.loss
    return one


def inner_settings(inner: Any, **changed: Any) -> SparseLoCo:
    return SparseLoCo(
        inner_steps=3,
        inner_optimizer=inner,
        chunk=16,
        topk=16,
        clip=1.0,
        weight_decay=0.1,
        **changed,
    )


def same_gradients(ranks: Ranks, model: str, tier: int) -> None:
    """Compare shares that leave all ranks but one idle at the end, or are smaller than a
    micro-batch.
    """
    alone, led = replica_pair(ranks, model, tier, 2)
    for count in (2 * ranks.size + 1, 1):
        (loss, expected), (found_loss, led_gradients) = (
            gradients(replica, share(count)) for replica in (alone, led)
        )
        assert found_loss == loss
        assert led_gradients.keys() == expected.keys() == dict(alone.params).keys()
        for name, gradient in expected.items():
            assert torch.equal(led_gradients[name], gradient), name


def close_gradients(ranks: Ranks, model: str, tier: int) -> None:
    """Compare gradients of tensor-parallel ranks, which round differently."""
    alone, led = replica_pair(ranks, model, tier, 2)
    (loss, expected), (found_loss, led_gradients) = (
        gradients(replica, share(7)) for replica in (alone, led)
    )
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert led_gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(led_gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
        if name.endswith(
            "e_score_correction_bias"
        ):  # how often each expert was chosen; every token counts once
            assert torch.equal(led_gradients[name], gradient)
            assert int(gradient.sum()) == 2 * 7 * 15
        assert bool(led_gradients[name].any()) or name.endswith("bias")


def same_inner_rounds(ranks: Ranks, model: str, tier: int, inner: str, rounds: int = 2) -> None:
    """Compare payloads, moments and weights of rounds with inner steps."""
    alone, led = replica_pair(ranks, model, tier, 1, inner_settings(inner))
    for number in range(rounds):
        trained = train_both(alone, led, 5, number)
        assert bits(alone.optimizer.state()) == bits(led.optimizer.state())
        assert (
            alone.optimizer.tree().root
            == led.optimizer.tree().root
            == tree_of(led.optimizer.state_tensors()).root
        )
        for replica in (alone, led):
            apply(replica, trained.payloads)
        assert alone.hashes() == led.hashes()


def same_results(ranks: Ranks, model: str, tier: int, kind: str, rounds: int = 2) -> None:
    """Compare payloads, their figures and the private state of each round."""
    alone, led = replica_pair(ranks, model, tier, 1, SETTINGS[kind])
    for number in range(rounds):
        one, other = (train_share(replica, number, measured=True) for replica in (alone, led))
        assert one.payloads == other.payloads
        assert bits(alone.optimizer.state()) == bits(led.optimizer.state())
        assert (
            alone.optimizer.tree().root
            == led.optimizer.tree().root
            == tree_of(alone.optimizer.state_tensors()).root
        )
        assert one.measured is not None
        assert other.measured is not None
        for level, figures in one.measured.items():
            assert vars(other.measured[level]) == pytest.approx(vars(figures), rel=1e-4)
        for replica in (alone, led):
            apply(replica, one.payloads)
    assert alone.hashes() == led.hashes()


def train_share(replica: Replica, number: int, measured: bool = False, count: int = 4) -> Trained:
    """Train one share."""
    return replica.train(
        share(count, number), RATE, RATE, threading.Event(), measured, travelling=number > 0
    )
