"""Run command lines in one process without torch. A command that imports torch ends there, as after
Ctrl-C.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.cli_runs import Outcome

TESTS = Path(__file__).parents[1]
SERVER = f"""
import json, sys

sys.path.insert(0, {str(TESTS)!r})
from cli.cli_runs import invoke_ending


class InterruptAtTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise KeyboardInterrupt


sys.meta_path.insert(0, InterruptAtTorch())
assert "torch" not in sys.modules
for line in sys.stdin:
    done = invoke_ending(*json.loads(line))
    print(json.dumps([done.code, done.out, done.err]), flush=True)
"""

Torchless = Callable[..., Outcome]


@contextmanager
def torchless_server() -> Iterator[Torchless]:
    """Yield a function that runs a command line and returns how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin = process.stdin
    stdout = process.stdout

    def run(*arguments: str | Path) -> Outcome:
        stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
        stdin.flush()
        code, out, err = json.loads(stdout.readline())
        return Outcome(code, out, err)

    with process:
        yield run
        stdin.close()
