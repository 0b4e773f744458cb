"""A Hub on this machine, with one repository, and a way to fetch from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aftermath.model.export import export_tiers
from aftermath.model.initial_weights import init_weights
from aftermath.model.save_checkpoint import write_checkpoint
from model.hub_server import CONFIG, Fetch, Hub, serving

torch.set_num_threads(1)


@pytest.fixture
def server() -> Iterator[Hub]:
    running = Hub()
    with serving(running):
        yield running
        running.trickling = False


@pytest.fixture
def repo(server: Hub, tmp_path: Path) -> str:
    """A repository `me/model` laid out as a checkpoint with its exported tiers below it, and
    unrelated files.
    """
    write_checkpoint(
        tmp_path / "m",
        init_weights(CONFIG, 5),
        CONFIG,
        tier=0,
        companions={"tokenizer.json": b'{"a": 1}'},
    )
    export_tiers(tmp_path / "m", [1, 2])
    files = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    for tier in (1, 2):
        files |= {
            f"m-tier{tier}/{path.name}": path.read_bytes()
            for path in (tmp_path / f"m-tier{tier}").iterdir()
        }
    server.repos["me/model"] = files | {
        "README.md": b"hello",
        "original/consolidated.safetensors": b"x" * 99,
    }
    return "me/model"


@pytest.fixture
def fetch(server: Hub, repo: str, tmp_path: Path) -> Fetch:
    return Fetch(server, tmp_path / "cache")
