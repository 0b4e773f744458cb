"""Tests of `preview-lr`: the rates of a config file as numbers and as a plot, and warnings about
them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.cli_runs import invoke
from cli.conftest import ROOT

TEXT = Path(__file__).with_name("run-config.toml").read_text()
SCHEDULE = "base_lr = 4.0e-3\nwarmup_steps = 4\ntotal_steps = 48\nfinal_lr = 1.0e-3"
STEPS = "total_steps = 48\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    assert SCHEDULE in TEXT
    path = tmp_path / "config.toml"
    path.write_text(TEXT)
    return path


def test_preview_lr_of_short_schedule_lists_every_step(config: Path) -> None:
    data = invoke("preview-lr", "--config-path", config, "--json").data
    assert (data["schedule"], data["total_steps"], data["warnings"]) == ("cosine", 48, [])
    rates = {point["step"]: point["rate"] for point in data["rates"]}
    assert list(rates) == list(range(1, 49))
    assert [rates[step] for step in (1, 2, 4)] == pytest.approx([1e-3, 2e-3, 4e-3])
    # half way from 4 to 48, and half way from 4e-3 to 1e-3
    assert rates[26] == pytest.approx(2.5e-3)
    assert rates[48] == pytest.approx(1e-3)
    assert data["highest"] == pytest.approx(4e-3)


def test_preview_lr_with_cold_start_begins_low(config: Path) -> None:
    text = TEXT.replace("cold_start_warmup_steps = ", "# ")
    config.write_text(text.replace("[model.LLM]\n", "[model.LLM]\ncold_start_warmup_steps = 8\n"))
    data = invoke("preview-lr", "--config-path", config, "--json").data
    assert data["cold_start_warmup_steps"] == 8
    assert data["rates"][3]["rate"] == pytest.approx(4e-3 * 4 / 8)


def test_preview_lr_of_long_schedule_is_thinned_with_ends(config: Path) -> None:
    long = TEXT.replace(STEPS, "total_steps = 5000000\n")
    config.write_text(long)
    data = invoke("preview-lr", "--config-path", config, "--json").data
    steps = [point["step"] for point in data["rates"]]
    assert (len(steps), steps[0], steps[-1]) == (1000, 1, 5_000_000)
    assert steps == sorted(set(steps))


def test_preview_lr_text_shows_shape_and_rates(config: Path) -> None:
    outcome = invoke("preview-lr", "--config-path", config)
    assert (outcome.code, outcome.err) == (0, "")
    assert "steps 1 to 48" in outcome.out
    assert "█" in outcome.out
    assert "1.000e-03  at step 48" in outcome.out


def test_preview_lr_bars_of_constant_rate_are_full(config: Path) -> None:
    text = TEXT.replace("Cosine]", "Constant]")
    config.write_text(text.replace(SCHEDULE, "base_lr = 4.0e-3\nwarmup_steps = 0"))
    outcome = invoke("preview-lr", "--config-path", config)
    assert f"{'█' * 48}\n" in outcome.out


@pytest.mark.parametrize("name", ["rates.png", "rates"])
def test_preview_lr_plot_is_written(config: Path, tmp_path: Path, name: str) -> None:
    picture = tmp_path / "pictures" / name
    picture.parent.mkdir()
    outcome = invoke("preview-lr", "--config-path", config, "--plot", picture)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[-1].split() == ["plot", str(picture)]
    assert list(picture.parent.iterdir()) == [picture]
    assert picture.read_bytes().startswith(b"\x89PNG")


UNWRITABLE = [
    ("absent/rates.png", 1, "cannot write", "Name a file in a directory that exists"),
    ("rates.nothing", 2, "cannot be drawn", "Name a file that ends in .png"),
    (".", 1, "is a directory", "Name a new file"),
]


@pytest.mark.parametrize(("name", "code", "error", "fix"), UNWRITABLE)
def test_preview_lr_plot_to_unwritable_place_is_refused(
    config: Path, tmp_path: Path, name: str, code: int, error: str, fix: str
) -> None:
    outcome = invoke("preview-lr", "--config-path", config, "--plot", tmp_path / name)
    assert outcome.code == code
    assert str(tmp_path / name) in outcome.err
    assert error in outcome.err
    assert f"fix: {fix}" in outcome.err


def test_preview_lr_rate_zero_too_early_is_a_warning(config: Path) -> None:
    config.write_text(TEXT.replace(SCHEDULE, SCHEDULE.replace("48", "24").replace("1.0e-3", "0.0")))
    outcome = invoke("preview-lr", "--config-path", config)
    assert "the learning rate is 0 from step 24 on, so the steps up to 48" in outcome.out


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        (SCHEDULE.replace("total_steps = 48", "total_steps = 60"), 60),
        ("base_lr = 4.0e-3\nwarmup_steps = 60", 60),
    ],
)
def test_preview_lr_schedule_beyond_run_is_a_warning(config: Path, kind: str, ends: int) -> None:
    text = TEXT.replace(SCHEDULE, kind)
    config.write_text(text if "total_steps = 60" in kind else text.replace("Cosine]", "Constant]"))
    warnings = invoke("preview-lr", "--config-path", config, "--json").data["warnings"]
    assert len(warnings) == 1
    assert warnings[0].startswith(
        f"the learning-rate schedule lasts until step {ends}, but the run has only 48 steps and ends at "
    )
    config.write_text(TEXT.replace(SCHEDULE, SCHEDULE.replace("48", "50")))
    assert invoke("preview-lr", "--config-path", config, "--json").data["warnings"] == []


@pytest.mark.parametrize(
    "preset",
    sorted((ROOT / "config").glob("*/*config.toml")),
    ids=lambda path: path.parent.name,
)
def test_preset_rates_stay_positive_to_the_end(preset: Path) -> None:
    data = invoke("preview-lr", "--config-path", preset, "--json").data
    assert data["warnings"] == []
    assert 0 < data["rates"][-1]["rate"] < data["highest"] / 5
