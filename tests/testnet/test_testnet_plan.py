"""Test the checks before a local testnet starts: options, config, and the clients to kill."""

from __future__ import annotations

import os
import shutil
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest

from aftermath.cli.main import load
from aftermath.cli.train import build_settings
from aftermath.config.document import load_config
from aftermath.config.recipe_file import recipe_of
from aftermath.events.trackers import TrackerOptions
from aftermath.testnet.chaos import ChaosSchedule
from aftermath.testnet.files import SHIPPED, chosen, configs, find, make_missing
from aftermath.testnet.plan import ClientExtras, LineOptions, LocalTestnetClient, LocalTestnetPlan
from cli.cli_runs import Outcome, invoke

DEMO = SHIPPED / "demo" / "config.toml"


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def start(*words: str | Path | int) -> Outcome:
    options = ("--num-clients", 3, "--config-path", DEMO, "--headless", "--json")
    return invoke("local-testnet", "start", *options, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--client-matformer-tiers", "0,3"], "no tier 3"),
        (["--client-matformer-tiers", "0;1"], "not a list of numbers"),
        (["--client-matformer-tiers", "0,0,1,2"], "more than --num-clients 3"),
        (["--num-clients", "2"], "waits for 3"),
        (["--num-clients", "0"], "--num-clients"),
        (["--allowed-to-kill", "0"], "there is no client 0"),
        (["--allowed-to-kill", "2,4"], "there is no client 4"),
        (["--random-kill-num", "4"], "only 3 clients may be killed"),
        (["--random-kill-num", "2", "--allowed-to-kill", "3,3"], "only 1 client may be killed"),
        (["--random-kill-interval", "0"], "--random-kill-interval"),
        (["--config-path", "nowhere"], "there is no config at nowhere"),
        (["--first-client-checkpoint", "nowhere"], "neither a directory nor a repository"),
        (["--log", "loud"], "--log"),
        (["--tui", "maybe"], "--tui"),
        (["--backend", "ethereum"], "--backend"),
        (["--wandb-group", "lab"], "needs a project"),
        (["--trackio-project", "a/b"], "is not a valid name"),
        (["--latency-ms", "-1"], "--latency-ms"),
        (["--loss", "51"], "--loss"),
        (["--bandwidth", "20"], "--bandwidth '20' is not UP/DOWN"),
        (["--bandwidth", "20/0"], "--bandwidth '20/0' is not UP/DOWN"),
    ],
)
def test_testnet_mistake_is_reported_before_anything_is_made(
    words: list[str], message: str, tmp_path: Path
) -> None:
    assert message in start(*words).mistake["error"]
    assert list(tmp_path.iterdir()) == []


def test_testnet_exit_time_needs_headless() -> None:
    options = ("--num-clients", 3, "--config-path", DEMO, "--headless-exit-after-secs", 5, "--json")
    assert "needs --headless" in invoke("local-testnet", "start", *options).mistake["error"]


def test_testnet_config_mistake_has_its_line(tmp_path: Path) -> None:
    wrong = tmp_path / "config.toml"
    wrong.write_text(DEMO.read_text().replace("min_clients = 2", "min_clients = -2"))
    error = start("--config-path", wrong).error
    assert error["code"] == "config"
    assert f"{wrong}:" in error["error"]


def test_testnet_uncreatable_config_files_are_named(tmp_path: Path) -> None:
    shutil.copy(DEMO, tmp_path / "config.toml")  # but not the file with their recipe
    mistake = start("--config-path", tmp_path).mistake
    assert "names runs/demo/model, which is not there" in mistake["error"]
    assert "aftermath-solana model init --out runs/demo/model" in mistake["fix"]


def test_testnet_taken_port_or_foreign_directory_is_refused(tmp_path: Path) -> None:
    for name in ("model", "tokens"):
        (tmp_path / "runs" / "demo" / name).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for backend in ("solana", "centralized"):
            error = start("--server-port", port, "--backend", backend).error
            assert (error["code"], error["error"]) == ("testnet", f"port {port} is in use")
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "thesis.tex").write_text("precious")
    error = start("--dir", thesis).error
    assert "not a testnet's" in error["error"]
    assert "--dir" in error["fix"]


def test_testnet_clients_receive_tracker_options(tmp_path: Path) -> None:
    trackers = TrackerOptions(wandb_project="lab", wandb_group="g", trackio_project="lab")
    client = LocalTestnetClient(1, 2)
    plan = LocalTestnetPlan(chosen(DEMO), (client,), tmp_path, 0, ClientExtras(trackers=trackers))
    settings = build_settings(**parsed("train", "--run-id", "demo", *plan.options(client)))
    assert TrackerOptions.of(settings) == trackers
    assert not TrackerOptions.of(build_settings(**parsed("train", "--run-id", "demo"))).any


def test_testnet_clients_receive_faults_of_their_lines(tmp_path: Path) -> None:
    client = LocalTestnetClient(1, 2)
    line = LineOptions(latency_ms=50, loss=0.5, bandwidth="20/100", seed=7)
    plan = LocalTestnetPlan(chosen(DEMO), (client,), tmp_path, 0, ClientExtras(line=line))
    settings = build_settings(**parsed("train", "--run-id", "demo", *plan.options(client)))
    assert settings.fault_latency_ms == 50
    assert settings.fault_packet_loss == 0.5
    assert settings.fault_bandwidth_limit == "20/100"
    assert settings.fault_seed == 7
    assert not any("fault" in word for word in LineOptions().options())


def test_testnet_checkpoint_directory_is_for_whole_model_clients(tmp_path: Path) -> None:
    whole = LocalTestnetClient(1, 0)
    sliced = LocalTestnetClient(2, 1)
    plan = LocalTestnetPlan(
        chosen(DEMO),
        (whole, sliced),
        tmp_path,
        0,
        ClientExtras(checkpoints=Path("kept"), keep_steps=7),
    )
    settings = build_settings(**parsed("train", "--run-id", "demo", *plan.options(whole)))
    assert (settings.checkpoint_dir, settings.keep_steps) == (Path("kept/client-1").absolute(), 7)
    assert (
        build_settings(**parsed("train", "--run-id", "demo", *plan.options(sliced))).checkpoint_dir
        is None
    )
    silent = LocalTestnetPlan(chosen(DEMO), (whole,), tmp_path, 0, ClientExtras())
    settings = build_settings(**parsed("train", "--run-id", "demo", *silent.options(whole)))
    assert (settings.checkpoint_dir, settings.keep_steps) == (
        tmp_path / "checkpoints" / "client-1",
        3,
    )


def parsed(command: str, *words: str) -> dict[str, Any]:
    """Return the options that the command receives from this command line."""
    params: dict[str, Any] = load(command).make_context(command, list(words)).params
    return {name: value for name, value in params.items() if name not in ("json_output", "dry_run")}


# --- the config ---


def test_testnet_config_is_found_by_file_directory_or_name(tmp_path: Path) -> None:
    for name in ("demo", "config/demo", "demo/config.toml", "config/demo/config.toml"):
        assert find(Path(name)) == DEMO
    (tmp_path / "demo").mkdir()
    own = tmp_path / "demo" / "state.toml"
    shutil.copy(DEMO, own)
    assert find(Path("demo")).absolute() == own  # the user's file comes before the shipped one


def test_server_file_with_other_checkpoint_keeps_the_rest(tmp_path: Path) -> None:
    state = tmp_path / "state.toml"
    state.write_text(
        f'run_id = "mine"\nrun_state = "WaitingForMembers"\n{DEMO.read_text()}\n[progress]\nepoch = 0\n'
    )
    ours = chosen(state)
    plain = load_config(DEMO)
    assert ours.config.to_chain() == plain.to_chain()
    assert "run_id" not in tomllib.loads(ours.text)
    place = tmp_path / "checkpoint"
    place.mkdir()
    for checkpoint, kind in (
        (str(place), {"Local": str(place)}),
        ("ada/model", {"Hub": {"repo_id": "ada/model"}}),
    ):
        other = chosen(DEMO, checkpoint)
        assert tomllib.loads(other.text)["model"]["LLM"]["checkpoint"] == kind
        tables = tomllib.loads(other.text)
        tables["model"]["LLM"]["checkpoint"] = {"Local": "runs/demo/model"}
        assert tables == tomllib.loads(DEMO.read_text())


@pytest.mark.slow  # two commands as processes, which import torch
def test_missing_files_are_created_once_where_configured(tmp_path: Path) -> None:
    directory = tmp_path / "own"
    directory.mkdir()
    shutil.copy(DEMO, directory)
    (directory / "config.files.toml").write_text(
        "[model]\nhidden = 16\nlayers = 1\nheads = 2\nintermediate = 8\ntied = true\n[tokens]\nbudget-bytes = 20000\n"
    )
    choice = chosen(directory)
    log = tmp_path / "log"
    paths = make_missing(choice.path, choice.config, log, os.environ)
    assert paths == [Path("runs/demo/model"), Path("runs/demo/tokens")]
    assert all(path.is_dir() for path in paths)
    assert '"tie_word_embeddings": true' in (paths[0] / "config.json").read_text()
    assert sorted(path.name for path in (tmp_path / "runs" / "demo").iterdir()) == [
        "model",
        "tokens",
    ]
    assert make_missing(choice.path, choice.config, log, os.environ) == []


def test_shipped_configs_state_their_needs() -> None:
    """Every local file that a config names can be made."""
    paths = list(configs())
    assert len(paths) >= 5
    for path in paths:
        llm = load_config(path).llm
        recipe = recipe_of(path)
        assert (llm.checkpoint.Local is not None) == ("model" in recipe)
        assert (llm.data_location.Local is not None) == bool({"tokens", "fetch"} & recipe.keys())


# --- whom it kills ---


def test_chaos_repeats_and_respects_allowed_clients() -> None:
    def scenario() -> list[list[int]]:
        kills = ChaosSchedule(2, 10, (2, 3, 5))
        return [kills.now(float(at), [1, 2, 3, 4, 5] if at != 30 else [1, 5]) for at in range(61)]

    killed = scenario()
    assert killed == scenario()
    assert [at for at, victims in enumerate(killed) if victims] == [10, 20, 30, 40, 50, 60]
    assert killed[30] == [5]
    assert all(len(killed[at]) == 2 and set(killed[at]) <= {2, 3, 5} for at in (10, 20, 40, 50, 60))
    assert len({tuple(sorted(killed[at])) for at in (10, 20, 40, 50, 60)}) > 1
    assert ChaosSchedule(0, 10, (1,)).now(100.0, [1]) == []
