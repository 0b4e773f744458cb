"""Tests of the profile: commands use stored values if neither the option nor its variable is
set.
"""

from __future__ import annotations

import itertools
import stat
from pathlib import Path
from typing import Any

import pytest
import typer

from aftermath.base.errors import AftermathError, UsageError
from aftermath.chain import defaults
from aftermath.chain.endpoints import CLUSTERS, endpoint
from aftermath.chain.wallet import PATH_VARIABLE, WALLET_VARIABLE, WalletError, create_wallet
from aftermath.cli.error_report import remember_profile, reporting
from aftermath.cli.index import Index
from aftermath.cli.main import INDEX, SOLANA, child_environment
from aftermath.cli.profile import KEY_VARIABLE, PROFILE_VARIABLE, VARIABLES, Name
from aftermath.coordinator.errors import NoSuchRun, Refused, Unavailable
from aftermath.server.index import CENTRALIZED
from cli.cli_runs import Shell, invoke

PARAMETERS = {
    Name.RPC: ("rpc", "--rpc"),
    Name.WS_RPC: ("ws_rpc", "--ws-rpc"),
    Name.WALLET: ("wallet_private_key_path", "-w"),
    Name.RUN: ("run_id", "--run-id"),
}
VALUES = {
    Name.RPC: ("http://flag:1", "http://variable:1", "http://profile:1"),
    Name.WS_RPC: ("ws://flag:1", "ws://variable:1", "ws://profile:1"),
    Name.WALLET: ("/flag.json", "/variable.json", "/profile.json"),
    Name.RUN: ("flag", "variable", "profile"),
}
"""From an option, a variable and the profile."""


@pytest.fixture(autouse=True)
def profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv(PROFILE_VARIABLE)
    return tmp_path / "config" / "aftermath" / "profile.toml"


def taken(command: str, *words: str, script: Index = SOLANA) -> dict[str, Any]:
    """Return the option values of a command line."""
    parameters: dict[str, Any] = script.load(command).make_context(command, list(words)).params
    return parameters


def store(**values: str) -> None:
    for name, value in values.items():
        assert invoke("config", "set", name.replace("_", "-"), value).code == 0


def test_profile_names_equal_options() -> None:
    assert (KEY_VARIABLE, VARIABLES[Name.WALLET]) == (WALLET_VARIABLE, PATH_VARIABLE)
    for name, (parameter, _) in PARAMETERS.items():
        (option,) = [one for one in SOLANA.load("tick").params if one.name == parameter]
        assert option.envvar == VARIABLES[name]


def test_profile_values_are_stored_shown_and_unset(profile: Path) -> None:
    data = invoke("config", "set", "run", "demo", "--json").data
    assert data == {"name": "run", "value": "demo", "file": str(profile)}
    assert stat.S_IMODE(profile.stat().st_mode) == 0o600
    assert stat.S_IMODE(profile.parent.stat().st_mode) == 0o700
    store(rpc="http://10.0.0.1:8899")
    shown_profile = invoke("config", "show", "--json").data
    assert shown_profile["file"] == str(profile)
    assert shown_profile["values"]["run"] == {"value": "demo", "from": "profile"}
    assert shown_profile["values"]["rpc"] == {"value": "http://10.0.0.1:8899", "from": "profile"}
    assert shown_profile["values"]["wallet"]["from"] == "default"
    assert invoke("config", "unset", "run", "--json").code == 0
    assert invoke("config", "show", "--json").data["values"]["run"] == {
        "value": None,
        "from": "default",
    }
    assert invoke("config", "unset", "run", "--json").error["error"] == "the profile has no run"
    assert stat.S_IMODE(profile.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("name", "sources"), itertools.product(Name, itertools.product([False, True], repeat=3))
)
def test_option_precedence_is_flag_variable_profile_default(
    monkeypatch: pytest.MonkeyPatch, name: Name, sources: tuple[bool, bool, bool]
) -> None:
    parameter, flag = PARAMETERS[name]
    by_flag, by_variable, by_profile = VALUES[name]
    has_flag, has_variable, has_profile = sources
    if has_profile:
        store(**{name: by_profile})
    if has_variable:
        monkeypatch.setenv(VARIABLES[name], by_variable)
    other = [] if name is Name.RUN else ["--run-id", "other"]
    words = [*other, *([flag, by_flag] if has_flag else [])]
    if not any(sources) and name is Name.RUN:
        assert invoke("tick", "--json").mistake["error"] == "--run-id is missing"
        return
    default = defaults.RPC if name is Name.RPC else None
    expected = (
        by_flag
        if has_flag
        else by_variable
        if has_variable
        else by_profile
        if has_profile
        else default
    )
    value = taken("tick", *words)[parameter]
    assert (None if value is None else str(value)) == expected


def test_profile_fills_options_of_every_command() -> None:
    """The exception is an option whose absence means all runs."""
    for command in INDEX:
        options = {one.name: one for one in SOLANA.load(command).params}
        flags = {flag for option in options.values() for flag in option.opts}
        for name, (parameter, flag) in PARAMETERS.items():
            if parameter not in options or flag not in flags:
                continue
            stored = options[parameter].type_descriptor.parameter_info.stored
            of_all_runs = name is Name.RUN and "all runs" in (options[parameter].help or "")
            assert stored == ("" if of_all_runs else name), command


def test_profile_websocket_applies_to_its_own_rpc_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store(rpc="http://a:1", ws_rpc="ws://a:2", run="demo")
    assert taken("tick")["ws_rpc"] == "ws://a:2"
    assert taken("tick", "--rpc", "http://b:1")["ws_rpc"] is None
    assert taken("tick", "--rpc", "http://b:1", "--ws-rpc", "ws://b:2")["ws_rpc"] == "ws://b:2"
    monkeypatch.setenv("RPC", "http://c:1")
    assert taken("tick")["ws_rpc"] is None
    assert invoke("config", "show", "--json").data["values"]["ws-rpc"] == {
        "value": None,
        "from": "default",
    }


def test_environment_key_precedes_profile_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store(wallet="/profile.json", run="demo")
    monkeypatch.setenv(WALLET_VARIABLE, "x")
    assert taken("tick")["wallet_private_key_path"] is None
    wallet = invoke("config", "show", "--json").data["values"]["wallet"]
    assert wallet == {"value": None, "from": f"variable {WALLET_VARIABLE}"}


def test_authorization_without_run_ignores_profile_run() -> None:
    store(run="demo")
    key = "1" * 32
    assert taken("join-authorization-create", "--authorizer", key)["run_id"] is None


def test_profile_does_not_apply_to_servers_and_local_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store(run="demo")
    words = ["--server-addr", "127.0.0.1:1", "--run-id", "other"]
    assert taken("client train", *words, script=CENTRALIZED)["run_id"] == "other"
    assert (
        taken("server validate-config", "--state", "state.toml", script=CENTRALIZED)["run_id"]
        is None
    )
    for name, value in child_environment().items():
        monkeypatch.setenv(name, value)
    assert invoke("tick", "--json").mistake["error"] == "--run-id is missing"


def test_error_names_values_from_profile(tmp_path: Path) -> None:
    store(wallet=str(tmp_path / "none.json"), run="demo", rpc="http://127.0.0.1:9/?api-key=secret")
    result = invoke("tick", "--rpc", "http://127.0.0.1:9", "--json").error
    assert result["code"] == "wallet"
    origin = f"From the profile: wallet {tmp_path / 'none.json'}, run demo (aftermath-solana config show)"
    assert result["fix"].endswith(origin)
    result = invoke("tick", "--json").error
    assert "rpc http://127.0.0.1:9, " in result["fix"]
    assert "secret" not in result["fix"]
    result = invoke(
        "tick",
        "--run-id",
        "x",
        "-w",
        tmp_path / "other.json",
        "--rpc",
        "http://127.0.0.1:9",
        "--json",
    ).error
    assert "profile" not in result["fix"]


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (Refused("NotMainAuthority", "run demo belongs to another wallet"), True),
        (NoSuchRun("there is no run 'other' on this cluster"), True),
        (Unavailable("nobody answered"), True),
        (WalletError("no wallet was given"), True),
        (UsageError("demo cannot be meant"), True),
        (Refused("NotHalted", "the run is not paused"), False),
        (Refused("StepsDone", "the run has trained all its steps"), False),
        (Refused("TooManyDelegates", "an authorization has at most 64 delegates"), False),
        (UsageError("--count must be a whole number"), False),
    ],
    ids=lambda value: getattr(value, "code", value),
)
def test_error_names_the_profile_only_where_it_applies(
    error: AftermathError, names: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    remember_profile({"run": "demo"})
    try:
        with pytest.raises(typer.Exit), reporting(as_json=True):
            raise error
    finally:
        remember_profile({})
    assert ("From the profile: run demo" in capsys.readouterr().err) is names


def test_unrelated_error_does_not_name_profile(tmp_path: Path) -> None:
    store(run="demo")
    result = invoke("update-config", "--config-path", tmp_path / "none.toml", "--json").error
    assert result["code"] == "config"
    assert "profile" not in result["fix"]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("run", "x" * 33, "is not a valid run id"),
        ("rpc", "localhost", "not an RPC address"),
        ("ws-rpc", "http://x", "not an RPC address"),
        ("ws-rpc", "", "not an RPC address"),
        ("wallet", "", "the path for wallet is empty"),
        ("rpc", "http://\udcff", "not text"),
        ("colour", "blue", "name must be one of rpc, ws-rpc, wallet, run"),
    ],
)
def test_invalid_profile_value_is_not_stored(
    profile: Path, name: str, value: str, says: str
) -> None:
    store(run="demo")
    before = profile.read_bytes()
    assert says in invoke("config", "set", name, value, "--json").mistake["error"]
    assert profile.read_bytes() == before


@pytest.mark.parametrize(
    "value", [*CLUSTERS, "http://host:1", "mainnet-beta", "host", "", "ws://x"]
)
def test_profile_rpc_is_validated_like_the_option(value: str, tmp_path: Path) -> None:
    stores = invoke("config", "set", "rpc", value, "--json")
    try:
        endpoint(value)
    except UsageError:
        create_wallet(tmp_path / "wallet.json")
        takes = invoke(
            "tick", "--rpc", value, "--run-id", "x", "-w", tmp_path / "wallet.json", "--json"
        ).mistake
        assert takes["error"] == stores.mistake["error"]
        assert takes["fix"] == f"{stores.mistake['fix']}; see --rpc (the variable RPC)"
    else:
        assert invoke("config", "show", "--json").data["values"]["rpc"] == {
            "value": value,
            "from": "profile",
        }


@pytest.mark.parametrize("value", ["a/b c", "x" * 32, "x" * 33, "", "ä" * 17, "a\0b"])
def test_profile_run_id_is_validated_like_the_option(value: str) -> None:
    """The program accepts any bytes as a run id, so use a new id that people can type."""
    takes = invoke("show-identity", "--run-id", value, "-w", "none.json", "--json").error_json
    stores = invoke("config", "set", "run", value, "--json")
    if stores.code == 0:
        assert takes["code"] == "wallet"
    else:
        assert takes["error"] == stores.mistake["error"]
        assert takes["fix"].startswith(stores.mistake["fix"])


def test_profile_wallet_key_is_refused(profile: Path, tmp_path: Path) -> None:
    keypair = create_wallet(tmp_path / "wallet.json").keypair
    for secret in (str(list(bytes(keypair))), str(keypair), "[1,2"):
        outcome = invoke("config", "set", "wallet", secret, "--json")
        assert "a private key was passed" in outcome.error["error"]
        assert secret not in outcome.out + outcome.err
    address = invoke("config", "set", "wallet", keypair.pubkey(), "--json").error
    assert address["error"] == f"{keypair.pubkey()} is an address, not a key file"
    assert not profile.exists()


def test_profile_relative_path_is_stored_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    create_wallet(tmp_path / "wallet.json")
    outcome = invoke("config", "set", "wallet", "wallet.json", "--json")
    assert outcome.data["value"] == str(tmp_path / "wallet.json")
    assert "warning" not in outcome.err
    assert "there is no key file" in invoke("config", "set", "wallet", "other.json").err


@pytest.mark.parametrize(
    "text", ["rpc = ", "colour = 'blue'", "run = 1", "[run]", b"\xff", b"#" * (1 << 17)]
)
def test_invalid_profile_file_is_reported_and_kept(profile: Path, text: str | bytes) -> None:
    profile.parent.mkdir(parents=True)
    raw = text if isinstance(text, bytes) else text.encode()
    profile.write_bytes(raw)
    for line in (("tick", "--run-id", "x"), ("config", "show"), ("config", "set", "run", "x")):
        result = invoke(*line, "--json").error
        assert result["code"] == "profile"
        assert str(profile) in result["error"]
    assert profile.read_bytes() == raw
    assert invoke("tick", "--help").code == 0
    # this command uses nothing from the profile
    assert invoke("model", "inspect", "nowhere", "--json").error_json["code"] != "profile"


def test_invalid_handwritten_profile_value_names_its_file(profile: Path) -> None:
    profile.parent.mkdir(parents=True)
    profile.write_text(f'run = "{"x" * 33}"\n')
    result = invoke("tick", "--json").mistake
    assert "is not a valid run id" in result["error"]
    assert "From the profile: run xxx" in result["fix"]


def test_profile_path_may_be_changed_or_disabled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(PROFILE_VARIABLE, str(tmp_path / "devnet.toml"))
    store(run="there")
    assert (tmp_path / "devnet.toml").is_file()
    assert taken("tick")["run_id"] == "there"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(PROFILE_VARIABLE, str(tmp_path / "file" / "profile.toml"))
    assert invoke("config", "set", "run", "x", "--json").error["code"] == "profile"
    monkeypatch.setenv(PROFILE_VARIABLE, "")
    assert (
        invoke("config", "set", "run", "x", "--json").error["fix"]
        == "Unset it, or set it to the path of a file"
    )
    assert invoke("config", "show", "--json").data["file"] is None


def test_help_explains_option_precedence() -> None:
    text = " ".join(invoke("--help").out.split())
    assert (
        "also read an environment variable: --run-id reads RUN_ID; after that comes the profile (config set)"
        in text
    )
    assert "flag, variable, profile, default" in " ".join(
        invoke("config", "set", "--help").out.split()
    )


def test_profile_suffices_to_own_run(owner: Shell, run_id: str) -> None:
    store(rpc=owner.rpc, wallet=str(owner.wallet), run=run_id)
    data = invoke("create-run", "--json").data
    assert data["run_id"] == run_id
    assert data["main_authority"] == invoke("show-identity", "--json").data["wallet"]
    assert invoke("show-run", "--json").data["run_id"] == run_id
    assert invoke("close-run", "--yes", "--json").code == 0
    result = invoke("json-dump-run", "--json").error
    assert run_id in result["error"]
    assert result["fix"].endswith(
        f"From the profile: rpc {owner.rpc}, run {run_id} (aftermath-solana config show)"
    )
