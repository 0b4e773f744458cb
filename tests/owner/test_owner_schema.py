"""Test the errors about a schema whose model is not on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aftermath.config.document import CORRECT, RunConfig, load_config
from aftermath.config.errors import Mistaken
from aftermath.config.recipe_file import recipe_file
from aftermath.data.source import DataError
from aftermath.owner.agreed_data import open_run_data, with_agreed_data
from aftermath.owner.schema import shape_of
from aftermath.testnet.files import SHIPPED

DEMO = SHIPPED / "demo" / "config.toml"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a config whose model does not exist yet, with a recipe file next to it."""
    monkeypatch.chdir(tmp_path)
    path = Path("my run.toml")
    shutil.copy(DEMO, path)
    shutil.copy(recipe_file(DEMO), recipe_file(path))
    return path


def refusal(config: RunConfig) -> Mistaken:
    with pytest.raises(Mistaken) as caught:
        shape_of(config)
    return caught.value


def test_missing_model_in_files_toml_names_run_files(copied: Path) -> None:
    refused = refusal(load_config(copied))
    assert (
        refused.fix
        == "Create it first, as my run.files.toml describes: aftermath-solana run-files 'my run.toml'"
    )
    assert refused.found[0].sentence.endswith("runs/demo/model (no config.json)")
    assert refused.found[0].line > 1


def test_model_without_recipe_or_free_directory_is_refused(copied: Path) -> None:
    config = load_config(copied)
    Path("runs/demo/model").mkdir(parents=True)  # it would not be filled
    assert refusal(config).fix == CORRECT
    Path("runs/demo/model").rmdir()
    recipe_file(copied).write_text("[tokens]\nbudget-bytes = 20000\n")
    assert refusal(config).fix == CORRECT
    recipe_file(copied).unlink()
    refused = refusal(config)
    assert refused.fix == CORRECT
    assert "aftermath-solana model init creates one" in refused.found[0].sentence


def test_impossible_model_path_is_reported(copied: Path) -> None:
    copied.write_text(DEMO.read_text().replace('"runs/demo/model"', '"~nobody-of-this-name/x"'))
    refused = refusal(load_config(copied))
    assert (refused.fix, "~nobody-of-this-name/x" in refused.message) == (CORRECT, True)


def test_missing_tokens_in_files_toml_name_run_files(copied: Path) -> None:
    config = load_config(copied)
    make = "aftermath-solana run-files 'my run.toml'"
    with pytest.raises(DataError, match="there is no token data at") as caught:
        open_run_data(config, 257)
    assert caught.value.fix == f"Create it first, as my run.files.toml describes: {make}"
    assert with_agreed_data(config, 257)[1].endswith(caught.value.fix)
    recipe_file(copied).write_text("[model]\npreset = 'demo'\n")
    with pytest.raises(DataError) as caught:
        open_run_data(config, 257)
    assert caught.value.fix.startswith(
        "Create token files from text: aftermath-solana data tokenize"
    )
    shutil.copy(recipe_file(DEMO), recipe_file(copied))
    Path("runs/demo/tokens").mkdir(parents=True)  # it would not be filled
    with pytest.raises(DataError, match="has no token files") as caught:
        open_run_data(config, 257)
    assert make not in caught.value.fix
