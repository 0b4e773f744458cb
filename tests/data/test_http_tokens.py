"""Token files behind HTTP: what is asked for, and every way a server can fail."""

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
from aftermath.data.fingerprint import hash_of
from aftermath.data.gcs import bucket_urls
from aftermath.data.http import TRIES, HttpClient, HttpFiles, merged, numbered, shown
from aftermath.data.local import open_tokens
from aftermath.data.source import DataError, SourceAway, Span
from aftermath.data.tokens import TokenFiles
from faulty_web import Web, serving

TOKENS = np.random.default_rng(3).integers(0, 250, 6000).astype("<u2")
CLIENT = HttpClient(pause=0.001, timeout=0.5)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as found:
        found.files["/a.bin"] = TOKENS.tobytes()
        yield found


def opened(web: Web, cache: Cache | None = None, **given: object) -> TokenFiles:
    store = HttpFiles([f"{web.url}/a.bin"], CLIENT, cache)
    return TokenFiles(store, "a", 2, 16, vocab_size=256, **given)  # type: ignore[arg-type]


def test_it_is_what_the_same_file_is_on_this_machine(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(TOKENS.tobytes())
    here = open_tokens(tmp_path, 2, 16, vocab_size=256, shuffle_seed=b"s")
    there = opened(web, shuffle_seed=b"s")
    assert there.sequences == here.sequences == 375
    indices = [*range(100), 374, 375, 374]
    assert np.array_equal(there.read(indices), here.read(indices))
    assert hash_of(there.record()) == hash_of(here.record())


def test_adjacent_sequences_are_one_request(web: Web) -> None:
    source = opened(web)
    web.asked.clear()
    source.read([3, 5, 4, 9, 5])
    assert sorted(web.asked) == [("/a.bin", "bytes=288-319"), ("/a.bin", "bytes=96-191")]


@given(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 20))))
def test_merging_keeps_every_span_once(places: set[tuple[int, int]]) -> None:
    spans = {Span(file, 4 * place, 4) for file, place in places}
    groups = merged(spans)
    assert sorted(span for group in groups for span in group) == sorted(spans)
    for one, other in pairwise(groups):
        assert (one[-1].file, one[-1].start + 4) != (other[0].file, other[0].start)


@pytest.mark.parametrize("faults", [["503"], ["cut"], ["slow"], ["429", "500", "cut"]])
def test_what_passes_is_tried_again(web: Web, faults: list[str]) -> None:
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
    source, pauses = opened(web), list[float]()
    web.faults = faults
    monkeypatch.setattr("aftermath.data.http.time.sleep", pauses.append)
    assert source.read([7])[0].tolist() == TOKENS[112:128].tolist()
    assert pauses == expected


def test_server_that_limits_requests_has_fix_for_it(web: Web) -> None:
    source = opened(web)
    web.faults = ["429"] * TRIES
    with pytest.raises(SourceAway, match=r"status 429\nWait a minute"):
        source.read([7])


def test_server_behind_broken_proxy_has_fix_with_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(SourceAway, match="the proxy that http_proxy names"):
        CLIENT.part("http://tokens.example/a.bin", 0, 8)


def test_a_server_that_is_away_may_come_back(web: Web) -> None:
    source, port = opened(web), web.server_address[1]
    web.faults = ["503"] * 4
    with pytest.raises(SourceAway, match=r"cannot read http://127\.0\.0\.1:\d+/a\.bin: status 503"):
        source.read([1])
    web.shutdown()
    web.server_close()
    with pytest.raises(SourceAway):
        HttpFiles([f"{web.url}/a.bin"], HttpClient(pause=0.001, timeout=0.5))
    with serving(port) as again:
        again.files = web.files
        assert source.read([1])[0].tolist() == TOKENS[16:32].tolist()


def test_a_changed_file_is_refused(web: Web) -> None:
    source = opened(web)
    web.etag = '"2"'
    with pytest.raises(DataError, match=r"was changed while in use.*another ETag") as told:
        source.read([1])
    assert not isinstance(told.value, SourceAway)
    web.etag, web.files["/a.bin"] = '"1"', TOKENS.tobytes()[:-2]
    with pytest.raises(DataError, match="had 12000 bytes, and has 11998"):
        source.read([1])


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("whole", "not served in parts"),
        ("404", "status 404"),
        ("401", "status 401"),
        ("to file:///etc/passwd", "redirects to file:, which is not followed"),
        ("to ftp://x/y", "redirects to ftp:"),
    ],
)
def test_what_does_not_pass_is_said_at_once(web: Web, fault: str, sentence: str) -> None:
    web.faults = [fault]
    with pytest.raises(DataError, match=sentence) as told:
        opened(web)
    assert not isinstance(told.value, SourceAway)
    assert len(web.asked) == 1


def test_an_answer_of_another_length_gives_no_tokens(web: Web) -> None:
    source = opened(web)
    web.faults = ["long"] * 4
    with pytest.raises(DataError, match="more was sent than was asked for"):
        source.read([0])


def test_an_empty_file_is_told(web: Web) -> None:
    web.files["/a.bin"] = b""
    with pytest.raises(DataError, match="is empty"):
        opened(web)


def test_redirects_are_followed(web: Web) -> None:
    web.files["/b.bin"] = web.files.pop("/a.bin")
    web.faults = [f"to {web.url}/b.bin"]
    assert opened(web).sequences == 375


def test_what_a_redirect_says_is_not_read(web: Web) -> None:
    """It may be a thousand times as much as was sent, and exists before anybody counts it."""
    web.faults = ["heavy", "heavy"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(CLIENT.part(f"{web.url}/a.bin", 0, 64).data) == 64
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


@pytest.mark.parametrize("fault", ["drip", "hints"])
def test_an_answer_that_never_begins_is_given_up(web: Web, fault: str) -> None:
    """However often something comes of it."""
    web.faults = [fault] * TRIES
    with pytest.raises(SourceAway, match="it sends too slowly"):
        HttpClient(pause=0.001, timeout=0.2).part(f"{web.url}/a.bin", 0, 64)
    assert len(CLIENT.part(f"{web.url}/a.bin", 0, 64).data) == 64


def test_secrets_in_an_address_are_not_told(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    assert shown("https://ada:secret@host:1/f.bin?token=secret#secret") == "https://host:1/f.bin"
    address = f"{web.url}/none?token=secret".replace("//", "//ada:secret@")
    with caplog.at_level(logging.WARNING), pytest.raises(DataError) as told:
        HttpFiles([address], CLIENT)
    assert "secret" not in str(told.value) + caplog.text


def test_numbered_files() -> None:
    assert numbered("http://x/f{}.bin", 9, 3, 2) == ["http://x/f009.bin", "http://x/f010.bin"]
    with pytest.raises(DataError, match="no single"):
        numbered("http://x/f.bin", 0, 0, 2)


def test_a_bucket_is_listed_page_by_page(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", web.url)
    asked = "/storage/v1/b/my-bucket/o?prefix=some%2F&delimiter=%2F&fields=items(name),nextPageToken"
    first = {"items": [{"name": "some/b.ds"}, {"name": "some/"}, {"name": "some/x.json"}], "nextPageToken": "n&"}
    second = {"items": [{"name": "some/a 1.ds"}]}
    web.files["/storage/v1/b/my-bucket/o"] = b"{}"
    web.files[asked] = json.dumps(first).encode()
    web.files[f"{asked}&pageToken=n%26"] = json.dumps(second).encode()
    del web.files["/storage/v1/b/my-bucket/o"]
    urls = bucket_urls("my-bucket", "/some", CLIENT)
    assert urls == [f"{web.url}/my-bucket/some/a%201.ds", f"{web.url}/my-bucket/some/b.ds"]
    web.files[asked] = b'{"items": []}'
    with pytest.raises(DataError, match="holds no token files"):
        bucket_urls("my-bucket", "some", CLIENT)
    web.files[asked] = b"<html>"
    with pytest.raises(DataError, match="cannot be read"):
        bucket_urls("my-bucket", "some", CLIENT)
    with pytest.raises(DataError, match="no name of a bucket"):
        bucket_urls("../x", "some", CLIENT)


def test_what_is_in_the_cache_is_not_fetched_again(web: Web, tmp_path: Path) -> None:
    first = opened(web, Cache(tmp_path)).read([3, 4, 8])
    web.asked.clear()
    source = opened(web, Cache(tmp_path))
    assert np.array_equal(source.read([3, 4, 8]), first)
    assert len(web.asked) == 1  # the look at the file
    for path in tmp_path.rglob("*-32"):
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert np.array_equal(source.read([3, 4, 8]), first)
    assert len(web.asked) == 3
    web.etag = '"2"'
    opened(web, Cache(tmp_path)).read([3])
    assert len(web.asked) == 5


def test_a_cache_that_cannot_be_written_is_told_once(
    web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    source = opened(web, Cache(tmp_path / "file"))
    assert len(source.read([1, 2, 9])) == 3
    assert len(source.read([4])) == 1
    assert [record.getMessage() for record in caplog.records if "cache" in record.name] == [
        f"the cache {tmp_path / 'file'} takes no more data, and is done without: Not a directory"
    ]


def test_a_cache_takes_no_more_than_it_may(web: Web, tmp_path: Path) -> None:
    opened(web, Cache(tmp_path, most=3 * 4096 - 1)).read([1, 5, 9])
    assert len(list(tmp_path.rglob("*-32"))) == 2


def test_cache_limit_holds_for_processes_together(web: Web, tmp_path: Path) -> None:
    for number in (1, 5, 9):  # each `Cache` counts as a process of its own does
        opened(web, Cache(tmp_path, most=2 * 4096)).read([number])
    assert len(list(tmp_path.rglob("*-32"))) == 2
