"""The Hub: a fetch gets exactly the files that a tier needs, and pushed files arrive."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from aftermath.base.outputs import MARK
from aftermath.model import hub, save_checkpoint
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.architectures import config_of
from aftermath.model.checkpoint import load
from aftermath.model.hub import download_config, download_outline, upload
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import MOMENTUM_FILE, CheckpointError, hf_config
from aftermath.model.manifest import MANIFEST_FILE, ManifestUnusable
from aftermath.model.run_checkpoint import load_hf_config, resolve
from aftermath.model.save_checkpoint import read_companions, write_checkpoint
from aftermath.rules.model import Checkpoint
from aftermath.rules.state import CheckpointKind
from cli.cli_runs import invoke
from model.hub_server import COMMIT, CONFIG, Fetch, Hub, right


def test_hub_full_model_is_fetched_without_other_files(fetch: Fetch, server: Hub) -> None:
    place = fetch()
    assert right(place, 0)
    assert sorted(server.fetched) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_hub_whole_file_precedes_older_index(fetch: Fetch, server: Hub) -> None:
    files = server.repos["me/model"]
    names = dict.fromkeys(CONFIG.parameter_shapes(), "old.safetensors")
    files |= {
        "model.safetensors.index.json": json.dumps({"weight_map": names}).encode(),
        "old.safetensors": b"old",
    }
    assert right(fetch(), 0)
    assert "old.safetensors" not in server.fetched


@pytest.mark.parametrize("strategy", ["auto", "sliced"])
def test_hub_tier_fetches_only_its_own_and_common_files(
    fetch: Fetch, server: Hub, strategy: Any
) -> None:
    place = fetch(tier=2, strategy=strategy)
    assert right(place, 2, strategy)
    assert sorted(server.fetched) == [
        "m-tier2/config.json",
        "m-tier2/model.safetensors",
        MANIFEST_FILE,
        "tokenizer.json",
    ]


def test_hub_universal_fetches_full_model_for_any_tier(fetch: Fetch, server: Hub) -> None:
    assert right(fetch(tier=2, strategy="universal"), 2, "universal")
    assert "m-tier2/model.safetensors" not in server.fetched


def test_hub_momentum_is_fetched_only_if_requested(fetch: Fetch, server: Hub) -> None:
    server.repos["me/model"][MOMENTUM_FILE] = b"momentum"
    assert not (fetch() / MOMENTUM_FILE).exists()
    assert (fetch(momentum=True) / MOMENTUM_FILE).read_bytes() == b"momentum"
    assert right(fetch(), 0)


def test_hub_momentum_is_not_weights_without_index(fetch: Fetch, server: Hub) -> None:
    files = server.repos["me/model"]
    files["other.safetensors"] = files.pop("model.safetensors")
    files[MOMENTUM_FILE] = b"momentum"
    assert right(fetch(momentum=True), 0)


def test_hub_cached_files_are_not_fetched_again(fetch: Fetch, server: Hub) -> None:
    first = fetch(tier=1)
    server.fetched.clear()
    assert fetch(tier=1) == first
    assert server.fetched == []


def test_fetch_without_manifest_takes_all_or_refuses_sliced(fetch: Fetch, server: Hub) -> None:
    del server.repos["me/model"][MANIFEST_FILE]
    assert right(fetch(tier=1), 1)
    with pytest.raises(ManifestUnusable, match=r"one file named .* not 0"):
        fetch(tier=1, strategy="sliced")


def test_hub_two_manifests_are_ambiguous(fetch: Fetch, server: Hub) -> None:
    server.repos["me/model"][f"sub/{MANIFEST_FILE}"] = b"{}"
    assert right(fetch(tier=1), 1)
    with pytest.raises(ManifestUnusable, match=r"one file named .* not 2"):
        fetch(tier=1, strategy="sliced")


def test_hub_missing_listed_file_makes_auto_fetch_everything(fetch: Fetch, server: Hub) -> None:
    del server.repos["me/model"]["m-tier1/model.safetensors"]
    assert right(fetch(tier=1), 1)
    with pytest.raises(ManifestUnusable, match="lacks m-tier1/model"):
        fetch(tier=1, strategy="sliced")


def test_hub_shards_named_by_index_are_fetched(fetch: Fetch, server: Hub) -> None:
    files = server.repos["me/model"]
    files["model-00001-of-00001.safetensors"] = files.pop("model.safetensors")
    names = dict.fromkeys(CONFIG.parameter_shapes(), "model-00001-of-00001.safetensors")
    files["model.safetensors.index.json"] = json.dumps({"weight_map": names}).encode()
    files["consolidated.safetensors"] = b"x"
    assert right(fetch(), 0)
    assert "consolidated.safetensors" not in server.fetched


def test_hub_fetches_only_shards_of_tier(
    fetch: Fetch, server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_checkpoint, "SHARD_BYTES", 2_000)
    fields = CONFIG.to_hf() | {"num_hidden_layers": 3, "matformer_tiers": [{"layers": [2]}]}
    config = config_of(fields)
    write_checkpoint(tmp_path / "s", init_weights(config, 5), config, tier=0, companions={})
    server.repos["me/model"] = {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    index = json.loads((tmp_path / "s" / "model.safetensors.index.json").read_text())["weight_map"]
    skipped = ("model.layers.0.", "model.layers.1.")
    files = {file for name, file in index.items() if not name.startswith(skipped)}
    params = load(fetch(tier=1), 1)
    expected = init_weights(config, 5, 1)
    assert {name for name in server.fetched if "-of-" in name} == files < set(index.values())
    assert all(torch.equal(params[name], expected[name]) for name in expected)
    # the other files are fetched when they are needed
    assert load(fetch(), 0).keys() == config.parameter_shapes().keys()


def test_hub_private_repository_opens_with_token(fetch: Fetch, server: Hub) -> None:
    server.private.add("me/model")
    fetch.options["token"] = "hf_x"
    assert right(fetch(), 0)


def test_hub_config_alone_can_be_fetched(fetch: Fetch, server: Hub) -> None:
    document = hf_config(download_config("me/model", COMMIT, **fetch.options))
    assert LlamaConfig.from_hf(document) == CONFIG
    assert server.fetched == ["config.json"]


def test_hub_outline_is_fetched_without_weights(fetch: Fetch, server: Hub) -> None:
    place = download_outline("me/model", COMMIT, **fetch.options)
    assert LlamaConfig.from_hf(hf_config(place / "config.json")) == CONFIG
    assert sorted(server.fetched) == ["config.json", "tokenizer.json"]
    assert read_companions(place) == {"tokenizer.json": server.repos["me/model"]["tokenizer.json"]}


def test_hub_config_comes_from_folder_of_only_manifest(fetch: Fetch, server: Hub) -> None:
    files = server.repos["me/model"]
    files["sub/config.json"] = files["config.json"]
    files[f"sub/{MANIFEST_FILE}"] = files.pop(MANIFEST_FILE)
    files["config.json"] = b"another model's"
    document = hf_config(download_config("me/model", COMMIT, **fetch.options))
    assert LlamaConfig.from_hf(document) == CONFIG
    assert server.fetched == ["sub/config.json"]


def test_hub_push_returns_commit_of_stored_checkpoint(server: Hub, tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path / "m",
        init_weights(CONFIG, 5),
        CONFIG,
        tier=0,
        companions={"tokenizer.json": b"{}"},
    )
    commit = upload(
        tmp_path / "m", "me/model", token="hf_x", message="step 4", endpoint=server.endpoint
    )
    assert commit == COMMIT
    assert server.pushed == {
        path.name: path.read_bytes() for path in (tmp_path / "m").iterdir() if path.name != MARK
    }


def test_hub_pushed_tiers_are_fetched_one_by_one(
    fetch: Fetch, server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "upload", partial(upload, endpoint=server.endpoint))
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    result = invoke("model", "push", "--model", str(tmp_path / "m"), "--repo", "me/model", "--json")
    assert json.loads(result.out) == {"repo": "me/model", "commit": COMMIT, "tiers": [1, 2]}
    server.repos["me/model"] = dict(server.pushed)
    assert right(fetch(tier=2, strategy="sliced"), 2, "sliced")
    assert "model.safetensors" not in server.fetched
    server.pushed.clear()
    (tmp_path / "m-tier1" / "model.safetensors").write_bytes(b"x")
    result = invoke("model", "push", "--model", str(tmp_path / "m"), "--repo", "me/model")
    assert (result.code, "SHA-256 differs" in result.err, server.pushed) == (1, True, {})


def test_local_checkpoint_resolves_to_its_directory(repo: str, tmp_path: Path) -> None:
    local = Checkpoint(CheckpointKind.LOCAL, str(tmp_path / "m"), "")
    assert resolve(local, tier=1) == tmp_path / "m"
    assert LlamaConfig.from_hf(load_hf_config(local)) == CONFIG
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_hf_config(Checkpoint(CheckpointKind.LOCAL, str(tmp_path / "nowhere"), ""))
