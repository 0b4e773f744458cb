"""Test the error that ends a member, also where torch has no good message."""

from __future__ import annotations

import pytest
import torch

from aftermath.base.errors import AftermathError
from aftermath.replica.pass_size import OutOfMemory
from aftermath.train.session import as_user_error
from aftermath.train.settings import TrainSettings

SETTINGS = TrainSettings(run_id="demo", matformer_tier=1)


def test_user_error_of_own_kind_is_unchanged() -> None:
    error = AftermathError("it broke", "fix it")
    assert as_user_error(error, SETTINGS) is error


def _more_than_there_is() -> None:
    torch.empty(1 << 60)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), None]
)
def test_user_error_of_memory_names_fix(error: Exception | None) -> None:
    if error is None:
        with pytest.raises(RuntimeError) as caught:
            _more_than_there_is()
        error = caught.value
    user_error = as_user_error(error, SETTINGS)
    assert isinstance(user_error, OutOfMemory)
    assert "tier 1" in user_error.message
    assert "--matformer-tier" in user_error.fix


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_user_error_of_unexpected_kind_is_none(kind: type[Exception]) -> None:
    assert as_user_error(kind("shapes do not match"), SETTINGS) is None
