"""How threads wait for one another, as the OpenMP that PyTorch has loaded tells it itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aftermath.base.openmp import BY_THE_USER, SPINS

ENTRIES = ("aftermath.__main__", "aftermath.central.__main__")
THEN = """
import sys
sys.argv = ["aftermath", "--help"]
try:
    main()
finally:
    import torch
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyTorch is built with another OpenMP")
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("own", "said"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
    ids=["ours", "the user's turns", "the user's policy"],
)
def test_threads_of_commands_sleep_soon_unless_the_user_says_otherwise(
    entry: str, own: dict[str, str], said: str
) -> None:
    plain = {name: value for name, value in os.environ.items() if name not in BY_THE_USER}
    line = [sys.executable, "-c", f"from {entry} import main\n{THEN}"]
    done = subprocess.run(
        line, env=plain | own | {"OMP_DISPLAY_ENV": "VERBOSE"}, capture_output=True, text=True, timeout=60
    )
    assert f"GOMP_SPINCOUNT = '{said}'" in done.stderr, done.stderr
