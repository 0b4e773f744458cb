"""Measuring a machine: how fast it trains, in a time that does not grow with how slow it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aftermath.member import speed
from aftermath.member.speed import measured_weight
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.replica.origin import Origin
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.sim.clock import InlineWorker, run_virtual
from aftermath.sim.tiny import CONFIG
from member.desk import SCHEMA, Desk

MICRO, SEQ_LEN = 8, 2048
CLOCK = {"now": 0.0}
LONG = LlamaConfig.from_hf(CONFIG.to_hf() | {"max_position_embeddings": SEQ_LEN})


def origin(micro: int = MICRO, config: LlamaConfig = LONG) -> Origin:
    schema = replace(SCHEMA, state=replace(SCHEMA.state, config=config))
    return Origin(schema, 0, "auto", torch.device("cpu"), PassSize(micro, "off"), lambda: CLOCK["now"])


def machine(seconds_per_token: float) -> tuple[Replica, list[tuple[int, ...]]]:
    """A replica on a machine of that speed, and the shapes of what it trains on."""
    made = origin()
    replica = made.replica(made._stand_in())
    seen: list[tuple[int, ...]] = []

    def work(_: object, inputs: tuple[torch.Tensor, object]) -> None:
        rows, length = inputs[0].shape
        seen.append((rows, length + 1))  # the last token is only predicted
        CLOCK["now"] += rows * (length + 1) * seconds_per_token

    replica.model.get_submodule("model").register_forward_pre_hook(work)
    return replica, seen


@pytest.mark.parametrize("seconds_per_token", [1e-5, 1e-3, 0.02, 0.05])
def test_measuring_ends_in_time_and_finds_the_speed_on_fast_and_slow_machines(seconds_per_token: float) -> None:
    """A micro-batch of these takes from 0.2 seconds to 14 minutes."""
    replica, seen = machine(seconds_per_token)
    began = CLOCK["now"]
    weight = replica.measure_weight(SEQ_LEN, 8.0)
    assert CLOCK["now"] - began <= 8.0
    assert weight == max(1, round(60 / (seconds_per_token * SEQ_LEN)))
    assert seen[0] == (1, 32)
    assert (seen[-2:] == [(MICRO, SEQ_LEN)] * 2) is (seconds_per_token < 1e-4)


def test_a_first_pass_that_takes_too_long_is_made_once_more_as_it_also_warms_the_machine() -> None:
    replica, seen = machine(1.0)
    assert replica.measure_weight(SEQ_LEN, 8.0) == 1
    assert seen == [(1, 32), (1, 32)]


@pytest.mark.parametrize(("micro", "seq_len"), [(1, 16), (3, 16), (4, 100)])
def test_the_last_pass_is_a_micro_batch_of_the_run(micro: int, seq_len: int) -> None:
    made = origin(micro, LONG)
    replica = made.replica(made._stand_in())
    shapes: list[torch.Size] = []
    replica.model.get_submodule("model").register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape))
    assert replica.measure_weight(seq_len, 8.0) == 65535  # on a clock that stands still
    assert [tuple(shape) for shape in shapes[-2:]] == [(micro, seq_len - 1)] * 2
    assert all(parameter.grad is None for parameter in replica.params.values())


def test_what_stands_in_for_the_weights_has_their_shapes_and_trains() -> None:
    made = origin()
    weights = made._stand_in()
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == LONG.parameter_shapes(0)
    assert made.schema.state.parameters() == sum(tensor.numel() for tensor in weights.values())
    assert torch.isfinite(made.replica(weights).model.loss(torch.arange(64).view(1, 64)))


@pytest.mark.parametrize(("seconds", "weight"), [(3.0, 65535), (900.0, 1)])
def test_it_is_said_what_is_measured_and_how_long_that_can_take(seconds: float, weight: int) -> None:
    """Whatever makes it slow (memory, another process): after a minute the member goes on without."""

    async def measure() -> tuple[int, list[dict[str, object]]]:
        desk = Desk()
        compute = InlineWorker(seconds)
        return await measured_weight(desk.ports, desk.role, compute, origin(), SEQ_LEN), desk.events

    found, events = run_virtual(measure())
    assert found == weight
    assert [event["kind"] for event in events if event["kind"] != "warning"] == ["measuring", "measured"]
    assert (events[0]["tier"], events[0]["parameters"]) == (0, origin().schema.state.parameters())
    assert events[0]["limit"] == speed.PATIENCE == 60
    assert events[-1]["seconds"] == min(seconds, speed.PATIENCE)
    assert any("asks for the smallest share" in str(event.get("message")) for event in events) is (weight == 1)
