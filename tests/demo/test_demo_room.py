"""The demo keeps to itself: its directory, its variables, and what it shows where there is no terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from aftermath.demo.plan import DemoFailed, environment
from aftermath.demo.room import claimed
from aftermath.demo.story import MemberStory, Story
from aftermath.demo.view import LINE_EVERY, Screen


def test_a_directory_is_emptied_for_the_next_demo(tmp_path: Path) -> None:
    root = tmp_path / "new" / "demo"
    with claimed(root):
        (root / "keys").mkdir()
        (root / "keys" / "owner.json").write_text("1")
        (root / "elsewhere").symlink_to(tmp_path)
    with claimed(root):
        assert [path.name for path in root.iterdir()] == [".aftermath-demo"]
    assert tmp_path.is_dir()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.tex"
    precious.write_text("precious")
    with pytest.raises(DemoFailed, match="not a demo's"), claimed(tmp_path):
        pytest.fail("the directory was taken")
    assert precious.read_text() == "precious"
    line = [sys.executable, "-m", "aftermath.demo", "--dir", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "make demo DIR=" in done.stdout.replace("\n", " ")
    assert precious.read_text() == "precious"


def test_a_running_demo_keeps_its_directory(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    with claimed(root):
        (root / "ledger").write_text("in use")
        with pytest.raises(DemoFailed, match="another demo works in"), claimed(root):
            pytest.fail("the directory was taken")
        assert (root / "ledger").read_text() == "in use"


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DemoFailed, match="cannot work in"), claimed(tmp_path / "file" / "demo"):
        pytest.fail("the directory was taken")


def test_the_users_own_runs_do_not_steer_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RPC", "RUN_ID", "HUB_REPO", "CHECKPOINT_DIR", "RAW_WALLET_PRIVATE_KEY", "RAW_IDENTITY_SECRET_KEY"):
        monkeypatch.setenv(name, "mine")
        assert name not in environment()
    monkeypatch.setenv("LANG", "C")
    assert environment()["LANG"] == "C"


def test_into_a_pipe_it_says_a_line_now_and_then() -> None:
    out = io.StringIO()
    story = Story([MemberStory("member-0", 0)])
    with Screen(Console(file=out, width=80), "title") as screen:
        for elapsed in (0.0, 1.0, LINE_EVERY, LINE_EVERY + 1):
            screen.show(story, "nothing happens", elapsed)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert all("no loss yet" in line and "member-0: starting" in line and "nothing happens" in line for line in lines)


def test_the_picture_fits_an_ordinary_terminal() -> None:
    out = io.StringIO()
    member = MemberStory("member-0", 0, "epoch 2: waiting for members", 120, 2.1234, 12_345.0)
    member.sources.append("the checkpoint")
    member.traffic.append({"sent": 1_234_567})
    with Screen(Console(file=out, width=80, force_terminal=True, color_system=None), "title") as screen:
        screen.show(Story([member]), "nothing happens", 1.0)
    shown = out.getvalue()
    for text in ("member-0", "epoch 2:", "members", "2.1234", "12,345", "1,235 kB", "checkpoint"):
        assert text in shown
