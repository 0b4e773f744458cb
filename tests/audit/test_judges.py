"""Test which devices may judge which results."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from aftermath.audit.judges import why_not_judge
from aftermath.rules.announcements import PassSettings
from audit.audited_rounds import last_share

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
@pytest.mark.parametrize("own", [CPU, CUDA])
def test_any_device_judges_fp32_products(
    device: Literal["cpu", "cuda", "mps"], own: torch.device
) -> None:
    schema = last_share("adamw").share.schema
    assert why_not_judge(PassSettings(8, "fp32", device), schema, own) is None


@pytest.mark.parametrize("own", [CPU, CUDA])
def test_nobody_judges_bf16_products(own: torch.device) -> None:
    why = why_not_judge(PassSettings(8, "bf16", "cuda"), last_share("adamw").share.schema, own)
    assert why is not None
    assert "bf16" in why


def test_gpu_with_muon_in_bf16_judges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aftermath.optim.muon.at_once", lambda device: device == CUDA)
    schema = last_share("muon").share.schema
    claimed = PassSettings(8, "fp32", "cpu")
    assert why_not_judge(claimed, schema, CPU) is None
    assert why_not_judge(claimed, schema, CUDA) is not None
