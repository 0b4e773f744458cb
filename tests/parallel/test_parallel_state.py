"""Test that sharded residuals give the results of one rank."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from aftermath.kernels.runtime import unavailable_reason
from aftermath.model.architectures import config_of
from aftermath.optim.blocks import Blocks
from aftermath.optim.interfaces import BadState
from aftermath.optim.layout import level_layout
from aftermath.optim.schema import build_schema
from aftermath.optim.state_checks import state_sizes
from aftermath.optim.state_merkle import block_of, outline, tree_of
from aftermath.parallel.feedback_split import split_blocks
from aftermath.parallel.group import Ranks
from aftermath.parallel.multi_device_replica import MultiDeviceReplica
from aftermath.parallel.sharded_feedback import ShardedFeedback
from aftermath.replica import state_sharing
from parallel.rank_processes import (
    FLOATS,
    MODELS,
    RATE,
    SETTINGS,
    SIGNS,
    SPARSE,
    WIDE,
    bits,
    replica_pair,
    same_results,
    sharded_inner,
    share,
    train_both,
    train_share,
)
from replica.simulated_gpu import gpu_at_hand, without_gpu

pytestmark = pytest.mark.skipif(
    unavailable_reason() is not None, reason="torch's transforms round otherwise in other batches"
)


@pytest.mark.slow
def test_sharded_payload_and_state_equal_one_rank(ranks: Ranks) -> None:
    same_results(ranks, "uneven", 1, "signs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tier", "kind"),
    [("llama", 0, "floats"), ("nanogpt", 2, "sparse"), ("deepseek", 0, "digits")],
)
def test_sharded_payloads_of_other_formats_equal_one_rank(
    ranks: Ranks, model: str, tier: int, kind: str
) -> None:
    same_results(ranks, model, tier, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["signs", "digits"])
def test_copied_state_of_all_ranks_has_blocks_of_one_rank(
    ranks: Ranks, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "wide", WIDE)
    alone, led = replica_pair(ranks, "wide", 0, 1, SETTINGS[kind])
    for replica in (alone, led):
        train_share(replica, 0)
    tree = led.optimizer.tree()
    assert tree.root == alone.optimizer.tree().root
    copied_state = state_sharing.copy_state(led.optimizer, tree, states=1)
    state = alone.optimizer.state()
    assert copied_state.outline == outline({name: tensor.nbytes for name, tensor in state.items()})
    assert copied_state.outline.count == len(tree) > len(state)
    for place in map(copied_state.outline.place, range(copied_state.outline.count)):
        assert copied_state.read(place) == block_of(state, place)


@pytest.mark.slow
def test_gpu_shard_state_equals_cpu_state(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses Muon, whose operations are the same on a GPU. Fused AdamW differs."""
    settings = replace(SPARSE, inner_optimizer="muon")
    alone, _ = replica_pair(ranks, "llama", 0, 1, settings)
    with gpu_at_hand() as gpu:
        monkeypatch.setattr(ranks, "device", gpu)  # the first rank's state is on the GPU
        _, led = replica_pair(ranks, "llama", 0, 1, settings)
        for replica in (alone, led):  # passes run on the CPU
            monkeypatch.setattr(replica, "_backward", without_gpu(replica._backward))
        for number in range(2):
            assert train_share(led, number).payloads == train_share(alone, number).payloads
        assert isinstance(led.optimizer._result, ShardedFeedback)
        tensors = led.optimizer._result._feedback.state_tensors().values()
        assert {tensor.device for tensor in tensors} == {gpu}
        of_moments = sharded_inner(led).moments()
        assert {tensor.device for tensor in of_moments.values() if tensor.dim()} == {gpu}
        tree = led.optimizer.tree()
        state = led.optimizer.state()
        assert tree.root == alone.optimizer.tree().root == tree_of(state).root
        led.optimizer.restore(state)
        assert train_share(led, 2, measured=True).payloads == train_share(alone, 2).payloads


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["signs", "digits"])
def test_thread_reads_state_while_ranks_train(ranks: Ranks, kind: str) -> None:
    """The read leaves the share's result unchanged."""
    alone, led = replica_pair(ranks, "llama", 0, 1, SETTINGS[kind])
    train_both(alone, led, 4, 0)
    state = bits(alone.optimizer.state())
    copies = list[dict[str, bytes]]()

    class Reading(threading.Event):
        """Reads the state in another thread when the share first asks whether it is cancelled."""

        def is_set(self) -> bool:
            if not copies:
                reader = threading.Thread(target=lambda: copies.append(bits(led.optimizer.state())))
                reader.start()
                reader.join(30)
            return False

    results = [
        alone.train(share(8), RATE, RATE, threading.Event()),
        led.train(share(8), RATE, RATE, Reading()),
    ]
    assert copies == [state]
    assert results[0].payloads == results[1].payloads


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["signs", "digits"])
def test_state_moves_from_ranks_to_one_and_back(ranks: Ranks, kind: str) -> None:
    alone, led = replica_pair(ranks, "llama", 2, 1, SETTINGS[kind])
    train_share(led, 0)
    alone.optimizer.restore(led.optimizer.state())
    assert train_share(alone, 1).payloads == train_share(led, 1).payloads
    train_share(alone, 2)
    led.optimizer.restore(alone.optimizer.state())
    assert train_share(alone, 3).payloads == train_share(led, 3).payloads
    for replica in (alone, led):
        replica.optimizer.reset()
    assert bits(led.optimizer.state()) == bits(alone.optimizer.state())
    assert train_share(alone, 4).payloads == train_share(led, 4).payloads


@pytest.mark.slow
def test_misshapen_state_changes_nothing(ranks: Ranks) -> None:
    _, led = replica_pair(ranks, "llama", 1, 1, SIGNS)
    train_share(led, 0)
    before = led.optimizer.state()
    for name, tensor in before.items():
        wrong = tensor.clone()
        wrong.view(-1)[-1] = (
            torch.iinfo(torch.int64).max if tensor.dtype == torch.int64 else torch.nan
        )
        with pytest.raises(BadState):
            led.optimizer.restore(before | {name: wrong})
    assert bits(led.optimizer.state()) == bits(before)


@pytest.mark.slow
def test_refused_gradient_changes_nothing(ranks: Ranks) -> None:
    _, led = replica_pair(ranks, "llama", 1, 1, FLOATS)
    train_share(led, 0)
    before = led.optimizer.state()

    def backward(part: Tensor) -> float:
        for tensor in led.params.values():
            tensor.grad = torch.full_like(tensor, torch.inf)
        return 1.0

    with pytest.raises(Exception, match="is not finite"):
        led.optimizer.train(share(1), backward, RATE, RATE)
    assert bits(led.optimizer.state()) == bits(before)


@pytest.mark.slow
def test_ranks_hold_only_last_replicas_state(ranks: Ranks) -> None:
    _, first = replica_pair(ranks, "llama", 0, 1, SIGNS)
    train_share(first, 0)
    alone, led = replica_pair(ranks, "llama", 0, 1, SIGNS)
    with pytest.raises(RuntimeError, match="the state of another replica"):
        first.optimizer.tree()
    assert train_share(led, 0).payloads == train_share(alone, 0).payloads


@pytest.mark.slow
def test_rank_holds_only_its_share_of_state(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "wide", WIDE)
    alone, led = replica_pair(ranks, "wide", 0, 1, SIGNS)
    for replica in (alone, led):
        train_share(replica, 0)
    assert isinstance(led, MultiDeviceReplica)
    feedback = led.optimizer._result
    assert isinstance(feedback, ShardedFeedback)
    whole = sum(alone.optimizer.sizes().values())
    first = sum(tensor.nbytes for tensor in feedback._feedback.state_tensors().values())
    assert first * ranks.size == pytest.approx(whole, rel=0.05)


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("model", ["qwen3", "uneven", "named nanogpt", "narrow deepseek"])
def test_state_blocks_are_assigned_once_and_evenly(model: str, kind: str) -> None:
    schema = build_schema(config_of(MODELS[model]).to_hf(), 3, SETTINGS[kind])
    for tier, count in itertools.product(range(3), (1, 3, 64)):
        parts = split_blocks(schema.results, tier, count)
        layouts = {
            level: level_layout(schema.results, level)
            for level in range(tier, schema.results.levels)
        }
        for level, layout in layouts.items():
            for group, of in enumerate(layout.groups):
                rows = [own for each in parts if (own := each.rows.get((level, group))) is not None]
                ends = list(itertools.accumulate((own.count for own in rows), initial=0))
                assert [own.first for own in rows] == ends[:-1]
                assert ends[-1] == of.blocks
        sizes = [
            sum(
                state_sizes(
                    {n: each.layout(n) for n in layouts if each.results.of_level(n)}
                ).values()
            )
            for each in parts
        ]
        assert sum(sizes) == sum(state_sizes(layouts).values())
        rows_of_blocks = (_row(part.blocks) for layout in layouts.values() for part in layout.parts)
        assert max(sizes) - sum(sizes) / count <= max(rows_of_blocks), "but for a row of blocks"


def _row(blocks: Blocks) -> int:
    """Return the bytes of the state of a row of a segment's blocks."""
    return blocks.count // blocks.grid[0] * (4 * blocks.size + 12 * blocks.topk)
