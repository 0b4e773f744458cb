"""The commands of `aftermath-centralized`: their help, their page and their errors."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair
from typer.testing import CliRunner

from aftermath.cli import commands_page
from aftermath.cli.train import settings_options
from aftermath.config.chain_values import checkpoint_of, location_of
from aftermath.config.document import load_config
from aftermath.data.data_server import load_server_settings
from aftermath.rules.state import DataKind
from aftermath.server.commands_page import PREFACE
from aftermath.server.index import CENTRALIZED
from aftermath.server.state_file import load_state_file
from cli.cli_runs import invoke as run_command
from config.config_cases import SEED

ROOT = Path(__file__).parents[2]
NAMES = pytest.mark.parametrize("name", CENTRALIZED.entries)


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(CENTRALIZED.app, [str(word) for word in arguments])


def refused(*arguments: str | Path) -> str:
    result = invoke(*arguments)
    assert result.exit_code in (1, 2), result.output
    error: str = result.stderr
    assert error.startswith("error: ")
    assert "\nfix: " in error
    return error


@NAMES
def test_server_help_has_valid_example_and_index_summary(name: str) -> None:
    command = CENTRALIZED.load(name)
    arguments = name.split()
    shown = invoke(*arguments, "--help")
    assert shown.exit_code == 0
    assert CENTRALIZED.entries[name].summary in " ".join(shown.output.split())
    example = shlex.split(CENTRALIZED.find(name).example)
    assert example[: 1 + len(arguments)] == [CENTRALIZED.name, *arguments]
    command.make_context(name, example[1 + len(arguments) :])


def test_server_commands_page_equals_help() -> None:
    page = (ROOT / "docs/commands-centralized.md").read_text()
    assert page == commands_page.page(CENTRALIZED, PREFACE), (
        "run: python -m aftermath.server.commands_page docs/commands-centralized.md"
    )


def test_help_imports_no_command() -> None:
    script = "import sys\nfrom aftermath.server.__main__ import main\nsys.argv[1:] = ['--help']\ntry:\n main()\n"
    script += "except SystemExit:\n print([m for m in ('torch', 'solders', 'aiohttp', 'iroh') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_usage_error_names_this_script() -> None:
    assert "aftermath-centralized --help lists the commands" in refused("server", "rum")
    assert "aftermath-centralized server run --help" in refused("server", "run", "-s", "99999")


def test_client_train_options_equal_train_without_cluster() -> None:
    options = {name for option in CENTRALIZED.load("client train").params for name in option.opts}
    assert {"--server-addr", "--matformer-tier", "--checkpoint-dir", "--tls-ca", "-i"} <= options
    assert not options & {
        "--rpc",
        "--wallet-private-key-path",
        "--authorizer",
        "--iroh-discovery",
        "--max-bond",
    }
    assert len(options) > len(settings_options()) / 2


def test_identity_is_32_bytes_or_hex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAW_IDENTITY_SECRET_KEY", raising=False)
    secret = bytes(range(32))
    path = tmp_path / "secret.key"
    path.write_bytes(secret)
    path.chmod(0o600)
    expected = str(Keypair.from_seed(secret).pubkey())
    show = ("client", "show-identity", "--json")
    assert json.loads(invoke(*show, "-i", path).stdout)["identity"] == expected
    first, second = (
        json.loads(invoke(*show, "-i", path, "--run-id", run).stdout)["p2p"] for run in ("a", "b")
    )
    assert first != second
    assert "show-identity --create -i secret.key" in refused("client", "show-identity")
    monkeypatch.setenv("RAW_IDENTITY_SECRET_KEY", secret.hex())
    assert json.loads(invoke(*show).stdout)["identity"] == expected
    path.write_bytes(b"short")
    assert "is not an identity key" in refused("client", "show-identity", "-i", path)


def test_show_identity_create_makes_private_key_once(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    command = ("client", "show-identity", "--create")
    identity = json.loads(invoke(*command, "-i", path, "--json").stdout)["identity"]
    assert path.stat().st_mode & 0o077 == 0
    assert "exists already" in refused(*command, "-i", path)
    assert json.loads(invoke(*command[:2], "-i", path, "--json").stdout)["identity"] == identity
    assert "--create needs a path" in refused(*command)


@pytest.mark.parametrize(
    "address", ["", "host", "host:0", "host:70000", "http://host:1", "a b:1", "h:1/x", "u@h:1"]
)
def test_invalid_server_address_is_refused(address: str) -> None:
    from aftermath.base.errors import UsageError
    from aftermath.server.client_backend import server_backend

    with pytest.raises(UsageError, match="is not a valid address"):
        server_backend(address, None, None)


def test_state_file_is_config_with_run_id(tmp_path: Path) -> None:
    path = tmp_path / "state.toml"
    path.write_text(SEED)
    assert load_state_file(path, "mine")[0] == "mine"
    assert "has no run_id" in refused("server", "validate-config", "--state", path)
    path.write_text(
        'run_id = "demo"\nrun_state = "WaitingForMembers"\n'
        + SEED
        + "\n[progress]\nepoch = 0\nstep = 1\n"
    )
    chosen, state = load_state_file(path, None, 77)
    assert (chosen, state.config.warmup_time) == ("demo", 77)
    assert load_state_file(path, "demo")[0] == "demo"
    assert "says 'demo'" in refused(
        "server", "validate-config", "--state", path, "--run-id", "other"
    )
    path.write_text(path.read_text().replace("step = 1", "step = 5"))
    assert "[progress] step" in refused("server", "validate-config", "--state", path)
    path.write_text('run_id = "demo"\nrun_idd = 1\n' + SEED)
    assert "run_idd" in refused("server", "validate-config", "--state", path)


def test_example_state_and_data_files_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run_id, state = load_state_file(ROOT / "config/centralized/state.toml", None)
    data = load_server_settings(ROOT / "config/centralized/data.toml")
    light = load_config(ROOT / "config/solana-test/light-config.toml")
    assert run_id == "demo"
    assert data.seq_len == state.llm.max_seq_len == light.llm.max_seq_len
    assert Path(data.dir).resolve() == Path(location_of(light.llm.data_location).primary).resolve()
    assert location_of(state.llm.data_location).kind is DataKind.SERVER
    assert checkpoint_of(state.llm.checkpoint) == checkpoint_of(light.llm.checkpoint)


def test_validate_config_prints_size_of_each_tier(tmp_path: Path) -> None:
    shape = ("--hidden", 32, "--layers", 1, "--intermediate", 64, "--tiers", 3)
    assert run_command("model", "init", "--out", tmp_path / "model", *shape).code == 0
    state = tmp_path / "state.toml"
    text = (
        (ROOT / "config/demo/config.toml")
        .read_text()
        .replace("runs/demo/model", str(tmp_path / "model"))
    )
    state.write_text('run_id = "demo"\n' + text)
    shown = invoke("server", "validate-config", "--state", state)
    assert shown.exit_code == 0, shown.output
    data = json.loads(invoke("server", "validate-config", "--state", state, "--json").stdout)
    for tier, size in enumerate(data["bytes_per_round"]):
        assert f"{size:,} by each member of tier {tier}" in shown.stdout


def refused_server_run(tmp_path: Path, *options: str | Path) -> str:
    path = tmp_path / "state.toml"
    path.write_text('run_id = "demo"\n' + SEED)
    return refused(
        "server", "run", "--state", path, "--host", "127.0.0.1", "--tui", "false", *options
    )


def garbage(path: Path) -> Path:
    path.write_text("neither a key nor TOML\n")
    return path


MISTAKES: list[tuple[str, Callable[[Path], list[str | Path]], str]] = [
    ("bad key", lambda folder: ["--allow", garbage(folder / "list")], "list:1 is not a public key"),
    ("no file", lambda folder: ["--allow", folder / "none"], "No such file"),
    ("key only", lambda folder: ["--tls-key", folder / "key"], "belong together"),
    (
        "bad certificate",
        lambda folder: [
            "--tls-key",
            garbage(folder / "key"),
            "--tls-certificate",
            garbage(folder / "cert"),
        ],
        "cannot use the certificate",
    ),
    (
        "data",
        lambda folder: ["--data-config", garbage(folder / "data.toml")],
        "does not read its data from a server",
    ),
    (
        "place",
        lambda folder: ["--save-state-dir", garbage(folder / "file") / "in"],
        "cannot create the directory",
    ),
]


@pytest.mark.parametrize(
    ("options", "error"), [(w, e) for _, w, e in MISTAKES], ids=[name for name, _, _ in MISTAKES]
)
def test_unusable_option_is_refused_before_server_starts(
    tmp_path: Path, options: Callable[[Path], list[str | Path]], error: str
) -> None:
    assert error in refused_server_run(tmp_path, *options(tmp_path))


async def test_port_in_use_is_refused() -> None:
    from aftermath.server.option_files import ServerError
    from server.in_process_server import serving

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServerError, match="the port is in use"):
            async with serving(port=taken.getsockname()[1]):
                pass
