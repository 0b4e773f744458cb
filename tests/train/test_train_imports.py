"""What a session does not import: it is started by hand, and waited for."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHARDING = ("torch.distributed.fsdp", "torch.distributed.tensor", "sympy")
SELDOM = (*SHARDING, "triton", "transformers", "matplotlib", "textual")
MEMBER = "aftermath.train.session, aftermath.train.named, aftermath.train.assembly"
SERVERS = "aftermath.train.session, aftermath.central.reach"


@pytest.mark.parametrize(("modules", "absent"), [(MEMBER, SELDOM), (SERVERS, ("torch", *SELDOM))])
def test_nothing_is_imported_that_few_members_need_nor_torch_before_it_is_said(
    modules: str, absent: tuple[str, ...]
) -> None:
    program = f"import sys, {modules}\nprint([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
