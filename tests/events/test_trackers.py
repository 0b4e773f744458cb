"""Test the real trackers: read back from disk what a member sent to them."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from aftermath.base.errors import AftermathError
from aftermath.events.trackers import TrackerOptions
from events.wandb_file import read_wandb_file

TESTS = Path(__file__).parents[1]
TELLS = """
import contextlib, json, os, sys
sys.path[:0] = [os.environ["TESTS"]]
from pathlib import Path
from aftermath.train.option_checks import check_choices
from aftermath.train.machine import report_machine_use
from aftermath.train.settings import TrainSettings
from aftermath.train.sinks import events_of
from events.sample_events import sample_event

settings = TrainSettings(run_id="demo", logs="json", **json.loads(os.environ["WANTED"]))
check_choices(settings)
with contextlib.ExitStack() as stack:
    events = events_of(settings, stack)
    events.emit(sample_event("started", run_id="demo", wallet="Wal1etWal1et", tier=1, version="0.1.0"))
    events.emit(sample_event("run_found", owner="0wner", created=7, identity=os.environ["IDENTITY"]))
    for step in range(int(os.environ["FIRST"]), int(os.environ["FIRST"]) + 3):
        events.emit(sample_event("trained", step=step, loss=9.0 - step, tokens=500))
        events.emit(sample_event("applied", step=step, results=3, waited=0.25, seconds=0.5))
    events.emit(sample_event("machine", cpu=12.5, gpus=[{"number": 0, "power": 250.5}]))
    events.emit(sample_event("evaluated", step=1, task="source-choice", metric="acc", value=0.5))
sys.stdout.flush()
os._exit(0)
"""
"""A member's sinks in a process of their own, which ends as a member's does."""


def there(name: str) -> bool:
    """Return whether the package is installed.

    A mere folder of that name, such as wandb's output, does not count.
    """
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


with_wandb = pytest.mark.skipif(
    not there("wandb"), reason="wandb is not installed: pip install 'aftermath[wandb]'"
)
with_trackio = pytest.mark.skipif(
    not there("trackio"), reason="trackio is not installed: pip install 'aftermath[trackio]'"
)


def tell(place: Path, first: int = 0, identity: str = "0123456789abcdef", **trackers: str) -> str:
    """Return what a member's process prints on both streams."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WANDB", "TRACKIO", "HF"))
    }
    environment |= {
        "TESTS": str(TESTS),
        "WANTED": json.dumps(trackers),
        "FIRST": str(first),
        "IDENTITY": identity,
    }
    environment |= {
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(place / "trackio"),
        "HOME": str(place),
    }
    line = [sys.executable, "-c", TELLS]
    completed = subprocess.run(
        line, cwd=place, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert all(line.startswith("{") for line in completed.stdout.splitlines()), (
        "nothing else among the events"
    )
    return completed.stderr


def trackio_rows(place: Path) -> list[tuple[str, int, dict[str, float]]]:
    with sqlite3.connect(place / "trackio" / "lab.db") as database:
        rows = database.execute(
            "select run_name, step, metrics from metrics order by id"
        ).fetchall()
    return [(name, step, json.loads(metrics)) for name, step, metrics in rows]


@pytest.fixture(scope="module")
def tracked_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which a member, started twice, sent three steps each time to all
    installed trackers.
    """
    place = tmp_path_factory.mktemp("told")
    projects = {f"{name}_project": "lab" for name in ("wandb", "trackio") if there(name)}
    if there("wandb"):
        projects["wandb_entity"] = "team"
    for first in (0, 3):
        assert tell(place, first, **projects) == ""
    return place


def wandb_files(place: Path) -> list[Path]:
    """Return the files of wandb's runs, the first run first."""
    return sorted(
        place.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns
    )


@pytest.mark.slow
@with_wandb
def test_wandb_keeps_member_events(tracked_runs: Path) -> None:
    run_facts, rows = read_wandb_file(wandb_files(tracked_runs)[0])
    assert (run_facts["project"], run_facts["entity"], run_facts["group"]) == (
        "lab",
        "team",
        "demo",
    )
    assert run_facts["name"] == "demo-tier1-Wal1etWa"
    assert run_facts["config"] == {
        "run_id": "demo",
        "tier": 1,
        "wallet": "Wal1etWal1et",
        "version": "0.1.0",
    }
    assert run_facts["host"] == "", "nothing of whose machine it is"
    assert [(row["step"], row["loss"]) for row in rows if "loss" in row] == [(0, 9), (1, 8), (2, 7)]
    assert [row["tokens"] for row in rows if "tokens" in row] == [500, 1000, 1500]
    assert [row["round_seconds/wait"] for row in rows if "round_seconds/wait" in row] == [0.25] * 3
    assert [row["gpu_power_watts/0"] for row in rows if "cpu_percent" in row] == [250.5]
    assert rows[-1] == {"eval/source-choice/acc": 0.5, "step": 1}
    assert not list(tracked_runs.glob("wandb/**/requirements.txt")), "nor what is installed there"


@pytest.mark.slow
@with_wandb
def test_restarted_member_continues_its_wandb_run(tracked_runs: Path, tmp_path: Path) -> None:
    tell(tmp_path, wandb_project="lab", wandb_run="another")
    tell(tmp_path, identity="fedcba9876543210", wandb_project="lab")  # a later run of the same id
    runs = [
        read_wandb_file(file)[0] for file in (*wandb_files(tracked_runs), *wandb_files(tmp_path))
    ]
    assert sorted(run["name"] for run in runs) == ["another", *["demo-tier1-Wal1etWa"] * 3]
    assert len({run["id"] for run in runs}) == 3


@pytest.mark.slow
@with_trackio
def test_trackio_keeps_rows_across_restart(tracked_runs: Path) -> None:
    rows = trackio_rows(tracked_runs)
    assert {name for name, _, _ in rows} == {"demo-tier1-Wal1etWa-01234567"}
    losses = [(step, row["loss"]) for _, step, row in rows if "loss" in row]
    assert losses == [(0, 9), (1, 8), (2, 7), (3, 6), (4, 5), (5, 4)]
    assert [row["gpu_power_watts/0"] for _, _, row in rows if "cpu_percent" in row] == [250.5] * 2
    with sqlite3.connect(tracked_runs / "trackio" / "lab.db") as database:
        configs = [json.loads(text) for (text,) in database.execute("select config from configs")]
    assert [(config["tier"], config["_Group"]) for config in configs] == [(1, "demo")], "one run"


@pytest.mark.slow
@with_wandb
@with_trackio
def test_both_trackers_receive_equal_rows(tracked_runs: Path) -> None:
    rows = [row for file in wandb_files(tracked_runs) for row in read_wandb_file(file)[1]]
    assert rows == [{"step": step, **row} for _, step, row in trackio_rows(tracked_runs)]


@pytest.mark.slow
@with_wandb
def test_tracker_without_key_is_refused_before_opening(tmp_path: Path) -> None:
    ask = "from aftermath.events.trackers import TrackerOptions; TrackerOptions(wandb_project='lab').check()"
    own = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")} | {
        "HOME": str(tmp_path)
    }
    for extra, message in (
        ({}, "no API key"),
        ({"WANDB_API_KEY": "short"}, "40"),
        ({"WANDB_MODE": "?"}, "settings"),
    ):
        line = [sys.executable, "-c", ask]
        completed = subprocess.run(
            line, cwd=tmp_path, env=own | extra, capture_output=True, text=True, check=False
        )
        assert "Unsuitable: --wandb-project: " in completed.stderr
        assert message in completed.stderr
        assert "WANDB_MODE=offline" in completed.stderr


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_tracker_without_extra_names_install_command(name: str, tmp_path: Path) -> None:
    """A folder that wandb left in the current directory does not count as the package."""
    (tmp_path / name).mkdir()
    line = [sys.executable, "-c", MISSING, name]
    completed = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert f"--{name}-project: {name} is not installed" in completed.stdout
    assert f"pip install 'aftermath[{name}]'" in completed.stdout


MISSING = """
import sys
from importlib.machinery import PathFinder
name = sys.argv[1]

class Without:
    def find_spec(self, asked, path=None, target=None):
        return PathFinder.find_spec(name, [""]) if asked == name else None

sys.meta_path.insert(0, Without())
from aftermath.base.errors import Unsuitable
from aftermath.events.trackers import TrackerOptions
try:
    TrackerOptions(**{f"{name}_project": "lab"}).check()
except Unsuitable as error:
    print(error)
"""
"""Finds the package in the directory where it runs and nowhere else."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            TrackerOptions(wandb_group="g"),
            "--wandb-group needs a project of Weights & Biases",
        ),
        (TrackerOptions(wandb_run="r"), "Pass --wandb-project as well, or unset WANDB_RUN"),
        (TrackerOptions(wandb_entity="e", trackio_project="p"), "--wandb-entity needs a project"),
        (TrackerOptions(wandb_project=""), "--wandb-project '' is not a valid name"),
        (TrackerOptions(wandb_project="a/b"), "without / "),
        (TrackerOptions(trackio_project="a\nb"), "--trackio-project 'a\\nb' is not a valid name"),
        (TrackerOptions(wandb_project="p" * 129), "1 to 128 printable characters"),
    ],
)
def test_invalid_tracker_names_are_refused(options: TrackerOptions, message: str) -> None:
    with pytest.raises(AftermathError) as refused:
        options.check()
    assert message in str(refused.value)


def test_trackers_are_off_by_default() -> None:
    options = TrackerOptions()
    options.check()
    assert not options.any
    assert options.sinks() == []
