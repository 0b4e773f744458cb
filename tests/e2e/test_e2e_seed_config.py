"""Test the unchanged sample config.toml of the seed, with local substitutes for the Hub and the
bucket.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.initial_weights import init_weights
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.rules.model import marked
from e2e.cluster import TrainingCluster
from e2e.processes import CONSOLE, PATIENCE
from faulty_web import Web, serving
from model.hub_server import Hub
from model.hub_server import serving as serving_hub

SEED = Path(__file__).parents[1] / "config" / "seed-config.toml"
BUCKET = "nous-pretraining-public-us"
FOLDER = "fineweb-edu-tokenized-llama2"
CONFIG = LlamaConfig.from_hf(
    {
        "vocab_size": 320,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
)
pytestmark = pytest.mark.slow


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """Provide a Hub with the repository that the file names, which has a smaller Llama."""
    write_checkpoint(tmp_path / "model", init_weights(CONFIG, 0), CONFIG, tier=0, companions={})
    hub = Hub()
    with serving_hub(hub):
        hub.repos["emozilla/llama2-20m-init"] = {
            path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()
        }
        yield hub


@pytest.fixture
def bucket() -> Iterator[Web]:
    """Provide the bucket that the file names, with two files."""
    draw = np.random.default_rng(4)
    with serving() as web:
        names = [f"{FOLDER}/{number}_00.ds" for number in (0, 1)]
        for name in names:
            web.files[f"/{BUCKET}/{name}"] = (
                draw.integers(0, 320, 40 * 2048).astype("<u2").tobytes()
            )
        listing = {"items": [{"name": name} for name in names]}
        web.files[f"/storage/v1/b/{BUCKET}/o"] = json.dumps(listing).encode()
        yield web


def configured(cluster: TrainingCluster) -> dict[str, Any]:
    """Run `update-config` in a new process, because this one has already read the Hub's address.
    Return its output.
    """
    line = [
        "update-config",
        "--run-id",
        cluster.run_id,
        "-w",
        cluster.owner,
        "--config-path",
        SEED,
        "--json",
    ]
    completed = subprocess.run(
        [CONSOLE, *line, *cluster.network.at], capture_output=True, text=True, timeout=PATIENCE
    )
    assert completed.returncode == 0, completed.stderr
    document: dict[str, Any] = json.loads(completed.stdout)
    return document


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_seed_sample_config_trains_on_hub_and_bucket(
    cluster: TrainingCluster, hub: Hub, bucket: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.url)
    cluster.command("create-run", "--run-id", cluster.run_id)
    document = configured(cluster)
    assert document["warnings"] == []
    assert document["data_hash"]
    assert cluster.model.data_location.secondary == marked(FOLDER, document["data_hash"])
    member = cluster.add_member(0)
    cluster.start(member)
    cluster.command("set-paused", "resume", "--run-id", cluster.run_id)
    cluster.until(
        lambda: len(member.event_log.events_of("applied")) > 1, "results of two steps are applied"
    )
    assert all(event["loss"] > 0 for event in member.event_log.events_of("trained"))
    member.process.expected = False
    member.process.interrupt(PATIENCE)
