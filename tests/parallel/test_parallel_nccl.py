"""Test two ranks over NCCL. Needs a GPU (`make gpu-check`); with one, both ranks use it.

NCCL refuses two ranks on one GPU of one host. So these two claim to be on two hosts (NCCL_HOSTID).
NCCL then uses sockets, where ranks on GPUs of one machine would copy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from aftermath.parallel.group import Ranks
from aftermath.parallel.launch import launch_ranks
from aftermath.parallel.mesh import Mesh
from aftermath.replica.exactness import exact_device
from aftermath.rules.sparseloco import SparseLoCo
from parallel.rank_processes import DISTRO, RATE, RankPool, apply, gradients, replica_pair, share

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device here"
)
SETTINGS = {
    "distro": DISTRO,
    "adamw": SparseLoCo(inner_steps=3, chunk=16, topk=16),
    "muon": SparseLoCo(inner_steps=3, inner_optimizer="muon", chunk=16, topk=16),
}


@contextmanager
def ranks_on_gpus(data: int, tensor: int) -> Iterator[Ranks]:
    """Start two ranks on GPUs."""
    gpus = tuple(torch.device("cuda", number % torch.cuda.device_count()) for number in range(2))
    exact_device("cuda:0")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("NCCL_HOSTID", "second")
        with launch_ranks(Mesh(gpus, data, tensor), 1) as processes:
            environment.setenv("NCCL_HOSTID", "first")
            ranks = processes.join()
            try:
                yield ranks
            finally:
                dist.destroy_process_group()


@pytest.fixture(scope="module", params=[(2, 1), (1, 2)], ids=["data", "tensor"])
def ranks(request: pytest.FixtureRequest, rank_pool: RankPool) -> Iterator[Ranks]:
    rank_pool.close()
    with ranks_on_gpus(*request.param) as group:
        yield group


@pytest.mark.parametrize("model", ["llama", "qwen3", "whole nanogpt", "deepseek"])
def test_nccl_gradient_and_loss_equal_one_gpu(ranks: Ranks, model: str) -> None:
    alone, led = replica_pair(ranks, model, 1, 2)
    for count in (8, 9, 1):
        (loss, expected), (found_loss, led_gradients) = (
            gradients(replica, share(count)) for replica in (alone, led)
        )
        assert found_loss == pytest.approx(loss, rel=1e-5)
        assert led_gradients.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(
                led_gradients[name], gradient.cpu(), rtol=1e-3, atol=1e-5, msg=name
            )


@pytest.mark.parametrize("name", SETTINGS)
def test_gpu_applies_results_of_ranks_bit_for_bit(ranks: Ranks, name: str) -> None:
    alone, led = replica_pair(ranks, "llama", 1, 2, SETTINGS[name])
    before = led.hashes()
    for number in range(3):
        one, led_result = (
            replica.train(share(7, number), RATE, RATE, threading.Event(), travelling=number > 0)
            for replica in (alone, led)
        )
        # inner steps amplify rounding differences
        assert led_result.loss == pytest.approx(one.loss, rel=0.02)
        for replica in (alone, led):
            apply(replica, led_result.payloads)
        assert alone.hashes() == led.hashes()
    assert led.hashes() != before
