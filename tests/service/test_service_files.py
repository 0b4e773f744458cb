"""Test that Dockerfile, compose.yaml and the systemd unit name existing commands and files, and
contain no key.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from aftermath.cli.main import SOLANA
from aftermath.cli.train import ENVIRONMENT_ONLY
from aftermath.member.stake import SAVE_SECONDS
from service.compose_file import ROOT, services

DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
UNIT = ROOT / "packaging" / "aftermath-member.service"
MEMBERS = ("member-0", "member-1", "member-2")


def parsed(words: list[str]) -> dict[str, object]:
    """Return the parsed arguments of a command line. Fail if it is not valid."""
    name = SOLANA.command_of(words)
    assert name, words
    return SOLANA.load(name).make_context(name, words[len(name.split()) :]).params


def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser


def copied() -> list[str]:
    """Return the files of this directory that the image copies."""
    lines = [line.split()[1:] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
    return [word for words in lines if not words[0].startswith("--") for word in words[:-1]]


# --- containers


@pytest.mark.parametrize("name", [name for name in services() if name != "owner"])
def test_service_commands_are_valid(name: str) -> None:
    program, *words = services()[name].command
    assert program == "aftermath-solana"
    parsed(words)


def test_owner_script_lines_are_valid_commands() -> None:
    shell, _, script = services()["owner"].command
    assert shell == "sh"
    lines = re.findall(
        r"aftermath-solana ((?:[^|&;<>)\n\"]|\"[^\"]*\")+)", re.sub(r"\d?> ?\S+", "", script)
    )
    called = [SOLANA.command_of(words) for line in lines if parsed(words := shlex.split(line))]
    assert called == [
        "show-identity",
        "run-files",
        "json-dump-run",
        "create-run",
        "update-config",
        "set-paused",
    ]
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


def test_compose_members_differ_by_number_and_keep_their_wallet() -> None:
    tiers = {int(str(parsed(services()[name].command[1:])["matformer_tier"])) for name in MEMBERS}
    assert tiers == {0, 1, 2}
    assert len({services()[name].environment["METRICS_PORT"] for name in MEMBERS}) == 3
    for name in MEMBERS:
        service = services()[name]
        assert parsed(service.command[1:])["wallet_private_key_path"] == Path(f"/keys/{name}.json")
        assert service.restart == "on-failure:10"
        assert "keys:/keys:ro" in service.entry["volumes"]


def test_container_user_has_minimal_rights() -> None:
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE) == ["10001:10001"]
    for service in services().values():
        assert service.entry["read_only"]
        assert service.entry["cap_drop"] == ["ALL"]
        assert service.entry["security_opt"] == ["no-new-privileges:true"]
        ports = service.entry.get("ports", [])
        assert all(str(port).startswith("127.0.0.1:") for port in ports), "for this machine only"


def test_image_and_commands_contain_no_key() -> None:
    allowed = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    assert sorted(allowed) == sorted(copied())
    assert not {"keys", "runs", "."} & {*copied()}
    texts = [
        DOCKERFILE,
        UNIT.read_text(),
        *(" ".join(service.command) for service in services().values()),
    ]
    texts += [" ".join(service.environment) for service in services().values()]
    for secret in (
        "RAW_WALLET_PRIVATE_KEY",
        "RAW_IDENTITY_SECRET_KEY",
        "HF_TOKEN",
        "WANDB_API_KEY",
    ):
        assert not [text for text in texts if secret in text]


def test_image_healthcheck_queries_metrics_port_of_train() -> None:
    (line,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert "os.environ['METRICS_PORT']" in line
    (port,) = re.findall(r"METRICS_PORT=(\d+)", DOCKERFILE)
    variables = {str(option.envvar) for option in SOLANA.load("train").params}
    assert "METRICS_PORT" in variables
    assert int(port) == 9100


@pytest.mark.slow
def test_image_files_suffice_for_package_build(tmp_path: Path) -> None:
    """Run the build's last command in a folder with only the copied files."""
    place = tmp_path / "src"
    place.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, place)
    assert 'pip install ".[$EXTRAS]"' in DOCKERFILE
    line = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--disable-pip-version-check",
        "-w",
        tmp_path,
        ".",
    ]
    completed = subprocess.run(line, cwd=place, capture_output=True, text=True, check=False)
    if "hatchling" in completed.stderr:
        pytest.skip("hatchling cannot be had here")
    assert completed.returncode == 0, completed.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"aftermath/programs/coordinator.so", "aftermath/shipped/demo/config.toml"} <= names


def test_compose_file_equals_our_reading() -> None:
    """Use any installed compose command. It does not need a running Docker."""
    for line in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(line[0])
            and subprocess.run([*line, "version"], capture_output=True).returncode == 0
        ):
            break
    else:
        pytest.skip("neither docker compose nor docker-compose is installed")
    line += ["-f", str(ROOT / "compose.yaml"), "config", "--services"]
    completed = subprocess.run(line, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert {*completed.stdout.split()} == {*services()}


# --- systemd unit


def test_every_stop_timeout_allows_saving_model() -> None:
    """The unit, the containers and the page allow 10 s more than a save may take."""
    unit_text = UNIT.read_text()
    compose = (ROOT / "compose.yaml").read_text()
    page = (ROOT / "docs" / "operations.md").read_text()
    docker = page[page.index("docker run -d --name member") :]
    matches = [
        re.search(r"^TimeoutStopSec=(\d+)$", unit_text, re.MULTILINE),
        re.search(r"^  stop_grace_period: (\d+)s", compose, re.MULTILINE),
        re.search(r"--stop-timeout (\d+)", docker[: docker.index("```")]),
    ]
    seconds = [int(one[1]) for one in matches if one is not None]
    assert len(seconds) == len(matches)
    assert min(seconds) >= SAVE_SECONDS + 10


def test_systemd_unit_starts_member_with_given_key() -> None:
    service = unit()["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == "/opt/aftermath/bin/aftermath-solana"
    options = parsed([*words, "--run-id", "mine"])
    name, source = service["LoadCredential"].split(":")
    assert options["wallet_private_key_path"] == Path(f"%d/{name}")
    assert source == "/etc/aftermath/wallet.json"
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2 10 11 12")
    assert not {key for key in service if key.startswith("ExecStartPre")}, (
        "no other identity is made on the way"
    )


@pytest.mark.parametrize("file", ["packaging/member.env", ".env.example"])
def test_environment_file_variables_are_read_by_train(file: str) -> None:
    variables = {str(option.envvar) for option in SOLANA.load("train").params} | {
        *ENVIRONMENT_ONLY.values()
    }
    lines = (ROOT / file).read_text().splitlines()
    names = [line.lstrip("#").split("=")[0] for line in lines if re.match(r"#?[A-Z_0-9]+=", line)]
    assert len(names) > 5
    assert {*names} - variables == {"WANDB_API_KEY"}, "which wandb reads by itself"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_unit(tmp_path: Path) -> None:
    """`systemd-analyze` also checks that the program exists, so Python takes its place."""
    own = tmp_path / UNIT.name
    own.write_text(UNIT.read_text().replace("/opt/aftermath/bin/aftermath-solana", sys.executable))
    line = ["systemd-analyze", "verify", "--man=no", own]
    completed = subprocess.run(line, env=os.environ, capture_output=True, text=True, check=False)
    if "Failed to initialize manager" in completed.stderr:
        pytest.skip(f"systemd cannot check units here: {completed.stderr.strip()}")
    assert (completed.returncode, completed.stderr) == (0, "")
