"""Tests that each user mistake prints one sentence, a fix and an exit code. Nothing is sent, and no
traceback is shown.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest
import typer
from solders.keypair import Keypair
from typer.testing import CliRunner

from aftermath.cli import connection
from aftermath.cli.command import command
from aftermath.cli.error_report import reporting
from aftermath.cli.present import Result
from aftermath.programs import COORDINATOR_IDL
from cli.cli_lone_member import join, quick_config
from cli.cli_runs import CONSOLE, Shell, invoke, unread
from cli.conftest import new_run_id, new_user

ELSEWHERE = "http://0.0.0.0:9"
"""A fallback that refuses connections.

It is not a loopback address, so commands request no test SOL.
"""


@pytest.fixture(scope="module")
def owner(rpc: str, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return new_user(rpc, tmp_path_factory.mktemp("owner"))


@pytest.fixture(scope="module")
def run(owner: Shell) -> str:
    """Return a run that no test here changes, because everything that they send is refused."""
    run_id = new_run_id()
    assert owner("create-run", "--run-id", run_id).code == 0
    return run_id


def refusal(name: str) -> str:
    """Return the program's message for an error."""
    (message,) = [
        error["msg"]
        for error in json.loads(COORDINATOR_IDL.read_text())["errors"]
        if error["name"] == name
    ]
    return str(message)


@pytest.mark.parametrize(
    "name", ["json-dump-run", "close-run", "set-paused", "tick", "predownload", "update-config"]
)
def test_unknown_run_is_refused_with_fix(owner: Shell, name: str) -> None:
    more = {
        "update-config": ("--name", "x"),
        "close-run": ("--yes",),
        "set-paused": ("pause",),
    }.get(name, ())
    error = owner(name, "--run-id", "nowhere", *more).error
    assert "there is no run 'nowhere'" in error["error"]
    assert "list-runs" in error["fix"]


def test_wrong_program_id_is_refused(owner: Shell) -> None:
    other = str(Keypair().pubkey())
    error = owner("json-dump-run", "--run-id", "x", "--coordinator-program-id", other).error
    assert f"there is no program {other} on this cluster" in error["error"]
    assert "--coordinator-program-id" in error["fix"]


def test_invalid_program_id_is_refused(owner: Shell) -> None:
    outcome = owner("list-runs", "--coordinator-program-id", "nonsense")
    assert outcome.code == 2
    assert "is not a public key" in outcome.err


def test_too_long_run_id_is_refused(owner: Shell) -> None:
    assert "1 to 32 bytes" in owner("create-run", "--run-id", "x" * 33).mistake["fix"]


def test_run_of_another_owner_is_refused(owner: Shell, run: str, tmp_path: Path) -> None:
    invoke("show-identity", "--create", "-w", tmp_path / "other.json")
    other = Shell(owner.rpc, tmp_path / "other.json")
    refused = other("set-paused", "--run-id", run, "resume").error
    assert refused["error"] == f"run {run} belongs to another wallet"
    assert "-w FILE" in refused["fix"]
    assert "belongs to another wallet" in other("create-run", "--run-id", run).error["error"]


def test_resume_before_configuration_is_refused(owner: Shell, run: str) -> None:
    refused = owner("set-paused", "--run-id", run, "resume").error
    assert refused["error"] == f"run {run} is not configured yet"
    assert f"update-config --run-id {run}" in refused["fix"]


def test_insufficient_funds_error_names_missing_amount(
    rpc: str, run_id: str, tmp_path: Path
) -> None:
    error = new_user(rpc, tmp_path)("create-run", "--run-id", run_id, "--rpc-2", ELSEWHERE).error
    assert "holds 0 SOL but needs" in error["error"]
    assert "is missing" in error["error"]
    assert "SOL" in error["fix"]


def test_local_network_funds_empty_wallet(owner: Shell, run: str) -> None:
    """The wallet was empty before the fixture's create-run, which a local network makes
    possible.
    """
    assert owner("json-dump-run", "--run-id", run).code == 0


CONFIG_MISTAKES = [
    ("min_clients = 2", "min_clients = 0", "MinClientsZero"),
    ("warmup_time = 60", "cooldown_time_x = 60", None),
    ("total_steps = 48", 'total_steps = "many"', None),
    ("rounds_per_epoch = 16", "rounds_per_epoch = 0", "EpochLengthMissing"),
    ("init_min_clients = 3", "init_min_clients = 1", "InitMinClientsOutOfRange"),
    ("global_batch_size_end = 12", "global_batch_size_end = 1", "BatchSizeShrinks"),
    ('architecture = "HfLlama"', 'architecture = "HfGpt"', None),
    ("compression_topk = 8", "compression_top = 8", None),
    ("compression_chunk = 64", "compression_chunk = 5000", None),
]


@pytest.mark.parametrize(("right", "wrong", "name"), CONFIG_MISTAKES)
def test_invalid_config_is_refused(
    owner: Shell, run: str, run_dir: Path, tmp_path: Path, right: str, wrong: str, name: str | None
) -> None:
    """The error has the program's message with file and line. It comes before anything is sent, so
    the run does not change.
    """
    text = (run_dir / "config.toml").read_text()
    assert right in text
    path = tmp_path / "config.toml"
    path.write_text(text.replace(right, wrong, 1))
    before = owner("json-dump-run", "--run-id", run).data["run"]["seq"]
    error = owner("update-config", "--run-id", run, "--config-path", path).error["error"]
    assert f"{path}:" in error
    assert wrong.split(" ")[0] in error
    if name:
        assert refusal(name) in error
    assert owner("json-dump-run", "--run-id", run).data["run"]["seq"] == before


def test_missing_or_invalid_config_file_is_refused(owner: Shell, run: str, tmp_path: Path) -> None:
    missing = owner("update-config", "--run-id", run, "--config-path", tmp_path / "none.toml").error
    assert "none.toml" in missing["error"]
    (tmp_path / "bad.toml").write_text("[config\n")
    bad = owner("update-config", "--run-id", run, "--config-path", tmp_path / "bad.toml").error
    assert "is not valid TOML" in bad["error"]
    assert "line 1" in bad["error"]


def test_missing_checkpoint_is_refused(
    owner: Shell, run: str, run_dir: Path, tmp_path: Path
) -> None:
    text = (
        (run_dir / "config.toml")
        .read_text()
        .replace(str(run_dir / "model"), str(tmp_path / "gone"))
    )
    (tmp_path / "config.toml").write_text(text)
    assert (
        str(tmp_path / "gone")
        in owner("update-config", "--run-id", run, "--config-path", tmp_path / "config.toml").error[
            "error"
        ]
    )


def test_indivisible_width_error_names_nearest_width(
    owner: Shell, run: str, run_dir: Path, tmp_path: Path
) -> None:
    whole = json.loads((run_dir / "model/config.json").read_text())
    model = {key: value for key, value in whole.items() if not key.startswith("matformer_")}
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(model | {"intermediate_size": 250}))
    text = (
        (run_dir / "config.toml")
        .read_text()
        .replace(str(run_dir / "model"), str(tmp_path / "model"))
    )
    (tmp_path / "config.toml").write_text(text)
    error = owner("update-config", "--run-id", run, "--config-path", tmp_path / "config.toml").error
    assert "250" in error["error"]
    assert "252" in error["error"] + error["fix"]


def test_update_without_changes_is_refused(owner: Shell, run: str) -> None:
    for arguments in (("update-config",), ("set-future-epoch-rates",), ("checkpoint",)):
        outcome = owner(*arguments, "--run-id", run)
        assert outcome.code == 2
        assert json.loads(outcome.err)["fix"]


def test_pause_with_resume_is_refused(owner: Shell, run: str) -> None:
    assert owner("set-paused", "--run-id", run, "pause", "--resume").code == 2


def test_missing_wallet_is_refused_with_fix(rpc: str) -> None:
    outcome = invoke("create-run", "--rpc", rpc, "--run-id", "x")
    assert outcome.code == 1
    assert "no wallet was given" in outcome.err
    assert "show-identity --create" in outcome.err


@pytest.mark.parametrize(
    "content", ["", "[1, 2, 3]", "not a key", "[" + "1," * 63 + "1]", "[" * 4000]
)
def test_broken_wallet_error_names_file_and_hides_content(
    rpc: str, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    outcome = invoke("create-run", "--rpc", rpc, "--run-id", "x", "-w", path)
    assert outcome.code == 1
    assert str(path) in outcome.err
    assert not content or content not in outcome.err


def test_file_without_key_gets_no_chmod_advice(rpc: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a key")
    (tmp_path / "notes.txt").chmod(0o644)
    outcome = invoke("create-run", "--rpc", rpc, "--run-id", "x", "-w", tmp_path / "notes.txt")
    assert "is not a Solana private key" in outcome.err
    assert "chmod" not in outcome.err


def test_wallet_from_environment_is_used(rpc: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Keypair()
    monkeypatch.setenv("RAW_WALLET_PRIVATE_KEY", str(key))
    outcome = invoke("show-identity", "--run-id", "demo", "--json")
    assert outcome.data["wallet"] == str(key.pubkey())
    assert len(outcome.data["p2p"]) == 64
    assert str(key) not in outcome.out


def test_new_wallet_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "keys/new.json"
    assert invoke("show-identity", "--create", "-w", path).code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_text()
    assert "exists already" in invoke("show-identity", "--create", "-w", path).err
    assert path.read_text() == before
    assert invoke("show-identity", "--create").code == 2
    nowhere = invoke("show-identity", "--create", "-w", "/proc/new.json", "--json")
    assert nowhere.code == 1
    assert "cannot write the key file" in nowhere.error["error"]
    assert "Name a file" in nowhere.error["fix"]


def test_address_neither_key_nor_file_is_refused(owner: Shell, run: str) -> None:
    outcome = invoke("can-join", "--rpc", owner.rpc, "--run-id", run, "--address", "nobody")
    assert outcome.code == 2
    assert "neither a public key nor a key file" in outcome.err


def test_unreachable_rpc_is_refused_with_fix(owner: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE_SECONDS", 1.0)
    error = Shell("http://127.0.0.1:9", owner.wallet)("list-runs").error
    assert "no Solana RPC endpoint answered for 1 s" in error["error"]
    assert "aftermath-solana localnet" in error["fix"]


def test_fallback_rpc_answers_for_dead_first_rpc(owner: Shell) -> None:
    assert Shell("http://127.0.0.1:9", owner.wallet)("list-runs", "--rpc-2", owner.rpc).code == 0


@pytest.mark.parametrize(
    "address", ["localhost:8899", "ftp://localhost", "http://", "http://localhost:0", "http://[::1"]
)
def test_invalid_rpc_address_is_refused(owner: Shell, address: str) -> None:
    assert "is not an RPC address" in Shell(address, owner.wallet)("list-runs").mistake["error"]


def test_websocket_fallback_without_rpc_fallback_is_refused(owner: Shell) -> None:
    assert owner("list-runs", "--ws-rpc-2", "ws://localhost:1").code == 2


def test_unexpected_error_writes_private_traceback_file(tmp_path: Path) -> None:
    @command("broken", example="broken")
    def broken() -> Result:
        """Raise an unexpected error."""
        raise RuntimeError("secret detail")

    app = typer.Typer()
    app.command("broken")(broken.entry)
    result = CliRunner().invoke(app, ["--json"])
    assert result.exit_code == 1
    error = json.loads(result.stderr)
    (log,) = (tmp_path / "state/aftermath").iterdir()
    assert str(log) in error["fix"]
    assert "secret detail" in log.read_text()
    assert "secret detail" not in result.output
    assert log.stat().st_mode & 0o777 == 0o600


def test_file_errors_print_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception) as caught, reporting(as_json=False):
        Path("/nowhere/file").read_text()
    assert getattr(caught.value, "exit_code", None) == 1
    assert "No such file or directory: /nowhere/file" in capsys.readouterr().err


def test_command_with_closed_output_pipe_is_not_an_error() -> None:
    completed = unread([CONSOLE, "config", "show", "--json"])
    assert (completed.returncode, completed.stderr) == (0, "")
    assert unread([CONSOLE, "config", "show"]).stderr == ""


@pytest.mark.slow
def test_ctrl_c_ends_with_130(owner: Shell, run_id: str, run_dir: Path, tmp_path: Path) -> None:
    more_time = {"waiting_for_members_extra_time = 2": "waiting_for_members_extra_time = 250"}
    config = quick_config(run_dir, tmp_path, more_time)
    assert owner("create-run", "--run-id", run_id).code == 0
    assert owner("update-config", "--run-id", run_id, "--config-path", config).code == 0
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    # a deadline runs from now on, so that tick has something to do
    asyncio.run(join(owner, run_id, 0))
    line = [
        CONSOLE,
        "tick",
        "--rpc",
        owner.rpc,
        "--run-id",
        run_id,
        "-w",
        owner.wallet,
        "--ms-interval",
        "50",
    ]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "until Ctrl-C" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    try:
        _, stderr = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:  # the first one can arrive during an import
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        (">/dev/full", "cannot write the output: No space left on device"),
        ("--json >/dev/full", "cannot write the output: No space left on device"),
        ("--json >&-", "standard output is closed"),
    ],
)
def test_command_with_unwritable_output_reports_error(where: str, sentence: str) -> None:
    line = f'"{CONSOLE}" config show {where}'
    completed = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=240, check=False
    )
    assert completed.returncode == 1
    assert sentence in completed.stderr
    assert "unexpected" not in completed.stderr
