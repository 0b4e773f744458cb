"""Test that the benchmark of help pages runs. Its times are not checked."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.test_benchmarks_worth import module

pages = module("help")


def test_help_benchmark_measures_named_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["help.py", "tick", "model init", "--times", "1", "--json"])
    pages.main()
    times = json.loads(capsys.readouterr().out)["ms_over_interpreter"]
    assert list(times) == ["tick", "model init"]
    monkeypatch.setattr(sys, "argv", ["help.py", pages.INDEX_PAGE, "--times", "1"])
    pages.main()
    assert "ms  (index)" in capsys.readouterr().out
