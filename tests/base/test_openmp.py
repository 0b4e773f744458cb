"""Test how long idle threads spin in the OpenMP library that PyTorch loads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aftermath.base.environment import BY_THE_USER, SPINS

ENTRIES = ("aftermath.__main__", "aftermath.server.__main__")
# Loading the library is enough for it to read the environment and print it; importing torch would
# take 1.5 s more.
THEN = """
import ctypes, glob, importlib.util, sys
sys.argv = ["aftermath", "--help"]
try:
    main()
finally:
    (torch,) = importlib.util.find_spec("torch").submodule_search_locations
    library, *_ = glob.glob(f"{torch}/lib/libgomp*") + glob.glob(f"{torch}.libs/libgomp*")
    ctypes.CDLL(library)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere PyTorch is built with another OpenMP"
)
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("own", "spin_count"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
    ids=["ours", "the user's turns", "the user's policy"],
)
def test_openmp_threads_sleep_soon_unless_user_decides(
    entry: str, own: dict[str, str], spin_count: str
) -> None:
    plain = {name: value for name, value in os.environ.items() if name not in BY_THE_USER}
    line = [sys.executable, "-c", f"from {entry} import main\n{THEN}"]
    completed = subprocess.run(
        line,
        env=plain | own | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f"GOMP_SPINCOUNT = '{spin_count}'" in completed.stderr, completed.stderr
