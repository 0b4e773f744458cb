"""Test README's length, and that its sample output matches the last measured demo."""

from __future__ import annotations

import json
import re
from pathlib import Path

from aftermath.demo.commands import DemoPaths
from aftermath.demo.report import closing
from aftermath.testnet.member_progress import MemberProgress

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_readme_has_at_most_150_lines_and_no_comments() -> None:
    assert len(README.splitlines()) <= 150
    assert "<!--" not in README


def test_readme_sample_output_equals_measured_demo() -> None:
    report = json.loads((ROOT / "benchmarks/measured/demo.json").read_text())["figures"]
    printed = closing(report, DemoPaths(Path("runs/demo-embedded")), MemberProgress("member-1", 1))
    sample = re.search(r"^```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert sample
    for line in sample[1].splitlines():
        assert line in printed, (
            "paste the lines of the last `benchmarks/measure.py demo`:\n" + "\n".join(printed)
        )
