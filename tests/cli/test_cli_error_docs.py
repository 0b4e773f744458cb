"""The pages of owners, providers and researchers: their own lines, in their order, lead where the
pages say.
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
LONG = 600  # seconds: for a machine that is busy with other tests


def lines(page: str, *sections: str) -> Iterator[str]:
    """The lines of a page's shell blocks in these sections, continuations joined."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    _, *parts = SECTION.split(text)
    held = dict(zip(parts[::2], parts[1::2], strict=True))
    for section in sections:
        for body in FENCE.findall(held[section]):
            yield from (
                line for line in body.replace("\\\n", " ").splitlines() if line not in HERE_ALREADY
            )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without anything made in it yet, which is the current directory."""
    for name in ("scripts", "config"):
        shutil.copytree(ROOT / name, tmp_path / "project" / name)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def called(line: str) -> None:
    """Do what a line does: commands in this process, since most would import torch again, and the
    rest by a shell.
    """
    words = shlex.split(line)
    if words[0] == "aftermath-solana":
        done = invoke(*words[1:])
        assert done.code == 0, (line, done.out, done.err)
    else:
        subprocess.run(["sh", "-c", line], check=True, timeout=LONG)


def trained(line: str) -> None:
    """Run a member by this line until it has trained, and then press Ctrl-C."""
    with subprocess.Popen(
        [CONSOLE, *shlex.split(line)[1:], "--logs", "json"], stdout=subprocess.PIPE, text=True
    ) as member:
        assert member.stdout is not None
        ends = time.monotonic() + LONG
        said = []
        try:
            for text in member.stdout:
                said.append(text)
                if '"kind":"trained"' in text:
                    member.send_signal(signal.SIGINT)
                assert time.monotonic() < ends, said
            assert member.wait(60) == 0, said
        finally:
            member.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("project", "in_process_builds")
@pytest.mark.timeout(1800)
def test_owner_and_provider_pages_commands_run(rpc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPC", rpc)
    for line in lines("owner", "Install", "The first time, on this machine alone"):
        if line != "aftermath-solana localnet":  # which is there
            called(line)
    for line in lines("provider", "Install", "Can I join?", "Take part"):
        if " train " in line:
            trained(line)
        else:
            called(line)
    for line in lines("provider", "Stay"):
        if "--follow" not in line:  # which does not end
            called(line)
    for line in lines("owner", "The end"):
        called(line)
    for line in lines("provider", "Leave"):
        called(line)


@pytest.mark.nightly  # tests/lab and tests/evals cover these commands in the slow tests
@pytest.mark.timeout(1800)
def test_researcher_page_commands_run(project: Path) -> None:
    """With a tenth of the steps and of the questions."""
    for line in lines("researcher", "The first comparison"):
        called(line.replace("--steps 40", "--steps 4").replace("--max-docs 20", "--max-docs 2"))
    assert (project / "runs/lab/events.csv").stat().st_size
