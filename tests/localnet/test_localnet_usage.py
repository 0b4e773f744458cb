"""Test the help of parts that start as modules: their name and a valid example."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable

import pytest

from aftermath.localnet import __main__ as localnet
from aftermath.sim import __main__ as sim

MODULES = {"aftermath.localnet": localnet._parser, "aftermath.sim": sim._parser}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_help_has_module_name_and_valid_examples(module: str) -> None:
    make: Callable[[], argparse.ArgumentParser] = MODULES[module]
    parser = make()
    line = f"python -m {module}"
    help_text = parser.format_help()
    assert help_text.startswith(f"usage: {line} ")
    examples = [
        text.strip()
        for text in help_text.split("examples:")[1].splitlines()
        if text.strip().startswith(line)
    ]
    assert examples
    for example in examples:
        parser.parse_args(shlex.split(example)[3:])
    for action in parser._actions:
        assert action.help, action.option_strings


@pytest.mark.parametrize("module", sorted(MODULES))
def test_usage_error_has_module_name(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        MODULES[module]().parse_args(["--no-such-option"])
    assert capsys.readouterr().err.startswith(f"usage: python -m {module} ")
