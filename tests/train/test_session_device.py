"""Test what a session checks on its device before it opens any connection."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import torch
from solders.keypair import Keypair

from aftermath.base.errors import Unsuitable, UsageError
from aftermath.chain.endpoints import endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet
from aftermath.replica.exactness import is_exact
from aftermath.replica.options import Arithmetic
from aftermath.train.admission import check_options
from aftermath.train.connection import MemberBackend
from aftermath.train.device_options import device_setup
from aftermath.train.settings import TrainSettings


def settings(**options: Any) -> TrainSettings:
    return TrainSettings(run_id="demo", device="cpu", **options)


def test_grad_accumulation_below_fp32_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"(?s)^--no-grad-accum-in-fp32 is not supported.*--precision bf16"
    ):
        check_options(settings(grad_accum_in_fp32=False))


def there() -> MemberBackend:
    """Return a backend for a run that cannot be reached."""
    return MemberBackend(
        RpcPool([endpoint("http://127.0.0.1:9")]), None, None, Wallet(Keypair()), b"secret"
    )


def test_device_is_exact_before_join() -> None:
    torch.backends.cudnn.allow_tf32 = True
    setup = device_setup(settings(precision="bf16", compile="on"), there())
    assert is_exact()
    assert setup.mesh.devices[0] == torch.device("cpu")
    assert setup.arithmetic == Arithmetic(bf16=True, compiled=True)


def test_rounding_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(os.environ, "CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
    with pytest.raises(Unsuitable, match=re.escape("CUBLAS_EMULATE_DOUBLE_PRECISION is set")):
        device_setup(settings(), there())
