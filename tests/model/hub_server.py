"""A small server with the Hub's API on loopback, and the model in its repository."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import torch

from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.checkpoint import load
from aftermath.model.hub import download
from aftermath.model.initial_weights import init_weights

COMMIT = "a" * 40
CONFIG = LlamaConfig.from_hf(
    {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
)


class Hub(ThreadingHTTPServer):
    """Repositories by name (path -> bytes), and records of fetches and pushes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.commit = COMMIT
        self.claimed: dict[str, object] = {}  # false sizes in the listing
        # where files are redirected to, as the Hub does for large ones
        self.elsewhere: Storage | None = None
        self.tag = ""  # the version that the Hub reports for every file, if it is not the digest
        self.trickling = False  # files come a byte at a time, until this is unset
        self.fetched: list[str] = []
        # headers of requests about a repository
        self.authorizations: set[str | None] = set()
        self.pushed: dict[str, bytes] = {}
        self.status = 0  # the status of every answer, if set
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    # or each body waits 40 ms until the client has acknowledged the headers
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None: ...

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        while body and self.server.trickling and "resolve" in self.path:
            self.wfile.write(body[:1])
            body = body[1:]
            time.sleep(0.05)
        self.wfile.write(body)

    def _json(self, document: object) -> None:
        self._answer(200, json.dumps(document).encode(), Content_Type="application/json")

    def _refuse(self, repo: str) -> bool:
        self.server.authorizations.add(self.headers["Authorization"])
        if self.server.status:
            self._answer(self.server.status)
        elif repo not in self.server.repos or (
            repo in self.server.private and not self.headers["Authorization"]
        ):
            self._answer(
                401, X_Error_Code="RepoNotFound", X_Error_Message="Invalid username or password."
            )
        else:
            return False
        return True

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(
            r"/api/models/([\w.-]+/[\w.-]+)(?:/(revision|tree)/([^/]+))?", path
        ):
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
                self._json(
                    [{"type": "file", "path": n, "size": sizes[n], "oid": oids[n]} for n in files]
                )
            else:
                siblings = [{"rfilename": name, "size": sizes[name]} for name in files]
                self._json(
                    {"id": repo, "modelId": repo, "sha": self.server.commit, "siblings": siblings}
                )
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
            tag = self.server.tag or f'"{hashlib.sha1(data).hexdigest()}"'
            if self.server.elsewhere is not None:
                place = self.server.elsewhere.hold(data)
                linked = {"X_Linked_Size": str(len(data)), "X_Linked_ETag": tag}
                self._answer(302, b"", Location=place, X_Repo_Commit=COMMIT, **linked)
            else:
                self._answer(200, data, ETag=tag, X_Repo_Commit=COMMIT)
        else:
            self._answer(404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.status:
            self._answer(self.server.status)
        elif self.path == "/api/repos/create":
            self._json(
                {"url": f"{self.server.endpoint}/me/model", "name": "me/model", "id": "me/model"}
            )
        elif self.path.endswith("/preupload/main"):
            paths = [entry["path"] for entry in json.loads(body)["files"]]
            self._json(
                {
                    "files": [
                        {"path": path, "uploadMode": "regular", "shouldIgnore": False}
                        for path in paths
                    ]
                }
            )
        elif self.path.split("?")[0].endswith("/commit/main"):
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.server.pushed[entry["value"]["path"]] = base64.b64decode(
                        entry["value"]["content"]
                    )
            self._json(
                {
                    "commitUrl": f"{self.server.endpoint}/me/model/commit/{COMMIT}",
                    "commitOid": COMMIT,
                }
            )
        else:
            self._answer(404)


class Storage(ThreadingHTTPServer):
    """Another host that serves bytes at secret addresses, and records the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StorageHandler)
        self.contents: list[bytes] = []
        self.request_headers: list[dict[str, str]] = []

    def hold(self, data: bytes) -> str:
        self.contents.append(data)
        return f"http://localhost:{self.server_address[1]}/{len(self.contents) - 1}"


class StorageHandler(BaseHTTPRequestHandler):
    server: Storage

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self.server.request_headers.append(
            {name.lower(): value for name, value in self.headers.items()}
        )
        data = self.server.contents[int(self.path.strip("/"))]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if self.command == "GET" else b"")

    do_HEAD = do_GET


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    """Serve in a thread."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


class Fetch:
    """`download` from the test's server into the test's cache."""

    def __init__(self, server: Hub, cache: Path) -> None:
        self.options: dict[str, Any] = {"endpoint": server.endpoint, "cache_dir": cache}

    def __call__(
        self,
        repo: str = "me/model",
        revision: str = "",
        tier: int = 0,
        strategy: Any = "auto",
        momentum: bool = False,
    ) -> Path:
        return download(
            repo, revision, tier=tier, strategy=strategy, momentum=momentum, **self.options
        )


def right(place: Path, tier: int, strategy: Any = "auto") -> bool:
    expected = init_weights(CONFIG, 5, tier)
    params = load(place, tier, strategy)
    return all(torch.equal(params[name], expected[name]) for name in expected)
