"""The pages of owners, providers and researchers: their own lines, in their order, lead where the pages say."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.cli_runs import CONSOLE
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
            yield from (line for line in body.replace("\\\n", " ").splitlines() if line not in HERE_ALREADY)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout without anything made in it yet."""
    for name in ("scripts", "config"):
        shutil.copytree(ROOT / name, tmp_path / "project" / name)
    return tmp_path / "project"


@pytest.fixture
def variables() -> dict[str, str]:
    """As in an environment that was activated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{CONSOLE.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}


def called(line: str, place: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(
        ["sh", "-c", line], cwd=place, env=variables, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def trained(line: str, place: Path, variables: dict[str, str]) -> None:
    """A member by this line, until it has trained, and then Ctrl-C."""
    with subprocess.Popen(
        ["sh", "-c", f"exec {line} --logs json"], cwd=place, env=variables, stdout=subprocess.PIPE, text=True
    ) as member:
        assert member.stdout is not None
        ends, said = time.monotonic() + LONG, []
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
@pytest.mark.timeout(1800)
def test_an_owner_and_a_provider_go_by_their_pages(project: Path, variables: dict[str, str], rpc: str) -> None:
    there = variables | {"RPC": rpc}
    for line in lines("owner", "Install", "The first time, on this machine alone"):
        if line != "aftermath-solana localnet":  # which is there
            called(line, project, there)
    for line in lines("provider", "Install", "May I, and does it fit?", "Take part"):
        if " train " in line:
            trained(line, project, there)
        else:
            called(line, project, there)
    for line in lines("provider", "Stay"):
        if "events tail" not in line:  # which goes on
            called(line, project, there)
    for line in lines("owner", "The end"):
        called(line, project, there)
    for line in lines("provider", "Leave"):
        called(line, project, there)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_researcher_goes_by_its_page(project: Path, variables: dict[str, str]) -> None:
    for line in lines("researcher", "The first comparison"):
        called(line, project, variables)
    assert (project / "runs/lab/events.csv").stat().st_size
