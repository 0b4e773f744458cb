"""Tests of whole local testnets: on the embedded chain with a client that is killed, and on a
server.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from xprocess import XProcess

from e2e.event_log import EventLog, compare_replicas
from e2e.processes import CONSOLE, KILLED_SECONDS, Running, command_line, until
from e2e.run_inputs import RunInputs

pytestmark = pytest.mark.slow
SHORT = {"init_min_clients": 2, "min_clients": 1, "min_round_time": 0}


def start(xprocess: XProcess, config: Path, place: Path, *words: str | Path | int) -> Running:
    line = [
        CONSOLE,
        "local-testnet",
        "start",
        "--config-path",
        config,
        "--dir",
        place,
        "--headless",
    ]
    line += ["--server-port", 0, "--client-device", "cpu", *words]
    return Running(xprocess, "local-testnet", [str(word) for word in line])


def final_document(testnet: Running) -> dict[str, Any]:
    """Return the JSON document at the end of the output, after the lines."""
    document: dict[str, Any] = json.loads(testnet.output[testnet.output.index("\n{\n") :])
    return document


def event_logs(place: Path, count: int) -> dict[str, EventLog]:
    names = [f"client-{number}" for number in range(1, count + 1)]
    return {name: EventLog(place / "events" / name) for name in names}


def test_embedded_testnet_with_killed_member_finishes(
    xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    # Two are enough while the third is away, and no round waits long for it.
    rules = SHORT | {"rounds_per_epoch": 12, "total_steps": 36, "max_round_train_time": 12}
    rules["min_round_time"] = 1  # else a fast machine is done before the first kill
    config = run_inputs.config(tmp_path / "config", **rules)
    place = tmp_path / "testnet"
    words = [
        "--num-clients",
        3,
        "--client-matformer-tiers",
        "0,1,2",
        "--write-log",
        "--optim-stats",
        10,
    ]
    words += ["--write-distro-data", tmp_path / "sent"]
    words += [
        "--random-kill-num",
        1,
        "--random-kill-interval",
        15,
        "--allowed-to-kill",
        "3",
        "--json",
    ]
    testnet = start(xprocess, config, place, *words)
    assert testnet.wait() == 0, testnet.last_lines
    summary = final_document(testnet)
    assert (summary["ending"], summary["steps"], summary["tiers"]) == ("finished", 36, [0, 1, 2])
    assert (summary["failed"], summary["differing"], summary["directory"]) == ([], [], str(place))
    assert summary["kills"] >= 1
    logs = event_logs(place, 3)
    assert compare_replicas(logs) > 36
    starts = {name: len(event_log.events_of("started")) for name, event_log in logs.items()}
    assert starts == {"client-1": 1, "client-2": 1, "client-3": starts["client-3"]}
    assert starts["client-3"] >= 2
    assert "client-3 was killed" in testnet.output
    assert "client-3 is started again" in testnet.output
    assert logs["client-1"].events_of("optimizer")
    for name in logs:
        assert (place / "logs" / f"{name}.jsonl").stat().st_size
        assert any((tmp_path / "sent" / name).iterdir())
    assert any((place / "checkpoints" / "client-1").iterdir())
    assert not (place / "checkpoints" / "client-2").exists()


def test_testnet_on_bad_lines_keeps_replicas_identical(
    xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    config = run_inputs.config(tmp_path / "config", **SHORT, total_steps=8)
    place = tmp_path / "testnet"
    faults = ["--latency-ms", 50, "--loss", 1, "--bandwidth", "20/20", "--fault-seed", 3]
    testnet = start(xprocess, config, place, "--num-clients", 3, *faults, "--json")
    assert testnet.wait() == 0, testnet.last_lines
    summary = final_document(testnet)
    assert (summary["ending"], summary["steps"]) == ("finished", 8)
    assert (summary["failed"], summary["differing"]) == ([], [])
    logs = event_logs(place, 3)
    assert compare_replicas(logs) > 8
    fetched = [event for log in logs.values() for event in log.events_of("fetched")]
    assert min(event["seconds"] for event in fetched) >= 0.1


def test_server_testnet_from_state_file_trains(
    xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    directory = tmp_path / "config"
    place = tmp_path / "testnet"
    text = (
        run_inputs.replacing(model=tmp_path / "nowhere")
        .config(directory, **SHORT, total_steps=8)
        .read_text()
    )
    (directory / "config.toml").unlink()
    (directory / "state.toml").write_text(f'run_id = "mine"\n{text}')
    words = [
        "--num-clients",
        2,
        "--backend",
        "centralized",
        "--first-client-checkpoint",
        run_inputs.model,
        "--log",
    ]
    testnet = start(xprocess, directory, place, *words, "warning")
    assert testnet.wait() == 0, testnet.last_lines
    assert "finished: step 8 of 8" in testnet.output
    assert "replicas identical" in testnet.output
    assert "signed up for the next epoch" not in testnet.output
    assert compare_replicas(event_logs(place, 2)) > 8


def test_testnet_failing_clients_are_reported_not_restarted(
    xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    config = run_inputs.config(tmp_path / "config", **SHORT)
    words = ["--num-clients", 2, "--backend", "centralized", "--client-device", "cuda:99", "--json"]
    testnet = start(xprocess, config, tmp_path / "testnet", *words)
    testnet.expected = False
    assert testnet.wait() == 1
    summary = final_document(testnet)
    assert (summary["ending"], sorted(summary["failed"])) == ("failed", ["client-1", "client-2"])
    assert re.search(r"client-1 ended with code [12]; its last output", testnet.output)
    assert "cuda:99" in testnet.output
    assert "is started again" not in testnet.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_testnet_after_signal_saves_and_ends(
    number: signal.Signals, xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    config = run_inputs.config(tmp_path / "config", **SHORT, total_steps=5000)
    place = tmp_path / "testnet"
    words = ["--num-clients", 2, "--client-matformer-tiers", "0,1"]
    testnet = start(xprocess, config, place, *words)
    until(
        lambda: re.search(r" \| step \d\d ", testnet.output),
        "the clients have trained ten steps",
        watched=testnet.check,
    )
    descendants = psutil.Process(testnet.pid).children(recursive=True)
    assert len(descendants) >= 3
    os.kill(testnet.pid, number)
    assert testnet.wait() == 130, testnet.last_lines
    assert re.search(
        r"^stopped: step \d+ of 5000 in .*2 clients of tiers 0, 1", testnet.output, re.M
    )
    assert psutil.wait_procs(descendants, KILLED_SECONDS)[1] == []
    logs = event_logs(place, 2).values()  # the last member keeps its seat
    assert all(log.events_of("left") or log.events_of("stopped") for log in logs)
    assert any((place / "checkpoints").glob("*/*-step*/model.safetensors"))


def test_testnet_after_time_limit_ends(
    xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    config = run_inputs.config(tmp_path / "config", **SHORT, total_steps=5000)
    words = [
        "--num-clients",
        2,
        "--backend",
        "centralized",
        "--headless-exit-after-secs",
        8,  # so that a busy machine finds its clients while they run
        "--hf-token",
        "hf_of_nobody",
        "--json",
    ]
    testnet = start(xprocess, config, tmp_path / "testnet", *words)
    family = psutil.Process(testnet.pid)
    key = str(tmp_path / "testnet" / "keys" / "client-2.json")

    def second_client() -> psutil.Process | None:
        # a child that was just forked still has its parent's command line
        return next((one for one in family.children() if key in command_line(one)), None)

    client = until(second_client, "client-2 is started", watched=testnet.check)
    descendants = family.children(recursive=True)
    assert len(family.children()) >= 3, "it is started last"
    assert client.environ()["HF_TOKEN"] == "hf_of_nobody"
    assert not any("hf_of_nobody" in word for one in descendants for word in command_line(one))
    assert testnet.wait() == 0, testnet.last_lines
    assert final_document(testnet)["ending"] == "time"
    assert psutil.wait_procs(descendants, KILLED_SECONDS)[1] == []
    shutil.rmtree(tmp_path / "testnet")  # nobody writes there any more
