"""Build an sdist of the checkout and a wheel from it, and install the wheel in a new
environment.
"""

from __future__ import annotations

import os
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from e2e.run_inputs import ROOT

OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Installed:
    """An environment with the package, and with its dependencies from the tests' environment."""

    place: Path
    sdist: Path
    wheel: Path

    @property
    def scripts(self) -> Path:
        return self.place / "venv" / "bin"

    def python(self, *words: str | Path) -> str:
        line = [self.scripts / "python", *words]
        completed = subprocess.run(
            line, cwd=self.place, env=without_us(), capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stderr[-2000:]
        return completed.stdout


def without_us() -> dict[str, str]:
    """Return the environment variables without those that point to the checkout."""
    return {name: value for name, value in os.environ.items() if name not in OURS}


def install(place: Path) -> Installed:
    """Build both and install the wheel there. Skip the test if hatchling is not available."""
    venv.create(place / "venv", with_pip=True)
    python = str(place / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q"]
    got = subprocess.run(
        [*pip, "install", "hatchling"],
        env=without_us(),
        capture_output=True,
        text=True,
        check=False,
    )
    if got.returncode:
        pytest.skip(f"hatchling cannot be installed here: {got.stderr.strip().splitlines()[-1]}")

    def do(*line: str | Path) -> None:
        completed = subprocess.run(
            line, cwd=ROOT, env=without_us(), capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stderr[-2000:]

    do(python, "-m", "hatchling", "build", "-t", "sdist", "-d", place / "dist")
    (sdist,) = (place / "dist").glob("*.tar.gz")
    do(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", place / "dist", sdist)
    (wheel,) = (place / "dist").glob("*.whl")
    do(*pip, "install", "--no-deps", wheel)
    (own,) = (place / "venv" / "lib").glob("python*/site-packages")
    needed = str(Path(torch.__file__).parents[1])  # its own .pth files are not read
    # A plain installation has no numba. Here, numba would compile all kernels again for this
    # environment.
    (own / "needed.pth").write_text(f'{needed}\nimport sys; sys.modules["numba"] = None\n')
    return Installed(place, sdist, wheel)
