"""Token files behind HTTP: the requests, and every way in which a server can fail."""

import json
import logging
import resource
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.data.cache import Cache
from aftermath.data.fingerprint import records_hash
from aftermath.data.gcs import bucket_urls
from aftermath.data.http import (
    TRIES,
    HttpClient,
    HttpFiles,
    merge_adjacent,
    numbered_urls,
    redacted_url,
)
from aftermath.data.local import open_tokens
from aftermath.data.source import DataError, SourceUnavailable, Span
from aftermath.data.tokens import TokenFiles
from faulty_web import Web, serving

TOKENS = np.random.default_rng(3).integers(0, 250, 6000).astype("<u2")
CLIENT = HttpClient(pause=0.001, timeout=0.5)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as server:
        server.files["/a.bin"] = TOKENS.tobytes()
        yield server


def opened(web: Web, cache: Cache | None = None, **options: object) -> TokenFiles:
    store = HttpFiles([f"{web.url}/a.bin"], CLIENT, cache)
    return TokenFiles(store, "a", 2, 16, vocab_size=256, **options)  # type: ignore[arg-type]


def test_http_file_equals_local_file(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(TOKENS.tobytes())
    here = open_tokens(tmp_path, 2, 16, vocab_size=256, shuffle_seed=b"s")
    there = opened(web, shuffle_seed=b"s")
    assert there.sequences == here.sequences == 375
    indices = [*range(100), 374, 375, 374]
    assert np.array_equal(there.read(indices), here.read(indices))
    assert records_hash(there.record()) == records_hash(here.record())


def test_adjacent_sequences_share_one_request(web: Web) -> None:
    source = opened(web)
    web.requests.clear()
    source.read([3, 5, 4, 9, 5])
    assert sorted(web.requests) == [("/a.bin", "bytes=288-319"), ("/a.bin", "bytes=96-191")]


@given(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 20))))
def test_merging_keeps_every_span_once(places: set[tuple[int, int]]) -> None:
    spans = {Span(file, 4 * place, 4) for file, place in places}
    groups = merge_adjacent(spans)
    assert sorted(span for group in groups for span in group) == sorted(spans)
    for one, other in pairwise(groups):
        assert (one[-1].file, one[-1].start + 4) != (other[0].file, other[0].start)


@pytest.mark.parametrize("faults", [["503"], ["cut"], ["slow"], ["429", "500", "cut"]])
def test_temporary_failure_is_retried(web: Web, faults: list[str]) -> None:
    source = opened(web)
    web.faults = faults
    assert source.read([7])[0].tolist() == TOKENS[112:128].tolist()


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (["429 after 3", "503 after 2"], [3.0, 2.0]),
        (["429 after 99999"], [60.0]),
        (["429 after Wed, 21 Oct 2026 07:28:00 GMT", "429 after -1", "429"], [0.001, 0.002, 0.004]),
    ],
)
def test_retry_after_sets_pause_before_next_try(
    web: Web, monkeypatch: pytest.MonkeyPatch, faults: list[str], expected: list[float]
) -> None:
    source = opened(web)
    pauses = list[float]()
    web.faults = faults
    monkeypatch.setattr("aftermath.data.http.time.sleep", pauses.append)
    assert source.read([7])[0].tolist() == TOKENS[112:128].tolist()
    assert pauses == expected


def test_rate_limiting_server_error_has_fix(web: Web) -> None:
    source = opened(web)
    web.faults = ["429"] * TRIES
    with pytest.raises(SourceUnavailable, match=r"status 429\nWait a minute"):
        source.read([7])


def test_server_behind_broken_proxy_has_fix_with_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(SourceUnavailable, match="the proxy in http_proxy"):
        CLIENT.read_range("http://tokens.example/a.bin", 0, 8)


def test_unavailable_server_is_read_after_its_return(web: Web) -> None:
    source = opened(web)
    port = web.server_address[1]
    web.faults = ["503"] * 4
    with pytest.raises(
        SourceUnavailable, match=r"cannot read http://127\.0\.0\.1:\d+/a\.bin: status 503"
    ):
        source.read([1])
    web.shutdown()
    web.server_close()
    with pytest.raises(SourceUnavailable):
        HttpFiles([f"{web.url}/a.bin"], HttpClient(pause=0.001, timeout=0.5))
    with serving(port) as again:
        again.files = web.files
        assert source.read([1])[0].tolist() == TOKENS[16:32].tolist()


def test_changed_http_file_is_refused(web: Web) -> None:
    source = opened(web)
    web.etag = '"2"'
    with pytest.raises(DataError, match=r"changed while in use.* to another ETag") as caught:
        source.read([1])
    assert not isinstance(caught.value, SourceUnavailable)
    web.etag = '"1"'
    web.files["/a.bin"] = TOKENS.tobytes()[:-2]
    with pytest.raises(DataError, match="from 12000 to 11998 bytes"):
        source.read([1])


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("whole", "does not support Range requests"),
        ("404", "status 404"),
        ("401", "status 401"),
        ("to file:///etc/passwd", "redirects to file:, which this client does not follow"),
        ("to ftp://x/y", "redirects to ftp:"),
    ],
)
def test_permanent_failure_is_not_retried(web: Web, fault: str, sentence: str) -> None:
    web.faults = [fault]
    with pytest.raises(DataError, match=sentence) as caught:
        opened(web)
    assert not isinstance(caught.value, SourceUnavailable)
    assert len(web.requests) == 1


def test_reply_of_wrong_length_is_refused(web: Web) -> None:
    source = opened(web)
    web.faults = ["long"] * 4
    with pytest.raises(DataError, match=r"sent more of .* than requested"):
        source.read([0])


def test_empty_http_file_is_refused(web: Web) -> None:
    web.files["/a.bin"] = b""
    with pytest.raises(DataError, match="is empty"):
        opened(web)


def test_redirects_are_followed(web: Web) -> None:
    web.files["/b.bin"] = web.files.pop("/a.bin")
    web.faults = [f"to {web.url}/b.bin"]
    assert opened(web).sequences == 375


def test_redirect_body_is_not_read(web: Web) -> None:
    """It may decompress to a thousand times its size before its bytes are counted."""
    web.faults = ["heavy", "heavy"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(CLIENT.read_range(f"{web.url}/a.bin", 0, 64).data) == 64
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


@pytest.mark.parametrize("fault", ["drip", "hints"])
def test_reply_that_never_starts_times_out(web: Web, fault: str) -> None:
    """Single bytes that arrive do not extend the deadline."""
    web.faults = [fault] * TRIES
    with pytest.raises(SourceUnavailable, match="the server sends too slowly"):
        HttpClient(pause=0.001, timeout=0.2).read_range(f"{web.url}/a.bin", 0, 64)
    assert len(CLIENT.read_range(f"{web.url}/a.bin", 0, 64).data) == 64


def test_address_secrets_are_not_shown(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    assert (
        redacted_url("https://ada:secret@host:1/f.bin?token=secret#secret")
        == "https://host:1/f.bin"
    )
    address = f"{web.url}/none?token=secret".replace("//", "//ada:secret@")
    with caplog.at_level(logging.WARNING), pytest.raises(DataError) as caught:
        HttpFiles([address], CLIENT)
    assert "secret" not in str(caught.value) + caplog.text


def test_numbered_http_files_are_read_in_order() -> None:
    assert numbered_urls("http://x/f{}.bin", 9, 3, 2) == ["http://x/f009.bin", "http://x/f010.bin"]
    with pytest.raises(DataError, match="exactly once"):
        numbered_urls("http://x/f.bin", 0, 0, 2)


def test_bucket_is_listed_page_by_page(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", web.url)
    path = "/storage/v1/b/my-bucket/o?prefix=some%2F&delimiter=%2F&fields=items(name),nextPageToken"
    first = {
        "items": [{"name": "some/b.ds"}, {"name": "some/"}, {"name": "some/x.json"}],
        "nextPageToken": "n&",
    }
    second = {"items": [{"name": "some/a 1.ds"}]}
    web.files["/storage/v1/b/my-bucket/o"] = b"{}"
    web.files[path] = json.dumps(first).encode()
    web.files[f"{path}&pageToken=n%26"] = json.dumps(second).encode()
    del web.files["/storage/v1/b/my-bucket/o"]
    urls = bucket_urls("my-bucket", "/some", CLIENT)
    assert urls == [f"{web.url}/my-bucket/some/a%201.ds", f"{web.url}/my-bucket/some/b.ds"]
    web.files[path] = b'{"items": []}'
    with pytest.raises(DataError, match="has no token files"):
        bucket_urls("my-bucket", "some", CLIENT)
    web.files[path] = b"<html>"
    with pytest.raises(DataError, match="cannot be read"):
        bucket_urls("my-bucket", "some", CLIENT)
    with pytest.raises(DataError, match="is not a valid bucket name"):
        bucket_urls("../x", "some", CLIENT)


def test_cached_sequence_is_not_fetched_again(web: Web, tmp_path: Path) -> None:
    first = opened(web, Cache(tmp_path)).read([3, 4, 8])
    web.requests.clear()
    source = opened(web, Cache(tmp_path))
    assert np.array_equal(source.read([3, 4, 8]), first)
    assert len(web.requests) == 1  # the request that opens the file
    for path in tmp_path.rglob("*-32"):
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert np.array_equal(source.read([3, 4, 8]), first)
    assert len(web.requests) == 3
    web.etag = '"2"'
    opened(web, Cache(tmp_path)).read([3])
    assert len(web.requests) == 5


def test_unwritable_cache_warns_once(
    web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    source = opened(web, Cache(tmp_path / "file"))
    assert len(source.read([1, 2, 9])) == 3
    assert len(source.read([4])) == 1
    assert [record.getMessage() for record in caplog.records if "cache" in record.name] == [
        f"stopped using the cache {tmp_path / 'file'}, which cannot store more data: Not a directory"
    ]


def test_cache_stops_at_its_limit(web: Web, tmp_path: Path) -> None:
    opened(web, Cache(tmp_path, most=3 * 4096 - 1)).read([1, 5, 9])
    assert len(list(tmp_path.rglob("*-32"))) == 2


def test_cache_limit_holds_for_processes_together(web: Web, tmp_path: Path) -> None:
    for number in (1, 5, 9):  # each `Cache` counts like a separate process
        opened(web, Cache(tmp_path, most=2 * 4096)).read([number])
    assert len(list(tmp_path.rglob("*-32"))) == 2
