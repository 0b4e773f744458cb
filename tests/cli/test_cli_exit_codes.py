"""Tests that invalid command lines exit with 2 before anything is done, and problems of files exit
with 1.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from aftermath.cli.index import Index
from aftermath.cli.main import SOLANA
from aftermath.server.index import CENTRALIZED
from cli.cli_runs import invoke, invoke_ending
from cli.test_cli_decode_gradients import put, result_of
from cli.test_cli_outputs import events_in, everything_in
from member.result_inbox import SCHEMA

USAGE = [
    "init --out .",
    "plot events --out loss.gif",
    "plot events --out loss",
    "events events --kind nothing",
    "run-files nowhere",
    "model init --out model --preset nothing",
    "model init --out model --hidden 10 --heads 3",
    "model export --src model --tiers 0",
    "data inspect",
    "data tokenize --input run.toml --output tokens --held-out tokens",
    "config explain nothing",
    "config set rpc nothing",
    "show-identity --create",
    "localnet --reset",
    "train-local --config-path run.toml --out lab --steps 1 --shares 1",
    "train --run-id x --device nothing",
]
FOUND = [
    "decode-gradients step-1.result step-2.result --out .",
    "plot none",
    "plot events --out events",
    "preview-lr --config-path none.toml",
    "preview-lr --config-path run.toml --plot none/rates.png",
    "decode-gradients none",
    "events none",
    "run-files run.files.toml",
    "config validate none.toml",
    "estimate --config-path none.toml",
    "model init --out events",
    "model inspect --model none",
    "model verify --model none",
    "model export --src none --tiers 1",
    "data inspect --data-path none",
    "data inspect --config-path none.toml",
    "config unset run",
    "init --out run.toml",
    "show-identity -w none.json",
    "show-identity --create -w run.toml",
    "localnet --reset --ledger events",
    "train --run-id x -w none.json",
]
OF_SERVERS = {
    "server run --state run.toml --run-id x --tls-key none": 2,
    "client train --run-id x --server-addr nothing": 2,
    "client show-identity": 2,
    "server validate-config --state none.toml": 1,
    "client train --run-id x --server-addr 127.0.0.1:9 -i none.key": 1,
    "client show-identity -i none.key": 1,
}
CASES = [
    *((SOLANA, line, 2) for line in USAGE),
    *((SOLANA, line, 1) for line in FOUND),
    *((CENTRALIZED, line, code) for line, code in OF_SERVERS.items()),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exit-codes")
    assert invoke("init", "--out", root / "run.toml").code == 0
    events_in(root)
    for step in (1, 2):
        put(root, result_of(SCHEMA, step)).rename(root / f"step-{step}.result")
    return root


@pytest.mark.parametrize(
    ("script", "line", "code"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_error_exits_2_only_for_usage_and_changes_nothing(
    script: Index, line: str, code: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = everything_in(place)
    outcome = invoke_ending(*line.split(), "--json", script=script.app)
    assert outcome.code == code, outcome.err
    assert (outcome.error_json["code"] == "usage") is (code == 2)
    assert everything_in(place) == before


def test_missing_member_key_error_names_create_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = "client train --run-id x --server-addr 127.0.0.1:9 --json -i"
    fix = invoke_ending(*line.split(), "my nope.key", script=CENTRALIZED.app).error["fix"]
    command = fix.partition("aftermath-centralized ")[2]
    assert command == "client show-identity --create -i 'my nope.key'"
    assert invoke(*shlex.split(command), script=CENTRALIZED.app).code == 0
