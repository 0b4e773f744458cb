"""Test uploads by signed links to a server that checks them like object storage."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from aftermath.base.outputs import MARK
from aftermath.model.json_documents import CheckpointError
from aftermath.train import put_links
from aftermath.train.assembly import hub_of
from aftermath.train.put_links import PutLinks
from aftermath.train.settings import TrainSettings

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights" * 50_000,
    "tokenizer.json": b"",
    MARK: b"ours",
}
SECRET = "f00dcafe"


class Bucket:
    """Accepts a PUT with a length and a valid signature. `/links/NAME` signs links for two
    requests.
    """

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.requests: list[str] = []
        """Methods and paths, in order."""
        self.now = 0
        """PUT requests so far. Links expire by this clock."""
        self.unavailable = 0
        """How many of the next requests get a 503."""
        app = web.Application(client_max_size=1 << 22)
        app.router.add_put("/bucket/{checkpoint}/{name}", self.put)
        app.router.add_get("/links/{checkpoint}", self.links)
        self.server = TestServer(app)

    def sign(self, checkpoint: str, name: str, seconds: int) -> str:
        return str(
            self.server.make_url(
                f"/bucket/{checkpoint}/{name}?expires={self.now + seconds}&signature={SECRET}"
            )
        )

    def sign_all(self, checkpoint: str, seconds: int) -> str:
        return json.dumps(
            {name: self.sign(checkpoint, name, seconds) for name in FILES if name != MARK}
        )

    async def links(self, request: web.Request) -> web.Response:
        self.requests.append(f"GET {request.path}")
        return web.Response(text=self.sign_all(request.match_info["checkpoint"], 2))

    async def put(self, request: web.Request) -> web.Response:
        self.now += 1
        self.requests.append(f"PUT {request.match_info['name']}")
        if self.unavailable:
            self.unavailable -= 1
            return web.Response(status=503, headers={"Retry-After": "6"})
        if request.headers.get("Transfer-Encoding") or request.content_length is None:
            return web.Response(status=411)
        if self.now > int(request.query["expires"]) or request.query["signature"] != SECRET:
            return web.Response(status=403, text=f"SignatureDoesNotMatch {request.query_string}")
        body = await request.read()
        assert len(body) == request.content_length
        self.stored[f"{request.match_info['checkpoint']}/{request.match_info['name']}"] = body
        return web.Response()


@pytest.fixture
async def bucket() -> AsyncIterator[Bucket]:
    storage = Bucket()
    async with storage.server:
        yield storage


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "demo-step6"
    directory.mkdir()
    for name, data in FILES.items():
        (directory / name).write_bytes(data)
    return directory


class Links:
    """Writes a file of links."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def name(self, document: str) -> str:
        self.place.write_text(document)
        return str(self.place)


@pytest.fixture
def links(tmp_path: Path) -> Links:
    return Links(tmp_path / "links.json")


STORED = {f"demo-step6/{name}": data for name, data in FILES.items() if name != MARK}


async def put(source: str, directory: Path) -> tuple[str, list[float]]:
    """Return the result of `put`, and the pauses before its retries."""
    pauses: list[float] = []
    return await asyncio.to_thread(PutLinks(source, pauses.append).put, directory), pauses


async def test_put_of_all_files_ends_with_config(
    bucket: Bucket, checkpoint: Path, links: Links
) -> None:
    source = links.name(bucket.sign_all("demo-step6", 10))
    PutLinks(source).check()
    summary, pauses = await put(source, checkpoint)
    assert summary == f"{bucket.server.make_url('').origin()} (3 files of demo-step6)"
    assert bucket.stored == STORED
    assert bucket.requests == ["PUT model.safetensors", "PUT tokenizer.json", "PUT config.json"]
    assert pauses == []


async def test_address_signs_each_file_separately(bucket: Bucket, checkpoint: Path) -> None:
    address = f"{bucket.server.make_url('/links')}/{put_links.CHECKPOINT}?token={SECRET}"
    hub = hub_of(
        TrainSettings(run_id="demo", checkpoint_dir=checkpoint.parent, checkpoint_put_links=address)
    )
    assert hub is not None
    assert not hub.recordable
    await asyncio.to_thread(hub.upload, checkpoint, "demo step 6")
    assert bucket.stored == STORED
    assert bucket.requests[::2] == ["GET /links/demo-step6"] * 3


async def test_expired_link_is_refused_once_and_not_shown(
    bucket: Bucket, checkpoint: Path, links: Links, caplog: pytest.LogCaptureFixture
) -> None:
    source = links.name(bucket.sign_all("demo-step6", 1))
    with (
        caplog.at_level(logging.DEBUG, logger="aftermath"),
        pytest.raises(
            CheckpointError,
            match=r"refused the PUT of tokenizer\.json \(403\): the link has expired",
        ) as e,
    ):
        await put(source, checkpoint)
    assert bucket.requests == ["PUT model.safetensors", "PUT tokenizer.json"]
    assert (
        SECRET
        not in f"{e.value} {e.value.fix} {e.value.__cause__} {caplog.text} {PutLinks(source)}"
    )


async def test_temporarily_unavailable_put_server_is_retried(
    bucket: Bucket, checkpoint: Path, links: Links
) -> None:
    source = links.name(bucket.sign_all("demo-step6", 10))
    bucket.unavailable = 2
    # the server's delay, and then the longer backoff
    assert (await put(source, checkpoint))[1] == [6.0, 8.0]
    assert bucket.stored == STORED


async def test_permanently_unavailable_put_server_is_abandoned(
    bucket: Bucket, checkpoint: Path, links: Links
) -> None:
    source = links.name(bucket.sign_all("demo-step6", 10))
    bucket.unavailable = 99
    with pytest.raises(
        CheckpointError,
        match=r"the PUT of model\.safetensors to .* failed 5 times: it answered 503",
    ):
        await put(source, checkpoint)
    assert bucket.stored == {}


async def test_unreachable_put_server_error_hides_link(
    bucket: Bucket, checkpoint: Path, links: Links
) -> None:
    source = links.name(bucket.sign_all("demo-step6", 10))
    await bucket.server.close()
    with pytest.raises(CheckpointError, match="failed 5 times: cannot connect") as caught:
        await put(source, checkpoint)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("no json", "is not a JSON object of links"),
        (f'["https://bucket.example/?{SECRET}"]', "is not a JSON object of links"),
        (
            f'{{"config.json": "http://bucket.example/?{SECRET}"}}',
            r"the link for config\.json is not an https address",
        ),
        (
            f'{{"config.json": "https:///?{SECRET}"}}',
            r"the link for config\.json is not an https address",
        ),
        (None, "cannot read"),
    ],
)
def test_document_without_links_is_refused(links: Links, document: str | None, why: str) -> None:
    source = links.name(document) if document is not None else str(links.place)
    with pytest.raises(CheckpointError, match=why) as caught:
        PutLinks(source).check()
    assert SECRET not in f"{caught.value} {caught.value.fix}"


def test_unencrypted_link_address_is_refused() -> None:
    for scheme in ("http", "htps"):
        with pytest.raises(
            CheckpointError, match=rf"{scheme}://signer\.example is not an https address"
        ) as caught:
            PutLinks(f"{scheme}://signer.example/{SECRET}?token={SECRET}").check()
        assert SECRET not in str(caught.value)
    for address in ("https://signer.example/{checkpoint}", "http://127.0.0.1:9000/links"):
        PutLinks(address).check()


async def test_file_without_link_is_found_before_any_put(
    bucket: Bucket, checkpoint: Path, links: Links
) -> None:
    source = links.name(json.dumps({"config.json": bucket.sign("demo-step6", "config.json", 10)}))
    with pytest.raises(
        CheckpointError, match=r"there is no link for model\.safetensors, tokenizer\.json"
    ):
        await put(source, checkpoint)
    assert bucket.requests == []
