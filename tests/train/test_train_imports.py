"""What a session of one device does not import: it is started by hand, and waited for."""

from __future__ import annotations

import subprocess
import sys

SHARDING = ("torch.distributed.fsdp", "torch.distributed.tensor", "sympy")
SELDOM = (*SHARDING, "triton", "transformers", "matplotlib", "textual")


def test_a_session_imports_nothing_that_few_members_need() -> None:
    program = f"import sys, aftermath.train.session\nprint([name for name in {SELDOM!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
