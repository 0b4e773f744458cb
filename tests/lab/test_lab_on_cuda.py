"""Test stacked members on a real GPU, which `make gpu-check` runs."""

from __future__ import annotations

import logging

import pytest
import torch

from aftermath.replica.exactness import exact_device
from aftermath.replica.options import Arithmetic
from aftermath.rules.sparseloco import SparseLoCo
from lab.test_lab_stacked_members import ADAMW, MUON, learnt, members_in_stacks, together

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
FAST = Arithmetic(bf16=True, compiled=True)


@pytest.mark.parametrize("arithmetic", [Arithmetic(), FAST], ids=["fp32", "bf16 compiled"])
@pytest.mark.parametrize(
    ("model", "settings"),
    [("llama", MUON), ("qwen3", ADAMW), ("nanogpt", MUON)],
    ids=["llama", "qwen3", "nanogpt"],
)
def test_stack_on_gpu_learns_like_single_members(
    caplog: pytest.LogCaptureFixture, model: str, settings: SparseLoCo, arithmetic: Arithmetic
) -> None:
    gpu = exact_device("cuda:0")
    with caplog.at_level(logging.WARNING, "aftermath"):
        stacked, single = (
            together(model, settings, stacked=stacked, arithmetic=arithmetic, device=gpu)
            for stacked in (True, False)
        )
        losses = [torch.tensor(learnt(members)) for members in (stacked, single)]
    assert not caplog.messages, "a pass failed, or was not compiled"
    assert members_in_stacks(stacked) == [(0, 1, 2)]
    assert (losses[0] - losses[1]).abs().max() < 0.02
