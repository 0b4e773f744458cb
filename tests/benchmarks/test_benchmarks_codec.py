"""Test that the reference DeMo keeps and applies the same coefficients as DisTrO."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import combinations

import pytest
import torch

from aftermath.model.levels import Segment
from aftermath.optim.blocks import Blocks
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Engine
from aftermath.optim.error_feedback import ErrorFeedback
from aftermath.optim.result_format import ResultFormat, Transform, Values
from aftermath.optim.schema import build_schema
from aftermath.rules.distro import Distro
from benchmarks.test_benchmarks_worth import module

distro = module("distro")
codec = module("codec")
SMALL = distro.MODEL | {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 2}


def test_reference_learns_like_distro() -> None:
    settings = Distro(
        topk=8,
        topk_embeddings=8,
        chunk=64,
        quantize_1bit=False,
        decay=distro.DECAY,
        weight_decay=0.0,
        clip=None,
    )
    schema = build_schema(SMALL, 1, settings)
    start = distro.noise(schema, 0)
    ours = {name: tensor.clone() for name, tensor in start.items()}
    demos = [codec.Demo({name: tensor.clone() for name, tensor in start.items()}) for _ in range(2)]
    senders = [ErrorFeedback(schema.results, 0, start, distro.DECAY) for _ in range(2)]
    engine = Engine(schema, 0, ours)
    for step in range(3):
        grads = [distro.noise(schema, 10 * step + peer) for peer in range(2)]
        results = [demo.encode(each) for demo, each in zip(demos, grads, strict=True)]
        payloads = [
            distro.encoded(sender, each) for sender, each in zip(senders, grads, strict=True)
        ]
        votes = [decode_level(data[0], schema.results, 0) for data in payloads]
        demos[0].apply(results)
        engine.apply({0: votes}, distro.LR)
    for name, tensor in ours.items():
        same = (tensor == demos[0].params[name]).float().mean()
        assert same > 0.999, name  # a sum within rounding of zero may have another sign
    changed = sum(int((ours[name] != start[name]).sum()) for name in ours)
    assert changed > 10_000


def test_codec_bytes_are_near_their_bound_and_below_demo() -> None:
    one, two = (codec.bytes_of(partial(codec.loco, SMALL, bits=bits)) for bits in (1, 2))
    assert one["8"]["bytes"] < 96 / 6.5
    assert one["8"]["bytes"] < one["32"]["bytes"] < one["64"]["bytes"] < two["64"]["bytes"]
    signs = codec.bytes_of(partial(codec.signs, SMALL))
    for sizes in (one, two, signs):
        for size in sizes.values():
            assert size["bound"] < size["bytes"] < 1.15 * size["bound"]


def test_codec_bound_counts_all_possible_block_messages() -> None:
    sets = [some for size in (1, 2) for some in combinations(range(5), size)]
    # zero, or one of 3 exponents and a sign for each
    messages = 1 + sum(3 * 2 ** len(some) for some in sets)
    assert codec.log2_messages(5, 2, 2, 3) == math.log2(messages)


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "clock"), [(1, time.process_time), (2, time.perf_counter)])
def test_two_thread_figures_use_wall_clock(
    monkeypatch: pytest.MonkeyPatch, threads: int, clock: Callable[[], float]
) -> None:
    """Test that two threads are timed by the wall clock. CPU time would count both threads, but not
    the time that one waits for the other.
    """
    settings = set[tuple[int, object]]()

    def best(*actions: Callable[[], object], **kwargs: object) -> list[float]:
        settings.add((torch.get_num_threads(), kwargs["clock"]))
        return list(distro.best(*actions, repeats=1))

    before = torch.get_num_threads()
    monkeypatch.setattr(codec, "best", best)
    monkeypatch.setattr(codec, "MODEL", SMALL)
    monkeypatch.setattr(codec, "the_schema", lambda: codec.signs(SMALL, 8))
    try:
        speeds = codec.speeds(threads, codec.loco(SMALL, 32))
    finally:
        torch.set_num_threads(before)
    assert settings == {(threads, clock)}
    kinds = {"distro", "sparseloco", "all_numbers", "all_numbers_muon"}
    assert kinds | {"aggregate32_seconds"} == speeds.keys()
    assert (
        speeds["distro"].keys()
        == speeds["sparseloco"].keys()
        >= {"encode_over_demo", "apply16_over_demo"}
    )


@pytest.mark.parametrize("values", [Values.SIGN, Values.ONE_BIT, Values.TWO_BIT])
def test_result_bytes_are_near_minimum(values: Values) -> None:
    """At most 20 % above the minimum for any count, for blocks of 4,096 values and of 52 x 64."""
    for edges in ((64, 64), (52, 64)):
        square = partial(Blocks, Segment("square", 0, None, 0, edges[0], edges), edges)
        size = edges[0] * edges[1]
        for topk in {
            3,
            4,
            8,
            16,
            32,
            64,
            100,
            128,
            256,
            512,
            1024,
            2046,
            2047,
            2048,
            *range(2100, size, 600),
            size,
        }:
            results = ResultFormat((square(min(topk, size)),) * 8, 1, Transform.NONE, values)
            over = results.payload_bytes(0) / codec.least_bytes(results)
            assert 1 <= over < 1.19, (edges, topk, over)
