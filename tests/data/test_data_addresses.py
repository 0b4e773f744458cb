"""Addresses that a run names: checked connections, redirects and the number of files."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aftermath.base.allowed_locations import RunAccess
from aftermath.base.errors import Unsuitable
from aftermath.config.chain_values import location_of
from aftermath.config.data_sources import DataLocationChoice
from aftermath.data.http import MOST_FILES, HttpClient, numbered_urls
from aftermath.data.source import DataError, SourceUnavailable
from aftermath.rules.model import DataLocation
from aftermath.train.locations import check_place, open_source
from faulty_web import Web, serving

NAMED = "127.0.0.2"
"""An address of this machine that stands for a public one."""

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere only 127.0.0.1 is there to listen at"
)


def only_named(address: str) -> bool:
    return address == NAMED


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as server:
        server.files = {"/a.bin": bytes(4096)}
        yield server


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Set the addresses that names resolve to, one for each look-up."""
    answers: dict[str, list[str]] = {}
    ask = socket.getaddrinfo

    def look_up(host: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return ask(answers[name].pop(0) if name in answers else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return answers


def client() -> HttpClient:
    return HttpClient(pause=0.001, timeout=0.5, permits=only_named)


@linux
def test_name_with_allowed_address_is_read(web: Web, names: dict[str, list[str]]) -> None:
    names["tokens.example"] = [NAMED]
    with serving(host=NAMED) as public:
        public.files = web.files
        assert (
            client().read_range(f"http://tokens.example:{public.server_port}/a.bin", 0, 8).size
            == 4096
        )


def test_name_with_private_address_is_refused_without_connection(
    web: Web, names: dict[str, list[str]]
) -> None:
    names["tokens.example"] = ["127.0.0.1"]
    with pytest.raises(
        Unsuitable, match=r"tokens\.example \(127\.0\.0\.1\)[\s\S]*--allow-private-network"
    ):
        client().read_range(f"http://tokens.example:{web.server_port}/a.bin", 0, 8)
    assert web.requests == []


def test_rebound_name_connects_to_checked_address(web: Web, names: dict[str, list[str]]) -> None:
    names["tokens.example"] = [NAMED, *["127.0.0.1"] * 9]
    with pytest.raises((SourceUnavailable, Unsuitable)):
        client().read_range(f"http://tokens.example:{web.server_port}/a.bin", 0, 8)
    assert web.requests == []


@linux
def test_redirect_to_private_address_is_refused(web: Web) -> None:
    with serving(host=NAMED) as public:
        public.faults = [f"to {web.url}/a.bin"]
        with pytest.raises(Unsuitable, match=r"127\.0\.0\.1"):
            client().read_range(f"{public.url}/a.bin", 0, 8)
    assert web.requests == []


def test_redirect_to_invalid_port_raises_data_error(web: Web) -> None:
    web.faults = ["to http://a:99999999/x"]
    with pytest.raises(DataError, match="cannot open"):
        HttpClient(pause=0.0).read_range(f"{web.url}/a.bin", 0, 8)


@pytest.mark.parametrize(
    "written",
    [
        {"Server": "a..b:80"},
        {"Server": f"{'x' * 64}:80"},
        {"Server": "[.]:1"},
        {"Http": {"location": {"SingleUrl": "http://h:99999999/x"}}},
    ],
)
def test_impossible_address_is_refused_before_lookup(written: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"is not a valid (HTTP )?address"):
        check_place(location(written))


def test_private_address_behind_proxy_is_refused(
    web: Web, names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names["tokens.example"] = ["127.0.0.1"]
    monkeypatch.setenv("http_proxy", web.url)
    with pytest.raises(Unsuitable, match=r"tokens\.example"):
        client().read_range("http://tokens.example/a.bin", 0, 8)
    assert web.requests == []


def location(written: dict[str, Any]) -> DataLocation:
    return location_of(DataLocationChoice.model_validate(written))


def http(files: dict[str, Any]) -> dict[str, Any]:
    return {"Http": {"location": files}}


PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "single": lambda where: http({"SingleUrl": f"http://{where}/a.bin"}),
    "numbered": lambda where: http(
        {"NumberedFiles": {"url_template": f"http://{where}/{{}}.bin", "num_files": 2}}
    ),
    "mixture": lambda where: {"WeightedHttp": f"http://{where}/m.json"},
    "server": lambda where: {"Server": where},
}


@pytest.mark.parametrize("kind", PLACES)
def test_private_network_needs_consent_of_member(web: Web, kind: str) -> None:
    place = location(PLACES[kind](f"127.0.0.1:{web.server_port}"))
    with pytest.raises(Unsuitable, match="--allow-private-network"):
        open_source(place, 16, 256, access=RunAccess())
    assert web.requests == []


def test_member_allowing_private_network_reads_it(web: Web) -> None:
    place = location(PLACES["single"](f"127.0.0.1:{web.server_port}"))
    assert open_source(place, 16, 256, access=RunAccess(private_network=True)).sequences == 128


@pytest.mark.parametrize("count", [MOST_FILES + 1, 2**32 - 1])
def test_numbered_files_beyond_limit_are_refused_at_once(count: int) -> None:
    with pytest.raises(DataError, match=rf"names {count} files[\s\S]*Lower num_files"):
        numbered_urls("https://example.org/{}.bin", 0, 0, count)


def test_mixture_counts_files_of_all_sources(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aftermath.data.source.MOST_FILES", 3)
    web.files |= {f"/{number}.bin": bytes(64) for number in range(2)}
    files = {"url_template": f"{web.url}/{{}}.bin", "num_files": 2}
    place = {"Http": {"location": {"NumberedFiles": files}}}
    web.files["/m.json"] = json.dumps({"providers": [place, place]}).encode()
    with pytest.raises(DataError, match="above the limit of 3 files"):
        open_source(location({"WeightedHttp": f"{web.url}/m.json"}), 16, 256)
