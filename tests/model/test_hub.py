"""The Hub, spoken to for real over loopback: a small server with the Hub's API holds the repositories."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import torch

from aftermath.model import hub
from aftermath.model.checkpoint import load
from aftermath.model.config import LlamaConfig
from aftermath.model.documents import CheckpointError, hf_config
from aftermath.model.export import export_tiers
from aftermath.model.hub import download, download_config, upload
from aftermath.model.initial import init_weights
from aftermath.model.manifest import MANIFEST_FILE, ManifestUnusable
from aftermath.model.resolve import load_hf_config, resolve
from aftermath.model.store import write_checkpoint
from aftermath.run.accounts import Checkpoint
from aftermath.run.state import CheckpointKind

torch.set_num_threads(1)

COMMIT = "a" * 40
CONFIG = LlamaConfig.from_hf(
    {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
)


class Hub(ThreadingHTTPServer):
    """Repositories by name (path -> bytes), what was fetched from them, and what was pushed."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.claimed: dict[str, int] = {}  # sizes the listing lies about
        self.fetched: list[str] = []
        self.pushed: dict[str, bytes] = {}
        self.status = 0  # answer everything with this when set
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, document: object) -> None:
        self._answer(200, json.dumps(document).encode(), Content_Type="application/json")

    def _refuse(self, repo: str) -> bool:
        if self.server.status:
            self._answer(self.server.status)
        elif repo not in self.server.repos or (repo in self.server.private and not self.headers["Authorization"]):
            self._answer(401, X_Error_Code="RepoNotFound", X_Error_Message="Invalid username or password.")
        else:
            return False
        return True

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)(?:/(revision|tree)/([^/]+))?", path):
            repo, kind, revision = match.groups()
            if self._refuse(repo):
                return
            if revision not in (None, "main", COMMIT):
                self._answer(404, X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
                return
            files = self.server.repos[repo]
            sizes = {name: self.server.claimed.get(name, len(data)) for name, data in files.items()}
            if kind == "tree":
                oids = {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}
                self._json([{"type": "file", "path": n, "size": sizes[n], "oid": oids[n]} for n in files])
            else:
                siblings = [{"rfilename": name, "size": sizes[name]} for name in files]
                self._json({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings})
        elif match := re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", path):
            repo, _, name = match.groups()
            if self._refuse(repo):
                return
            data = self.server.repos[repo].get(name)
            if data is None:
                self._answer(404, X_Error_Code="EntryNotFound")
                return
            if self.command == "GET":
                self.server.fetched.append(name)
            self._answer(200, data, ETag=f'"{hashlib.sha1(data).hexdigest()}"', X_Repo_Commit=COMMIT)
        else:
            self._answer(404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.status:
            self._answer(self.server.status)
        elif self.path == "/api/repos/create":
            self._json({"url": f"{self.server.endpoint}/me/model", "name": "me/model", "id": "me/model"})
        elif self.path.endswith("/preupload/main"):
            paths = [entry["path"] for entry in json.loads(body)["files"]]
            self._json({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]})
        elif self.path.split("?")[0].endswith("/commit/main"):
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.server.pushed[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            self._json({"commitUrl": f"{self.server.endpoint}/me/model/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self._answer(404)


@pytest.fixture
def server() -> Iterator[Hub]:
    with Hub() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def repo(server: Hub, tmp_path: Path) -> str:
    """A repository `me/model` laid out as a checkpoint with its exported tiers below it, and unrelated files."""
    write_checkpoint(
        tmp_path / "m", init_weights(CONFIG, 5), CONFIG, tier=0, companions={"tokenizer.json": b'{"a": 1}'}
    )
    export_tiers(tmp_path / "m", [1, 2])
    files = {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}
    for tier in (1, 2):
        files |= {f"m-tier{tier}/{path.name}": path.read_bytes() for path in (tmp_path / f"m-tier{tier}").iterdir()}
    server.repos["me/model"] = files | {"README.md": b"hello", "original/consolidated.safetensors": b"x" * 99}
    return "me/model"


class Fetch:
    """`download` from the test's server into the test's cache."""

    def __init__(self, server: Hub, cache: Path) -> None:
        self.options: dict[str, Any] = {"endpoint": server.endpoint, "cache_dir": cache}

    def __call__(self, repo: str = "me/model", revision: str = "", tier: int = 0, strategy: Any = "auto") -> Path:
        return download(repo, revision, tier=tier, strategy=strategy, **self.options)


@pytest.fixture
def fetch(server: Hub, repo: str, tmp_path: Path) -> Fetch:
    return Fetch(server, tmp_path / "cache")


def right(place: Path, tier: int, strategy: Any = "auto") -> bool:
    expected = init_weights(CONFIG, 5, tier)
    params = load(place, tier, strategy)
    return all(torch.equal(params[name], expected[name]) for name in expected)


def test_the_full_model_is_fetched_without_other_files(fetch: Fetch, server: Hub) -> None:
    place = fetch()
    assert right(place, 0)
    assert sorted(server.fetched) == ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize("strategy", ["auto", "sliced"])
def test_a_tier_fetches_only_its_own_and_common_files(fetch: Fetch, server: Hub, strategy: Any) -> None:
    place = fetch(tier=2, strategy=strategy)
    assert right(place, 2, strategy)
    assert sorted(server.fetched) == [
        "m-tier2/config.json",
        "m-tier2/model.safetensors",
        MANIFEST_FILE,
        "tokenizer.json",
    ]


def test_universal_fetches_the_full_model_for_any_tier(fetch: Fetch, server: Hub) -> None:
    assert right(fetch(tier=2, strategy="universal"), 2, "universal")
    assert "m-tier2/model.safetensors" not in server.fetched


def test_what_is_here_is_not_fetched_again(fetch: Fetch, server: Hub) -> None:
    first = fetch(tier=1)
    server.fetched.clear()
    assert fetch(tier=1) == first
    assert server.fetched == []


def test_without_a_manifest_auto_takes_everything_and_sliced_refuses(fetch: Fetch, server: Hub) -> None:
    del server.repos["me/model"][MANIFEST_FILE]
    assert right(fetch(tier=1), 1)
    with pytest.raises(ManifestUnusable, match="0 files named"):
        fetch(tier=1, strategy="sliced")


def test_two_manifests_are_ambiguous(fetch: Fetch, server: Hub) -> None:
    server.repos["me/model"][f"sub/{MANIFEST_FILE}"] = b"{}"
    assert right(fetch(tier=1), 1)
    with pytest.raises(ManifestUnusable, match="2 files named"):
        fetch(tier=1, strategy="sliced")


def test_a_listed_file_that_is_absent_makes_auto_take_everything(fetch: Fetch, server: Hub) -> None:
    del server.repos["me/model"]["m-tier1/model.safetensors"]
    assert right(fetch(tier=1), 1)
    with pytest.raises(ManifestUnusable, match="lacks m-tier1/model"):
        fetch(tier=1, strategy="sliced")


@pytest.mark.parametrize("strategy", ["auto", "sliced"])
def test_weights_that_differ_from_the_digest_are_refused(fetch: Fetch, server: Hub, strategy: Any) -> None:
    data = server.repos["me/model"]["m-tier1/model.safetensors"]
    server.repos["me/model"]["m-tier1/model.safetensors"] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        fetch(tier=1, strategy=strategy)


def test_shards_named_by_the_index_are_fetched(fetch: Fetch, server: Hub) -> None:
    files = server.repos["me/model"]
    files["model-00001-of-00001.safetensors"] = files.pop("model.safetensors")
    names = dict.fromkeys(CONFIG.parameter_shapes(), "model-00001-of-00001.safetensors")
    files["model.safetensors.index.json"] = json.dumps({"weight_map": names}).encode()
    files["consolidated.safetensors"] = b"x"
    assert right(fetch(), 0)
    assert "consolidated.safetensors" not in server.fetched


def test_an_oversized_listing_is_refused_before_fetching(fetch: Fetch, server: Hub) -> None:
    server.claimed["model.safetensors"] = 1 << 30
    with pytest.raises(CheckpointError, match=r"lists 1,073,741,824 bytes .* at most"):
        fetch()
    assert "model.safetensors" not in server.fetched
    server.claimed["config.json"] = 1 << 30
    with pytest.raises(CheckpointError, match="at most 1,048,576"):
        fetch()


def test_a_full_disk_is_said_before_fetching(fetch: Fetch, server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = hub.shutil.disk_usage("/")
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(CheckpointError, match="has 10 free"):
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
def test_wrong_names_are_sentences(fetch: Fetch, repo_name: str, revision: str, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        fetch(repo_name, revision)


@pytest.mark.parametrize(
    ("status", "says"), [(403, "answered 403[\\s\\S]*HF_TOKEN"), (418, "answered 418[\\s\\S]*again later")]
)
def test_refusals_of_the_hub_are_sentences(fetch: Fetch, server: Hub, status: int, says: str) -> None:
    server.status = status
    with pytest.raises(CheckpointError, match=says):
        fetch()


def test_a_private_repository_opens_with_a_token(fetch: Fetch, server: Hub) -> None:
    server.private.add("me/model")
    fetch.options["token"] = "hf_x"
    assert right(fetch(), 0)


def test_an_unreachable_hub_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be reached[\s\S]*internet connection"):
        download("me/model", None, tier=0, strategy="auto", cache_dir=tmp_path, endpoint="http://127.0.0.1:9")


def test_a_repository_without_a_model_is_a_sentence(fetch: Fetch, server: Hub) -> None:
    server.repos["me/empty"] = {"README.md": b""}
    with pytest.raises(CheckpointError, match=r"no file config\.json"):
        fetch("me/empty")
    server.repos["me/empty"] = {"config.json": server.repos["me/model"]["config.json"]}
    with pytest.raises(CheckpointError, match=r"no \.safetensors"):
        fetch("me/empty")


def test_the_config_alone_can_be_fetched(fetch: Fetch, server: Hub) -> None:
    document = hf_config(download_config("me/model", COMMIT, **fetch.options))
    assert LlamaConfig.from_hf(document) == CONFIG
    assert server.fetched == ["config.json"]


def test_a_pushed_checkpoint_arrives_and_its_commit_is_returned(server: Hub, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "m", init_weights(CONFIG, 5), CONFIG, tier=0, companions={"tokenizer.json": b"{}"})
    commit = upload(tmp_path / "m", "me/model", token="hf_x", message="step 4", endpoint=server.endpoint)
    assert commit == COMMIT
    assert server.pushed == {path.name: path.read_bytes() for path in (tmp_path / "m").iterdir()}


def test_a_push_without_rights_says_which_token_is_needed(server: Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no token[\s\S]*HF_TOKEN"):
        upload(tmp_path, "me/model", token=None, message="x", endpoint=server.endpoint)
    server.status = 403
    with pytest.raises(CheckpointError, match=r"403[\s\S]*HF_TOKEN"):
        upload(tmp_path, "me/model", token="hf_x", message="x", endpoint=server.endpoint)


def test_a_local_checkpoint_is_its_directory(repo: str, tmp_path: Path) -> None:
    local = Checkpoint(CheckpointKind.LOCAL, str(tmp_path / "m"), "")
    assert resolve(local, tier=1) == tmp_path / "m"
    assert LlamaConfig.from_hf(load_hf_config(local)) == CONFIG
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_hf_config(Checkpoint(CheckpointKind.LOCAL, str(tmp_path / "nowhere"), ""))


@pytest.mark.parametrize("kind", [CheckpointKind.NONE, CheckpointKind.DUMMY])
def test_a_run_without_weights_says_what_its_owner_has_to_do(kind: CheckpointKind) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint with weights[\s\S]*update-config"):
        resolve(Checkpoint(kind, "x", ""))
