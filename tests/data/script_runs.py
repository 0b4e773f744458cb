"""Scripts of `scripts/`, run in this process."""

from __future__ import annotations

import importlib.util
import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(script: str, *arguments: str) -> tuple[int, str, str]:
    """Run a script with these arguments. Return its exit status, output and errors."""
    spec = importlib.util.spec_from_file_location("script", SCRIPTS / script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = module.main(arguments)
    return status, out.getvalue(), err.getvalue()
