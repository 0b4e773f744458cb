"""Test which devices can replay which shares."""

from __future__ import annotations

import pytest
import torch

from aftermath.audit import replay_devices
from aftermath.optim.schema import Schema
from aftermath.rules.announcements import PassSettings
from aftermath.rules.fields import Products
from audit.audited_rounds import last_share

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
KINDS = {CPU: "a CPU", CUDA: "a GPU"}


@pytest.fixture(autouse=True)
def _devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_devices, "device_kind", KINDS.__getitem__)
    monkeypatch.setattr(replay_devices, "has_bf16", lambda device: True)


def why_no_replay(claimed: PassSettings, schema: Schema, own: torch.device) -> str | None:
    return replay_devices.why_no_replay(claimed, schema, own, compiles=False)


def claim(products: Products, steps: Products, device: str) -> PassSettings:
    return PassSettings(8, products, steps, False, device)


@pytest.mark.parametrize("device", ["a CPU", "a GPU", "another GPU", ""])
@pytest.mark.parametrize("own", [CPU, CUDA])
def test_any_device_judges_fp32_products(device: str, own: torch.device) -> None:
    claimed = claim("fp32", "fp32", device)
    assert why_no_replay(claimed, last_share("adamw").share.schema, own) is None
    assert claimed.can_be_judged


def test_same_kind_of_device_judges_bf16_products() -> None:
    schema = last_share("adamw").share.schema
    assert why_no_replay(claim("bf16", "fp32", "a GPU"), schema, CUDA) is None
    assert why_no_replay(claim("bf16", "fp32", "a CPU"), schema, CPU) is None


@pytest.mark.parametrize("compiles", [True, False])
def test_only_members_that_compile_judge_compiled_bf16(compiles: bool) -> None:
    schema = last_share("adamw").share.schema
    for products, can in (("fp32", True), ("bf16", compiles)):
        claimed = claim(products, "fp32", "a GPU")._replace(compiled=True)  # type: ignore[arg-type]
        why = replay_devices.why_no_replay(claimed, schema, CUDA, compiles=compiles)
        assert (why is None) == can


@pytest.mark.parametrize("device", ["a CPU", "another GPU", ""])
def test_other_kinds_of_device_do_not_judge_bf16_products(device: str) -> None:
    claimed = claim("bf16", "fp32", device)
    why = why_no_replay(claimed, last_share("adamw").share.schema, CUDA)
    assert why is not None
    assert device in why
    assert claimed.can_be_judged == bool(device)


def test_device_without_bf16_does_not_judge_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_devices, "has_bf16", lambda device: False)
    claimed = claim("bf16", "fp32", "a GPU")
    assert why_no_replay(claimed, last_share("adamw").share.schema, CUDA) is not None


def test_same_kind_of_device_judges_muon_in_fp32() -> None:
    schema = last_share("muon").share.schema
    assert why_no_replay(claim("fp32", "fp32", "a CPU"), schema, CPU) is None
    for device in ("another CPU", "a GPU", ""):
        assert why_no_replay(claim("fp32", "fp32", device), schema, CPU) is not None


def test_gpu_with_muon_in_bf16_judges_only_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aftermath.optim.muon.at_once", lambda device: device == CUDA)
    schema = last_share("muon").share.schema
    assert why_no_replay(claim("fp32", "fp32", "a GPU"), schema, CUDA) is not None
    for products in ("fp32", "bf16"):
        in_bf16 = claim(products, "bf16", "a GPU")  # type: ignore[arg-type]
        assert why_no_replay(in_bf16, schema, CUDA) is None
        assert why_no_replay(in_bf16, schema, CPU) is not None
    assert why_no_replay(claim("bf16", "fp32", "a GPU"), schema, CUDA) is not None
