"""Tests that the command lines of the owner, provider and researcher pages work in the order of the
pages.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.cli_runs import CONSOLE, invoke
from cli.conftest import ROOT

FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
HERE_ALREADY = ("make env", ". .venv/bin/activate")
LONG = 600  # seconds, for a machine that is busy with other tests


def lines(page: str, *sections: str) -> Iterator[str]:
    """Return the lines of a page's shell blocks in these sections, with continuations joined."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    _, *parts = SECTION.split(text)
    blocks = dict(zip(parts[::2], parts[1::2], strict=True))
    for section in sections:
        for body in FENCE.findall(blocks[section]):
            yield from (
                line for line in body.replace("\\\n", " ").splitlines() if line not in HERE_ALREADY
            )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a clean checkout the current directory."""
    for name in ("scripts", "config"):
        shutil.copytree(ROOT / name, tmp_path / "project" / name)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def called(line: str) -> None:
    """Run a line of a page. Run commands in this process, because a new one would import torch
    again, and other lines in a shell.
    """
    words = shlex.split(line)
    if words[0] == "aftermath-solana":
        outcome = invoke(*words[1:])
        assert outcome.code == 0, (line, outcome.out, outcome.err)
    else:
        subprocess.run(["sh", "-c", line], check=True, timeout=LONG)


def trained(line: str) -> None:
    """Run a member with this line until it has trained, then press Ctrl-C."""
    with subprocess.Popen(
        [CONSOLE, *shlex.split(line)[1:], "--logs", "json"], stdout=subprocess.PIPE, text=True
    ) as member:
        assert member.stdout is not None
        ends = time.monotonic() + LONG
        lines = []
        is_interrupted = False
        try:
            for text in member.stdout:
                lines.append(text)
                if '"kind":"trained"' in text and not is_interrupted:
                    member.send_signal(signal.SIGINT)
                    is_interrupted = True
                assert time.monotonic() < ends, lines
            assert member.wait(60) == 0, lines
        finally:
            member.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("project", "in_process_builds")
@pytest.mark.timeout(1800)
def test_owner_and_provider_pages_commands_run(rpc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPC", rpc)
    for line in lines("owner", "Install", "The first time, on this machine alone"):
        if line != "aftermath-solana localnet":  # already installed
            called(line)
    for line in lines("provider", "Install", "Can I join?", "Take part"):
        if " train " in line:
            trained(line)
        else:
            called(line)
    for line in lines("provider", "Stay"):
        if "--follow" not in line:  # runs until Ctrl-C
            called(line)
    for line in lines("owner", "The end"):
        called(line)
    for line in lines("provider", "Leave"):
        called(line)


@pytest.mark.nightly  # tests/lab and tests/evals cover these commands in the slow tests
@pytest.mark.timeout(1800)
def test_researcher_page_commands_run(project: Path) -> None:
    """Use a tenth of the steps and of the questions."""
    for line in lines("researcher", "The first comparison"):
        called(line.replace("--steps 40", "--steps 4").replace("--max-docs 20", "--max-docs 2"))
    assert (project / "runs/lab/events.csv").stat().st_size
