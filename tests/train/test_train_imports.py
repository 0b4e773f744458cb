"""What a session does not import: it is started by hand, and waited for."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHARDING = ("torch.distributed.fsdp", "torch.distributed.tensor", "sympy")
SELDOM = (*SHARDING, "triton", "transformers", "matplotlib", "textual")


def imported(modules: str, absent: tuple[str, ...]) -> str:
    """The names among `absent` that a process has imported with these modules."""
    program = f"import sys, {modules}\nprint(*(name for name in {absent!r} if name in sys.modules))"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_session_imports_no_torch_before_it_says_so() -> None:
    assert imported("aftermath.train.session, aftermath.server.client_backend", ("torch", *SELDOM)) == ""


@pytest.mark.slow
def test_session_imports_nothing_that_few_members_need() -> None:
    """With all that a member trains with, torch among it."""
    assert imported("aftermath.train.session, aftermath.train.named, aftermath.train.assembly", SELDOM) == ""
