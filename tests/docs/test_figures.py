"""Test that docs/measurements.md shows the recorded figures, and no other page has templates."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hostile.attacks import ATTACKS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/measurements.md"


def module(name: str, known_as: str = "") -> ModuleType:
    """Load a script of benchmarks/ without adding the folder to sys.path, where it would hide test
    packages.
    """
    spec = importlib.util.spec_from_file_location(
        known_as or name, ROOT / "benchmarks" / f"{name}.py"
    )
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, loaded)
    spec.loader.exec_module(loaded)
    return loaded


learning_tables = module("learning_tables")
module("audit_tables")
quote = module("quote", "benchmark_quote")
measure = module("measure", "benchmark_measure")


def test_measurements_page_is_current() -> None:
    assert PAGE.read_text() == quote.page(), "run: make docs"


def test_table_of_choices_is_current() -> None:
    text = (ROOT / "docs/experiments.md").read_text()
    assert text == quote.with_choices(text), "run: make docs"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_pages_have_no_comments(page: Path) -> None:
    assert "<!--" not in page.read_text()


def test_changed_measurement_changes_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(quote.MEASURED, tmp_path / "measured", ignore=shutil.ignore_patterns("runs"))
    monkeypatch.setattr(quote, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(sys, "argv", ["quote.py", str(tmp_path / "page.md")])
    file = tmp_path / "measured/memory.json"
    document = json.loads(file.read_text())
    document["figures"]["light"]["parameters"][0] = 77_000_000
    file.write_text(json.dumps(document))
    assert quote.main() == 0
    assert "| `light` | 0 | 77.0 M |" in (tmp_path / "page.md").read_text()


def test_missing_measurement_error_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quote, "MEASURED", tmp_path)
    monkeypatch.setattr(sys, "argv", ["quote.py", str(tmp_path / "page.md")])
    assert quote.main() == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'demo.json'}: No such file")
    assert not (tmp_path / "page.md").exists()


def test_every_measured_file_has_command_and_machine() -> None:
    files = {
        path.stem: json.loads(path.read_text())
        for path in (ROOT / "benchmarks/measured").glob("*.json")
    }
    commands = measure.COMMANDS | measure.ON_A_GPU | measure.BY_ITSELF
    assert set(measure.COMMANDS) <= set(files) <= set(commands)
    assert all(figures["command"] == commands[name] for name, figures in files.items())
    assert all(figures["figures"] and figures["machine"] for figures in files.values())
    quoted = {name for names, _ in quote.SECTIONS.values() for name in names}
    assert quoted | set(measure.BY_ITSELF) == set(files)


def test_table_of_attacks_has_all_attacks() -> None:
    rows = quote.figures("hostile")["rows"]
    assert {row["attack"] for row in rows} == set(ATTACKS)
    assert all(row["known"] for row in rows if row["not_met"])


def test_measured_costs_meet_their_bars() -> None:
    """Limits of compute units with 256 members, pushed bytes, rent, and hashing of private
    state.
    """
    chain = quote.figures("chain")
    roots = quote.figures("roots")
    assert chain["members"][-1] == 256
    assert all(
        units[-1] is not None and max(filter(None, units)) <= 50_000
        for units in chain["compute_units"].values()
    )
    assert max(chain["push_bytes_max"].values()) <= 2_048
    assert chain["rent_lamports_total"] == sum(chain["rent_lamports"].values()) <= 630_000_000
    assert roots["cpu_of_round"] + roots["copy_cpu_of_round"] <= 0.03
    assert (
        max(one["2"]["cpu_of_round"] for one in roots.values() if isinstance(one, dict))
        == roots["cpu_of_round"]
    )


NOT_ALWAYS_FOUND = {"skips 15 steps, claims bf16 on a GPU", "trains in bf16, claims fp32"}


FALSE_ALARMS = {"muon"}
"""Optimizers whose honest shares of 30 inner steps may be called false (docs/security.md)."""


def test_measured_audits_meet_their_bars() -> None:
    """Attacks are found within 20 audits, no honest member is convicted, and audits cost 7 %."""
    hostile = quote.figures("hostile")
    judged = {row["attack"]: row for row in hostile["audits"] if "found_in_20_audits" in row}
    found = {name: row["found_in_20_audits"] for name, row in judged.items()}
    assert found.keys() > NOT_ALWAYS_FOUND
    assert min(found[name] for name in found.keys() - NOT_ALWAYS_FOUND) >= 0.99
    assert min(row["seeds"] for row in judged.values()) >= 20
    assert not any(row["false_convictions"] for row in hostile["audits"])
    of_short_shares = quote.figures("audits")
    honest = hostile["audit_honest"]
    assert of_short_shares["audits"] + honest["judgements"] >= 10_000
    assert not of_short_shares["false_alarms"]
    alarmed = {name for name, one in honest["by_optimizer"].items() if one["false_alarms"]}
    assert alarmed <= FALSE_ALARMS
    assert max(cost["compute"] for cost in hostile["audit_cost"].values()) <= 0.07
