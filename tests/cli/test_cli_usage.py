"""Tests that mistakes in a command line look like other errors, as text and as JSON, and exit with
2.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from aftermath.cli.main import INDEX, load
from cli.cli_runs import invoke, invoke_ending

MISTAKES = [
    ("creat-run", "there is no command 'creat-run'", "Did you mean create-run?"),
    ("--nonsense", "there is no option --nonsense", "aftermath-solana --help"),
    (
        "tick --cont 3",
        "there is no option --cont",
        "Did you mean --count? aftermath-solana tick --help",
    ),
    (
        "rewind --step 3",
        "there is no option --step",
        "Did you mean --to-step? aftermath-solana rewind --help",
    ),
    (
        "train --bogus",
        "there is no option --bogus",
        "aftermath-solana train --help lists the options",
    ),
    ("train --matformer 1", "there is no option --matformer", "Did you mean --matformer-tier?"),
    ("train --run_id x", "there is no option --run_id", "Did you mean --run-id?"),
    ("tick", "--run-id is missing", "Pass --run-id, or set RUN_ID"),
    (
        "create-run --run-id x --client-version any",
        "clients of a version with that name",
        "version ''",
    ),
    (
        "update-config --run-id x --client-version ALL",
        "--client-version ALL would admit only",
        "--client-version ''",
    ),
    ("tick --run-id", "--run-id needs a value", "aftermath-solana tick --help"),
    ("tick --run-id x --count many", "--count must be a whole number of at least 1", "tick --help"),
    ("tick --run-id x --count 0", "--count must be a whole number of at least 1", "tick --help"),
    ("tick --run-id x twice", "'twice' is not expected here", "tick --help"),
    (
        "train --run-id x --keep-steps 0",
        "--keep-steps must be a whole number of at least 1",
        "train --help",
    ),
    (
        "train --run-id x --matformer-tier 9",
        "--matformer-tier must be auto, or a whole number from 0 to 7",
        "train --help",
    ),
    (
        "train --run-id x --bind-p2p-port 70000",
        "--bind-p2p-port must be a whole number from 0 to 65535",
        "train",
    ),
    (
        "train --run-id x --iroh-relay psyche",
        "--iroh-relay 'psyche' is not auto, disabled, n0 or a relay URL",
        "https://relay",
    ),
    (
        "train --run-id x --iroh-relay ftp://host",
        "--iroh-relay 'ftp://host' is not auto",
        "with its scheme, for example https://",
    ),
    (
        "train --run-id x --iroh-relay https://host:99999",
        "is not auto, disabled, n0 or a relay URL",
        "http://192.168.1.5:3340",
    ),
    (
        "train --run-id x --iroh-relay https://me:pw@host:1/",
        "more than a relay's host",
        "only https://host:1",
    ),
    (
        "train --run-id x --iroh-relay https://host/a?b",
        "more than a relay's host and port",
        "only https://host",
    ),
    (
        "train --run-id x --delete-old-steps=yes",
        "--delete-old-steps takes no value",
        "train --help",
    ),
    ("train --run-id " + "x" * 33, "is not a valid run id", "1 to 32 bytes"),
    ("train --run-id \udcff", "the run id is not text", "UTF-8"),
    (
        "create-run --run-id two\x1b[2J",
        "run id 'two\\x1b[2J' has outer spaces or characters that people cannot tell apart",
        "can type",
    ),
    (
        "create-run --run-id e\u0301",
        "has outer spaces or characters that people cannot tell apart",
        "Choose an id that people can type",
    ),
    ("create-run --run-id x --name " + "n" * 65, "--name has 65 bytes", "at most 64 bytes"),
    (
        "update-config --run-id x --description " + "é" * 141,
        "--description has 282 bytes",
        "at most 280 bytes",
    ),
    (
        "update-config --run-id x --config-path=",
        "the path for --config-path is empty",
        "leave the option out",
    ),
    (
        "update-config --run-id x --num-parameters 1" + "0" * 20,
        "--num-parameters must be a whole number from 0",
        "help",
    ),
    (
        "update-config --run-id x --restart-from-step 5000000000",
        "--restart-from-step must be a whole",
        "help",
    ),
    (
        "checkpoint --run-id x --repo not-a-repo",
        "--repo 'not-a-repo' is not a valid repository name",
        "OWNER/NAME",
    ),
    (
        "checkpoint --run-id x --repo a/b/c",
        "--repo 'a/b/c' is not a valid repository name",
        "OWNER/NAME",
    ),
    ("checkpoint --run-id x", "the checkpoint's location is missing", "Pass --repo or --path"),
    (
        "checkpoint --run-id x --repo a/b --path c",
        "--repo and --path contradict each other",
        "Pass one of them",
    ),
    ("set-paused --run-id x halt", "action must be one of pause, resume", "set-paused --help"),
    ("localnet --engine fast", "--engine must be one of embedded, validator", "localnet --help"),
    ("localnet --port -1", "--port must be a whole number from 0 to 65534", "localnet --help"),
]


def test_missing_argument_error_names_command() -> None:
    mistake = invoke("config", "explain", "--json").mistake
    assert mistake["error"] == "key is missing"
    assert mistake["fix"].startswith("aftermath-solana config explain KEY; ")


@pytest.mark.parametrize(
    ("line", "sentence", "fix"), MISTAKES, ids=[mistake[0][:40] for mistake in MISTAKES]
)
def test_usage_errors_all_have_one_form(line: str, sentence: str, fix: str) -> None:
    lines = invoke(*line.split()).err.splitlines()
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("fix: ")
    assert len(lines) == 2
    assert ("Did you mean" in lines[1]) == ("Did you mean" in fix)
    first, *rest = line.split()
    result = invoke(first, "--json", *rest).mistake
    assert sentence in result["error"]
    assert sentence in lines[0]
    assert fix in result["fix"]


@pytest.mark.parametrize(
    ("line", "error", "fix"),
    [
        (
            "--json show-run",
            "--json is before the command",
            "Write --json after the command: aftermath-solana show-run --json",
        ),
        (
            "--run-id x model init --out y",
            "there is no option --run-id",
            "aftermath-solana --help lists the options",
        ),
        (
            "--out y model init",
            "--out is before the command",
            "Write --out after the command: aftermath-solana model init --out VALUE",
        ),
        (
            "-w owner.json tick --run-id x",
            "-w is before the command",
            "Write -w after the command: aftermath-solana tick -w VALUE",
        ),
    ],
)
def test_option_before_command_error_names_correct_order(line: str, error: str, fix: str) -> None:
    result = invoke(*line.split(), *(() if "--json" in line else ("--json",))).mistake
    assert (result["error"], result["fix"]) == (error, fix)


def test_invalid_variable_value_error_names_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAX_PRIORITY_FEE", "plenty")
    result = invoke("tick", "--run-id", "x", "--json").mistake
    assert result["error"] == "the variable MAX_PRIORITY_FEE must be a whole number of at least 0"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("train", "--authorizer"),
        ("can-join", "--authorizer"),
        ("join-authorization-read", "--authorizer"),
        ("train", "--coordinator-program-id"),
        ("train", "--device"),
        ("train", "--hub-repo"),
        ("train", "--bind-p2p-interface"),
        ("can-join", "--coordinator-program-id"),
    ],
)
def test_invalid_value_error_is_equal_in_all_commands(
    command: str, option: str, tmp_path: os.PathLike[str]
) -> None:
    """Like all commands, `train` checks its options before it looks for a network or a wallet."""
    needed = {"can-join": ["--run-id", "x", "--address", "1" * 32], "train": ["--run-id", "x"]}
    line = [
        command,
        *needed.get(command, ["--join-authority", "1" * 32]),
        option,
        "nonsense",
        "--rpc",
        "http://127.0.0.1:9",
    ]
    outcome = invoke_ending(*line, "--json")
    assert "nonsense" in outcome.mistake["error"]


def test_module_equals_command() -> None:
    def output(*words: str) -> str:
        line = [sys.executable, "-m", "aftermath", *words]
        # as wide as the runner's pages: 80 columns without a margin
        wide = os.environ | {"COLUMNS": "82"}
        return subprocess.run(line, capture_output=True, text=True, check=True, env=wide).stdout

    assert output("-h") == invoke("--help").out
    assert "Train one language model together" in output()


def test_help_fits_80_columns_without_cutting_names() -> None:
    for command in INDEX:
        page = invoke(*command.split(), "-h").out
        assert page == invoke(*command.split(), "--help").out
        options, _, example = page.partition("Example:")
        names = {
            name
            for option in load(command).params
            for name in (*option.opts, *option.secondary_opts)
        }
        flags = {name for name in names if name.startswith("-")}
        assert flags <= set(re.split(r"[\s,/]+", options)), command
        assert max(map(len, options.splitlines())) <= 80, command
        assert f"aftermath-solana {command}" in example


def test_index_shows_command_names_uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = invoke("-h").out
    assert not [name for name in INDEX if f"  {name} " not in page]
    assert max(map(len, page.splitlines())) <= 80
