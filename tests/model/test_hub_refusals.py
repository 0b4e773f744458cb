"""Failures of the Hub and malicious repositories: each gives a one-line error, and no unlisted file
is fetched.
"""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from aftermath.model import hub as hub_module
from aftermath.model.hub import download, upload
from aftermath.model.json_documents import CheckpointError
from aftermath.model.run_checkpoint import load_hf_config, outline_directory, resolve
from aftermath.rules.model import Checkpoint
from aftermath.rules.state import CheckpointKind
from model.hub_server import CONFIG, Fetch, Hub, Storage, right, serving


@pytest.mark.parametrize("strategy", ["auto", "sliced"])
def test_hub_weights_with_wrong_digest_are_refused(
    fetch: Fetch, server: Hub, strategy: Any
) -> None:
    data = server.repos["me/model"]["m-tier1/model.safetensors"]
    server.repos["me/model"]["m-tier1/model.safetensors"] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        fetch(tier=1, strategy=strategy)


def test_hub_oversized_listing_is_refused_before_fetching(fetch: Fetch, server: Hub) -> None:
    server.claimed["model.safetensors"] = 1 << 30
    with pytest.raises(CheckpointError, match=r"lists 1,073,741,824 bytes .* the limit is"):
        fetch()
    assert "model.safetensors" not in server.fetched
    server.claimed["config.json"] = 1 << 30
    with pytest.raises(CheckpointError, match="the limit is 1,048,576"):
        fetch()


def test_hub_fp64_weights_with_stored_head_are_accepted(fetch: Fetch, server: Hub) -> None:
    sizes = [math.prod(shape) for shape in CONFIG.parameter_shapes().values()]
    most = 8 * (sum(sizes) + max(sizes)) + (64 << 20)
    server.claimed["model.safetensors"] = most + 1
    with pytest.raises(CheckpointError, match=f"the limit is {most:,}"):
        fetch()


def test_hub_full_disk_is_reported_before_fetching(
    fetch: Fetch, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = hub_module.shutil.disk_usage("/")
    monkeypatch.setattr(hub_module.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(CheckpointError, match="has only 10 free"):
        fetch()
    assert "model.safetensors" not in server.fetched


@pytest.mark.parametrize(
    ("repo_name", "revision", "says"),
    [
        ("me/nothing", "", "no Hub repository me/nothing, or it is private[\\s\\S]*HF_TOKEN"),
        ("me/model", "v9", "no revision v9"),
        ("not a name", "", "owner/name"),
    ],
)
def test_hub_wrong_names_are_refused(
    fetch: Fetch, repo_name: str, revision: str, says: str
) -> None:
    with pytest.raises(CheckpointError, match=says):
        fetch(repo_name, revision)


@pytest.mark.parametrize(
    ("status", "says"),
    [(403, "answered 403[\\s\\S]*HF_TOKEN"), (418, "answered 418[\\s\\S]*again later")],
)
def test_hub_error_statuses_are_reported(fetch: Fetch, server: Hub, status: int, says: str) -> None:
    server.status = status
    with pytest.raises(CheckpointError, match=says):
        fetch()


def test_hub_when_unreachable_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be reached[\s\S]*internet connection"):
        download(
            "me/model",
            None,
            tier=0,
            strategy="auto",
            cache_dir=tmp_path,
            endpoint="http://127.0.0.1:9",
        )


def test_hub_repository_without_model_is_refused(fetch: Fetch, server: Hub) -> None:
    server.repos["me/empty"] = {"README.md": b""}
    with pytest.raises(CheckpointError, match=r"no file config\.json"):
        fetch("me/empty")
    server.repos["me/empty"] = {"config.json": server.repos["me/model"]["config.json"]}
    with pytest.raises(CheckpointError, match=r"no \.safetensors"):
        fetch("me/empty")


def test_hub_push_without_rights_names_needed_token(server: Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"without a token[\s\S]*HF_TOKEN"):
        upload(tmp_path, "me/model", token=None, message="x", endpoint=server.endpoint)
    server.status = 403
    with pytest.raises(CheckpointError, match=r"403[\s\S]*HF_TOKEN"):
        upload(tmp_path, "me/model", token="hf_x", message="x", endpoint=server.endpoint)


@pytest.mark.parametrize("kind", [CheckpointKind.NONE, CheckpointKind.DUMMY])
def test_run_without_model_names_owner_command(kind: CheckpointKind) -> None:
    with pytest.raises(
        CheckpointError, match=r"neither a checkpoint nor a model shape[\s\S]*update-config"
    ):
        resolve(Checkpoint(kind, "", ""))


# --- on purpose ----------------------------------------------------------------------------------


def test_hub_shards_outside_repository_are_missing(fetch: Fetch, server: Hub) -> None:
    files = server.repos["me/model"]
    names = dict.fromkeys(CONFIG.parameter_shapes(), "../../evil.safetensors")
    files["model.safetensors.index.json"] = json.dumps({"weight_map": names}).encode()
    files["../../evil.safetensors"] = files.pop("model.safetensors")
    with pytest.raises(CheckpointError, match=r"no file \.\./\.\./evil"):
        fetch()
    assert "../../evil.safetensors" not in server.fetched


@pytest.mark.parametrize("size", [None, -(1 << 40), "12"])
def test_hub_listing_without_size_is_refused_before_fetching(
    fetch: Fetch, server: Hub, size: object
) -> None:
    server.claimed["model.safetensors"] = size
    with pytest.raises(CheckpointError, match=r"has no size for model\.safetensors"):
        fetch()
    assert "model.safetensors" not in server.fetched


def test_hub_file_larger_than_listed_is_refused(fetch: Fetch, server: Hub) -> None:
    server.claimed["config.json"] = 1
    with pytest.raises(
        CheckpointError, match=r"config\.json has [\d,]+ bytes, but its listing says 1"
    ):
        fetch()


@pytest.mark.parametrize("commit", ["../../../../x", "", "A" * 40, "main"])
def test_hub_invalid_commit_is_refused(fetch: Fetch, server: Hub, commit: str) -> None:
    server.commit = commit
    with pytest.raises(CheckpointError, match="returned no commit of me/model"):
        fetch()
    assert server.fetched == []


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(
    "tag", ['"../../../../there"', '"/{}/there"', 'W/"a/b"', '".."', '"' + "a" * 300 + '"']
)
def test_hub_file_version_outside_cache_is_refused(
    fetch: Fetch, server: Hub, tmp_path: Path, tag: str, linked: bool
) -> None:
    """The library uses the version that the Hub sends as a file name in its cache."""
    server.tag = tag.format(tmp_path)
    server.elsewhere = Storage() if linked else None
    with pytest.raises(CheckpointError, match="sent an invalid file version"):
        fetch()
    assert not [*tmp_path.rglob("there")]
    assert server.fetched == []


def test_hub_trickling_file_is_abandoned(
    fetch: Fetch, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "PATIENCE_SECONDS", 0.3)
    server.trickling = True
    began = time.monotonic()
    with pytest.raises(
        CheckpointError, match=r"me/model from the Hub is too slow[\s\S]*again later"
    ):
        fetch()
    assert time.monotonic() - began < 5


def test_hub_token_is_not_sent_to_other_hosts(fetch: Fetch, server: Hub) -> None:
    server.private.add("me/model")
    fetch.options["token"] = "hf_x"
    server.elsewhere = Storage()
    with serving(server.elsewhere):
        assert right(fetch(), 0)
    assert len(server.elsewhere.request_headers) >= 3
    assert not any("authorization" in headers for headers in server.elsewhere.request_headers)


def test_unknown_home_directory_is_not_a_checkpoint() -> None:
    """A tier-0 member may have named it, so it must give an error and not a crash."""
    with pytest.raises(CheckpointError, match="there is no checkpoint at ~nobody-of-this-name/x"):
        resolve(Checkpoint(CheckpointKind.LOCAL, "~nobody-of-this-name/x", ""))


@pytest.mark.parametrize(
    "name", ["/etc", "../x", "etc", "a/b/c", "me/model?x", "http://10.0.0.1/x", "me/\x1b[2J"]
)
def test_invalid_hub_name_is_refused_before_any_request(name: str) -> None:
    place = Checkpoint(CheckpointKind.HUB, name, "")
    for read in (resolve, load_hf_config, outline_directory):
        with pytest.raises(
            CheckpointError, match=r"is not a Hub repository[\s\S]*owner to correct"
        ) as refused:
            read(place)
        assert "\x1b" not in str(refused.value)
