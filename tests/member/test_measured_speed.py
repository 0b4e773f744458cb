"""Measuring a machine's speed takes a bounded time on slow machines too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aftermath.member import measured_speed
from aftermath.member.measured_speed import expected_share, measured_weight
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.replica.origin import Origin
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.rules.state import RunState
from aftermath.sim.setup import CONFIG
from aftermath.sim.virtual_time import InlineWorker, run_virtual
from member.result_inbox import SCHEMA, ResultInbox
from rules import builders

MICRO = 8
SEQ_LEN = 2048
CLOCK = {"now": 0.0}
LONG = LlamaConfig.from_hf(CONFIG.to_hf() | {"max_position_embeddings": SEQ_LEN})


def origin(micro: int = MICRO, config: LlamaConfig = LONG) -> Origin:
    schema = replace(SCHEMA, state=replace(SCHEMA.state, config=config))
    return Origin(
        schema, 0, "auto", torch.device("cpu"), PassSize(micro, "off"), lambda: CLOCK["now"]
    )


def machine(seconds_per_token: float) -> tuple[Replica, list[tuple[int, ...]]]:
    """Return a replica on a machine of this speed, and the shapes that it trains on."""
    model_origin = origin()
    replica = model_origin.stand_in()
    passes: list[tuple[int, ...]] = []

    def work(_: object, inputs: tuple[torch.Tensor, object]) -> None:
        rows, length = inputs[0].shape
        passes.append((rows, length + 1))  # the last token is only a target
        CLOCK["now"] += rows * (length + 1) * seconds_per_token

    replica.model.get_submodule("model").register_forward_pre_hook(work)
    return replica, passes


@pytest.mark.parametrize(
    "seconds_per_token", [pytest.param(1e-5, marks=pytest.mark.slow), 1e-3, 0.02, 0.05]
)
def test_measuring_ends_in_time_on_fast_and_slow_machines(seconds_per_token: float) -> None:
    """A micro-batch takes from 0.2 seconds to 14 minutes on these machines."""
    replica, passes = machine(seconds_per_token)
    began = CLOCK["now"]
    weight = replica.measure_weight(SEQ_LEN, 8.0)
    assert CLOCK["now"] - began <= 8.0
    assert weight == max(1, round(60 / (seconds_per_token * SEQ_LEN)))
    assert passes[0] == (1, 32)
    assert (passes[-2:] == [(MICRO, SEQ_LEN)] * 2) is (seconds_per_token < 1e-4)


def test_slow_first_pass_is_measured_again() -> None:
    replica, passes = machine(1.0)
    assert replica.measure_weight(SEQ_LEN, 8.0) == 1
    assert passes == [(1, 32), (1, 32)]


@pytest.mark.parametrize(("micro", "seq_len"), [(1, 16), (3, 16), (4, 100)])
def test_measured_pass_equals_micro_batch_of_run(micro: int, seq_len: int) -> None:
    model_origin = origin(micro, LONG)
    replica = model_origin.stand_in()
    shapes: list[torch.Size] = []
    replica.model.get_submodule("model").register_forward_pre_hook(
        lambda _, inputs: shapes.append(inputs[0].shape)
    )
    assert replica.measure_weight(seq_len, 8.0) == 65535  # the clock stands still
    assert [tuple(shape) for shape in shapes[-2:]] == [(micro, seq_len - 1)] * 2
    assert all(parameter.grad is None for parameter in replica.params.values())


def test_stand_in_weights_have_right_shapes_and_train() -> None:
    model_origin = origin()
    weights = model_origin._weights_like_new()
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == LONG.parameter_shapes(
        0
    )
    assert model_origin.schema.state.parameters() == sum(
        tensor.numel() for tensor in weights.values()
    )
    assert torch.isfinite(model_origin.replica(weights).model.loss(torch.arange(64).view(1, 64)))


@pytest.mark.parametrize(
    ("seconds", "weight", "took"),
    [
        (9.0, 65535, 18.0),
        (11.0, 1, 11 + measured_speed.PATIENCE),
        (900.0, 1, measured_speed.BUILD_SECONDS),
    ],
)
def test_slow_measurement_is_reported_and_abandoned(
    seconds: float, weight: int, took: float
) -> None:
    """Something slows the measurement down. After ten seconds, the member continues without it.

    Building the measured model takes as long, but has a longer limit.
    """

    async def measure() -> tuple[int, list[dict[str, object]]]:
        inbox = ResultInbox()
        compute = InlineWorker(seconds)
        return await measured_weight(
            inbox.ports, inbox.role, compute, origin(), SEQ_LEN
        ), inbox.events

    result, events = run_virtual(measure())
    assert result == weight
    assert [event["kind"] for event in events if event["kind"] != "warning"] == [
        "measuring",
        "measured",
    ]
    assert (events[0]["tier"], events[0]["parameters"]) == (0, origin().schema.state.parameters())
    assert events[0]["limit"] == measured_speed.PATIENCE == 10
    assert events[-1]["seconds"] == took
    assert any(
        "so it declares 1 sequence a minute" in str(event.get("message")) for event in events
    ) is (weight == 1)


@pytest.mark.parametrize(
    ("weight", "least", "share", "share_time"),
    [
        (
            60,
            2,
            48,
            "48 sequences and take 48 s",
        ),  # the two present members are equally fast, and the absent ones are assumed to be
        (60, 0, 32, "32 sequences and take 32 s"),
        (60, 8, 12, ""),
        (1, 8, 1, "1 sequence and take 60 s or more"),  # the smallest share
    ],
)
def test_too_slow_machine_is_warned_before_join(
    monkeypatch: pytest.MonkeyPatch, weight: int, least: int, share: int, share_time: str
) -> None:
    count = 2 if least != 2 else 1
    seats = {
        seat: builders.seat(seat, p2p=bytes([seat]) * 32, declared=60, weight=1)
        for seat in range(count)
    }
    rules = builders.config(
        max_round_train_time=20,
        global_batch_size_start=96,
        global_batch_size_end=96,
        init_min_clients=least,
    )
    view = builders.view(builders.run(RunState.WARMUP, config=rules), builders.members(seats))
    assert expected_share(view, b"x" * 32, weight) == share

    async def measure() -> list[dict[str, object]]:
        inbox = ResultInbox()
        inbox.feed.view = view
        monkeypatch.setattr(Replica, "measure_weight", lambda *_: weight)
        assert (
            await measured_weight(inbox.ports, inbox.role, InlineWorker(), origin(), SEQ_LEN)
            == weight
        )
        return inbox.events

    messages = [
        str(event["message"]) for event in run_virtual(measure()) if event["kind"] == "warning"
    ]
    assert len(messages) == bool(share_time)
    for sentence in messages:
        assert (
            f"its share of a round would be {share_time}, but a round leaves at most 20 s for it"
            in sentence
        )
        assert "a higher --matformer-tier), another --device" in sentence
    assert all(
        one in sentence
        for sentence in messages
        for one in ("--micro-batch-size", "max_round_train_time")
    )


def test_own_old_seat_is_not_another_member() -> None:
    rules = builders.config(
        max_round_train_time=20, global_batch_size_start=96, global_batch_size_end=96
    )
    seats = {0: builders.seat(0, p2p=b"x" * 32, declared=600)}
    view = builders.view(builders.run(RunState.WARMUP, config=rules), builders.members(seats))
    assert expected_share(view, b"x" * 32, 60) == 96
    assert expected_share(view, b"y" * 32, 60) == 8
