"""Test the choice of the tier by this machine's memory and speed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch

from aftermath.base.errors import UsageError
from aftermath.coordinator.ports import View
from aftermath.model.schema import state_schema
from aftermath.parallel.mesh import Mesh
from aftermath.replica.pass_size import OutOfMemory
from aftermath.replica.tier_memory import _layer_count, needs
from aftermath.rules.state import RunState
from aftermath.train.tier import AUTO_TIER, ChosenTier, check_alone, check_memory, chosen
from member.result_inbox import SCHEMA
from rules import builders

WALLET = b"w" * 32
PLENTY = 1 << 40
FAST = 600
SLOW = 2
RULES = builders.config(
    max_round_train_time=20, global_batch_size_start=96, global_batch_size_end=96
)


def a_view(*tiers: int) -> View:
    """Return a run with members of these tiers. The first one has our wallet."""
    seats = {
        place: builders.seat(
            place, p2p=bytes([place]) * 32, signer=bytes([place]) * 32, declared=60, tier=tier
        )
        for place, tier in enumerate(tiers, 1)
    }
    return builders.view(builders.run(RunState.WARMUP, config=RULES), builders.members(seats))


def by(
    view: View, free: int, weights: dict[int, int | None], wallet: bytes = WALLET
) -> tuple[ChosenTier, list[int]]:
    measured: list[int] = []

    def measure(tier: int) -> int | None:
        measured.append(tier)
        return weights.get(tier, FAST)

    return chosen(view, wallet, SCHEMA, "cpu", free, measure), measured


def needed() -> list[int]:
    view = a_view()
    return needs(SCHEMA, view.model.max_seq_len, RULES.init_min_clients)


def test_auto_tier_with_room_and_speed_is_whole_model() -> None:
    choice, measured = by(a_view(), PLENTY, {})
    assert (choice.tier, measured) == (0, [0])
    assert "is fast enough (" in choice.why


def test_auto_tier_is_largest_that_fits_memory() -> None:
    sizes = needed()
    assert sizes == sorted(set(sizes), reverse=True)
    assert [by(a_view(), size, {})[0].tier for size in sizes] == [*range(len(sizes))]
    assert [by(a_view(), size - 1, {})[0].tier for size in sizes[:-1]] == [*range(1, len(sizes))]


def test_auto_tier_beyond_memory_error_names_both_sizes() -> None:
    with pytest.raises(OutOfMemory, match=r"takes .* MB, but only .* MB are free"):
        by(a_view(), needed()[-1] - 1, {})


def test_auto_tier_too_slow_falls_back_to_smaller() -> None:
    choice, measured = by(a_view(), PLENTY, {0: SLOW})
    assert (choice.tier, measured) == (1, [0, 1])


def test_auto_tier_out_of_memory_falls_back_to_smaller() -> None:
    assert by(a_view(), PLENTY, {0: None})[0].tier == 1


def test_auto_tier_without_fast_enough_tier_is_smallest() -> None:
    last = SCHEMA.state.tiers - 1
    choice, measured = by(a_view(), PLENTY, dict.fromkeys(range(last + 1), SLOW))
    assert (choice.tier, measured) == (last, list(range(last + 1)))
    assert "no tier is fast enough" in choice.why


def test_auto_tier_of_returning_member_is_kept_unmeasured() -> None:
    choice, measured = by(a_view(1, 0), 0, {}, wallet=b"\x01" * 32)
    assert (choice.tier, measured) == (1, [])


def test_auto_tier_on_several_devices_is_refused() -> None:
    here = torch.device("cpu")
    check_alone(AUTO_TIER, Mesh((here,), 1, 1))
    check_alone(0, Mesh((here, here), 2, 1))
    with pytest.raises(UsageError, match="one device"):
        check_alone(AUTO_TIER, Mesh((here, here), 2, 1))


def leave_free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let the system report `size` free bytes."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=size))


def test_named_tier_beyond_memory_is_refused_with_fitting_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = needed()
    here = torch.device("cpu")
    for free, fix in ((sizes[1], "--matformer-tier 1"), (sizes[-1] - 1, "--device")):
        leave_free(monkeypatch, free)
        with pytest.raises(OutOfMemory, match=r"tier 0 takes at least .* MB") as refused:
            check_memory(a_view(), SCHEMA, 0, [here])
        assert str(refused.value.fix).endswith(fix)
    leave_free(monkeypatch, sizes[0])
    check_memory(a_view(), SCHEMA, 0, [here])
    check_memory(a_view(), SCHEMA, 1, [here, here])


def test_model_of_billions_is_refused_without_its_weights() -> None:
    sizes = {
        "hidden_size": 16_384,
        "intermediate_size": 65_536,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
    }
    large = replace(SCHEMA, state=state_schema({"vocab_size": 128_256, **sizes}, 1))
    with pytest.raises(OutOfMemory, match=r"tier 0 takes at least [0-9,]+\.\d GB"):
        check_memory(a_view(), large, 0, [torch.device("cpu")])


def test_layer_count_comes_from_parameter_names() -> None:
    """A stranger's document may give a key for it that is not a number."""
    names = ["wte.weight", "transformer.h.0.mlp.c_fc.weight", "transformer.h.11.experts.40.weight"]
    assert _layer_count(names) == 12
    assert _layer_count(["embed.weight"]) == 0
