"""Test that `update-config` accepts every shipped config with its files.

Models have only a shape, which is all that an owner needs. The Hub and the bucket have local
substitutes.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants

from aftermath.cli.main import load
from aftermath.cli.model_init import _SIZES, Kind, _sized_document
from aftermath.config.document import load_config
from aftermath.config.recipe_file import recipe_of
from aftermath.model import hub as hub_module
from aftermath.model.presets import PRESETS
from aftermath.testnet.files import COMMANDS, SHIPPED, configs, flags
from cli.cli_runs import Shell
from faulty_web import serving
from model.hub_server import Hub
from model.hub_server import serving as serving_hub

SEQUENCES = 40


@pytest.fixture(params=sorted(configs()), ids=lambda path: str(path.relative_to(SHIPPED)))
def shipped(request: pytest.FixtureRequest) -> Path:
    config: Path = request.param
    return config


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Provide substitutes for the Hub and the bucket that a config may name."""
    monkeypatch.chdir(tmp_path)
    hub = Hub()
    with serving_hub(hub), serving() as web:
        hub.repos["emozilla/llama2-20m-init"] = {
            "config.json": json.dumps(dict(PRESETS["llama-20m"])).encode()
        }
        bucket = "nous-pretraining-public-us"
        name = "fineweb-edu-tokenized-llama2/0_00.ds"
        web.files[f"/{bucket}/{name}"] = np.ones(SEQUENCES * 2048, "<u2").tobytes()
        web.files[f"/storage/v1/b/{bucket}/o"] = json.dumps({"items": [{"name": name}]}).encode()
        # huggingface_hub reads HF_ENDPOINT and HF_HOME when it is imported.
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(hub_module, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", web.url)
        yield


def shape(options: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json that `model init` would write with these options."""
    if preset := options.get("preset"):
        return dict(PRESETS[preset])
    return _sized_document(
        Kind.LLAMA, _SIZES | {name.replace("-", "_"): size for name, size in options.items()}, False
    )


def test_shipped_config_files_can_be_created(shipped: Path) -> None:
    """The options in the recipe file next to a config are valid for the commands that make its
    files.
    """
    for table, options in recipe_of(shipped).items():
        words, option = COMMANDS[table]
        load(words).make_context(words, [option, "somewhere", *flags(options)])


def test_shipped_config_begins_with_purpose_comment(shipped: Path) -> None:
    text = shipped.read_text()
    assert text.startswith("# ")
    assert [line for line in text.splitlines() if line.startswith("#") and len(line) > 120] == []
    rules = tomllib.loads(text)["config"]
    assert rules["witness_nodes"] == 0  # a member that dies must not delay a round


@pytest.mark.usefixtures("elsewhere")
def test_shipped_config_is_accepted_by_update_config(
    shipped: Path, owner: Shell, run_id: str, tmp_path: Path
) -> None:
    llm = load_config(shipped).llm
    recipe = recipe_of(shipped)
    if llm.checkpoint.Local is not None:
        place = tmp_path / llm.checkpoint.Local.path
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(shape(recipe["model"])))
    if llm.data_location.Local is not None:
        tokens = tmp_path / llm.data_location.Local.path
        tokens.mkdir(parents=True)
        np.ones(SEQUENCES * llm.max_seq_len, "<u2").tofile(tokens / "tokens.bin")
    assert owner("create-run", "--run-id", run_id).code == 0
    data = owner("update-config", "--run-id", run_id, "--config-path", shipped).data
    assert len(data["tiers"]) == 3
    assert data["data_hash"]
    assert data["warnings"] == [], "what is shipped does not warn of itself"
