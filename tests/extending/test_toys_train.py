"""Toys of an installed package train end to end, through the commands that users have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from extending.registered import TESTS, install

pytestmark = pytest.mark.slow
CONSOLE = Path(sys.executable).with_name("aftermath-solana")
STEPS = 8
CONFIG = f"""
[config]
warmup_time = 60
cooldown_time = 20
rounds_per_epoch = {STEPS}
max_round_train_time = 20
round_witness_time = 1
min_round_time = 0
min_clients = 1
init_min_clients = 2
global_batch_size_start = 16
global_batch_size_end = 16
total_steps = {STEPS}
waiting_for_members_extra_time = 1

[model.LLM]
architecture = "Averaging"
data_type = "Pretraining"
max_seq_len = 16
checkpoint = {{ Local = "model" }}
data_location = {{ Counting = {{ step = 3 }} }}
matformer = {{ tiers = 2 }}

[model.LLM.lr_schedule.Constant]
base_lr = 1.0e-2

[model.LLM.optimizer.Majority]
compression_topk = 256
scale = 2.0
"""


class Machine:
    """A directory with a model and a config, and the environment of its commands."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        packages = install(directory / "packages")
        home = directory / "home"
        home.mkdir()
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(packages), str(TESTS)]),
            "HOME": str(home),
            "OMP_NUM_THREADS": "1",
        }
        (directory / "run.toml").write_text(CONFIG)
        self.run("model", "init", "--preset", "averaging-tiny", "--out", "model")

    def run(self, *words: str, environment: dict[str, str] | None = None) -> str:
        ended = subprocess.run(
            [str(CONSOLE), *words],
            cwd=self._directory,
            env=environment or self.environment,
            capture_output=True,
            text=True,
        )
        return f"{ended.stdout}{ended.stderr}" if ended.returncode else ended.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def summary(output: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(output[output.index("{\n") :])
    return document


def test_train_local_learns_with_registered_kinds(machine: Machine) -> None:
    words = ["--config-path", "run.toml", "--tiers", "0,1", "--steps", "40", "--out", "trained"]
    output = machine.run("train-local", *words)
    losses = [
        float(line.split("loss ")[1].split()[0]) for line in output.splitlines() if "loss " in line
    ]
    assert "finished: 40 steps" in output, output
    assert losses[-1] < losses[0] - 0.5
    assert "averaging" in machine.run("model", "inspect", "--model", "trained/checkpoint")


def test_members_on_a_chain_train_registered_kinds(machine: Machine) -> None:
    words = ["--num-clients", "2", "--client-matformer-tiers", "0,1", "--server-port", "0"]
    words += ["--client-device", "cpu", "--dir", "testnet", "--headless", "--json"]
    result = summary(machine.run("local-testnet", "start", "--config-path", "run.toml", *words))
    assert (result["ending"], result["steps"], result["failed"], result["differing"]) == (
        "finished",
        STEPS,
        [],
        [],
    )


def test_client_without_extension_package_refuses_by_name(machine: Machine) -> None:
    bare = {name: value for name, value in machine.environment.items() if name != "PYTHONPATH"}
    output = machine.run("config", "validate", "run.toml", environment=bare)
    assert "architecture is 'Averaging'; allowed: HfLlama" in output
    assert "Counting is not a known key; known here: Dummy" in output
    assert "Majority is not a known key; known here: AdamW" in output
