"""Tests that an sdist, and a wheel built from it, work in a clean environment without the
checkout.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from xprocess import XProcess

from aftermath.programs import COORDINATOR_SO
from aftermath.testnet.files import configs
from docs.test_docs import slugs
from e2e.event_log import EventLog, compare_replicas
from e2e.processes import Running, until
from e2e.run_inputs import ROOT
from e2e.wheel_install import OURS, Installed, without_us


@pytest.mark.slow
def test_sdist_and_wheel_contain_user_files(installed: Installed) -> None:
    with tarfile.open(installed.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "config/demo/config.toml",
        "scripts/setup-run.sh",
    } <= names
    assert not [name for name in names if name.startswith((".venv/", "runs/", "target/"))]
    with zipfile.ZipFile(installed.wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert files["aftermath/programs/coordinator.so"] == COORDINATOR_SO.read_bytes()
    for path in configs():
        for one in (path, path.with_suffix(".files.toml")):
            inside = f"aftermath/shipped/{one.relative_to(ROOT / 'config')}"
            assert files.get(inside) == (one.read_bytes() if one.exists() else None)
    for page in (ROOT / "docs").glob("*.md"):
        assert files[f"aftermath/docs/{page.name}"] == page.read_bytes()
    code = {str(path.relative_to(ROOT / "client")) for path in (ROOT / "client").rglob("*.py")}
    assert code <= files.keys()


@pytest.mark.slow
def test_error_docs_page_is_in_package(installed: Installed, tmp_path: Path) -> None:
    script = installed.scripts / "aftermath-solana"
    (tmp_path / "run.toml").write_text("[config]\nnonsense = 1\n")
    line = [script, "estimate", "--config", "run.toml", "--json"]
    completed = subprocess.run(
        line, cwd=tmp_path, env=without_us(), capture_output=True, text=True, check=False
    )
    page, _, section = json.loads(completed.stderr.splitlines()[-1])["docs"].partition("#")
    assert Path(page).is_relative_to(installed.place)
    assert section in slugs(Path(page))


# Forty CPU seconds. What the package has and that its command starts are slow tests above.
@pytest.mark.nightly
def test_installed_testnet_without_checkout_trains(
    installed: Installed, xprocess: XProcess, tmp_path: Path
) -> None:
    where = installed.python("-c", "import aftermath; print(aftermath.__file__)").strip()
    assert Path(where).is_relative_to(installed.place)
    assert "is not installed" in installed.python(
        "-c",
        "from aftermath.kernels.runtime import unavailable_reason; print(unavailable_reason())",
    )
    place = tmp_path / "testnet"
    script = installed.scripts / "aftermath-solana"
    line = [
        script,
        "local-testnet",
        "start",
        "--num-clients",
        "3",
        "--config-path",
        "demo",
        "--server-port",
        "0",
    ]
    line += [
        "--client-device",
        "cpu",
        "--client-matformer-tiers",
        "0,1,2",
        "--dir",
        place,
        "--headless",
        "--json",
    ]
    enter = [
        sys.executable,
        "-c",
        "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])",
    ]
    unset = dict.fromkeys(OURS, "")
    testnet = Running(xprocess, "wheel", [*enter, tmp_path, *line], unset)
    event_logs = {
        name: EventLog(place / "events" / name) for name in ("client-1", "client-2", "client-3")
    }
    until(
        lambda: all(event_log.events_of("applied") for event_log in event_logs.values()),
        "they train",
        watched=testnet.check,
    )
    testnet.expected = False
    testnet.interrupt(60)
    assert testnet.code == 130
    summary = json.loads(testnet.output[testnet.output.index("\n{\n") :])
    assert (summary["ending"], summary["failed"], summary["differing"]) == ("left", [], [])
    assert compare_replicas(event_logs) > 0
    assert (tmp_path / "runs" / "demo" / "model" / "config.json").exists()
