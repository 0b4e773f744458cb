"""The bias by which DeepSeek-V3 chooses experts: how passes count choices, and how training moves
it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aftermath.model.arch.deepseek import Gate
from aftermath.model.checkpoint import load
from aftermath.model.initial_weights import init_weights
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.replica.passes import Passes
from aftermath.replica.replica import accumulate
from lab.lab_place import DISTRO, INNER, prepare, train
from model.test_deepseek import V3, config, tokens, weights

torch.set_num_threads(1)
ALONE: dict[str, Any] = {"optimizer": "adamw", "total_batch": 6}


def test_expert_choices_are_counted_once_for_any_pass_size() -> None:
    """The test counts in another way: it records the outputs of each gate."""
    shape = config(V3)
    ids = tokens(6)
    counted = []
    for micro_batch, recompute in ((6, False), (6, True), (4, False), (1, True)):
        net = shape.build(0, weights(shape))
        net.recompute = recompute
        accumulate(Passes(net), ids, micro_batch, threading.Event())
        counted.append(
            {name: tensor.grad for name, tensor in net.named_parameters() if name.endswith("bias")}
        )
    choices: dict[str, Tensor] = {}
    for name, module in net.named_modules():
        if isinstance(module, Gate):
            module.register_forward_hook(
                lambda _, inputs, out, name=name: choices.update({name: out[0]})
            )
    with torch.no_grad():
        net.loss(ids)
    assert len(choices) == 2
    for name, chosen in choices.items():
        expected = torch.bincount(chosen.flatten(), minlength=8).float()
        assert expected.sum() == 6 * 11 * 3
        for counts in counted:
            assert torch.equal(counts[f"{name}.e_score_correction_bias"], expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer", [DISTRO, INNER, ALONE, ALONE | {"optimizer": "muon"}], ids=str
)
def test_expert_bias_moves_at_its_rate_in_equal_replicas(
    optimizer: dict[str, Any], tmp_path: Path
) -> None:
    """With members of three tiers and on one machine, the bias moves by whole steps."""
    prepare(tmp_path)
    shape = config(V3, vocab_size=64)
    write_checkpoint(tmp_path / "v3", init_weights(shape, 1), shape, tier=0, companions={})
    train(
        tmp_path,
        **optimizer,
        model=tmp_path / "v3",
        steps=3,
        warmup_steps=1,
        lr_schedule="constant",
        lr=2**-8,
        out=tmp_path / "out",
    )
    params = load(tmp_path / "out" / "checkpoint", 0)
    rate = 2**-8 * (0.1 if optimizer["optimizer"] == "muon" else 1)
    for name in (name for name in params if name.endswith("bias")):
        steps = params[name] / rate
        assert 0 < steps.abs().max() <= 6
        if optimizer["optimizer"] != "sparseloco":
            torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-3)
