"""Test which proxy a connection uses, for common values of the proxy variables."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import httpx
import pytest

from aftermath.base.errors import UsageError
from aftermath.base.proxies import ProxyTransport, proxy_for, proxy_url
from faulty_web import Web, serving

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
P = "http://proxy.example:3128"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("url", "variables", "expected"),
    [
        ("https://rpc.example", {}, None),
        ("https://rpc.example", {"HTTPS_PROXY": P}, P),
        ("wss://rpc.example", {"HTTPS_PROXY": P}, P),
        ("http://rpc.example", {"HTTPS_PROXY": P}, None),
        ("http://rpc.example", {"ALL_PROXY": "proxy.example:3128"}, P),
        ("ws://rpc.example", {"http_proxy": P, "ALL_PROXY": "http://other.example"}, P),
        *(
            (f"http://{host}:8899", {"HTTP_PROXY": P}, None)
            for host in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0")
        ),
        ("http://rpc.example", {"HTTP_PROXY": P, "NO_PROXY": "*"}, None),
        ("http://rpc.example", {"HTTP_PROXY": P, "NO_PROXY": "localhost, .example"}, None),
        ("http://rpc.example", {"HTTP_PROXY": P, "NO_PROXY": "xample,pc.example"}, P),
        ("http://rpc.example:99", {"HTTP_PROXY": P, "NO_PROXY": "rpc.example:99"}, None),
        ("http://rpc.example:98", {"HTTP_PROXY": P, "NO_PROXY": "rpc.example:99"}, P),
        ("http://10.1.2.3", {"HTTP_PROXY": P, "NO_PROXY": "10.0.0.0/8"}, None),
        ("http://10.1.2.3", {"HTTP_PROXY": P, "NO_PROXY": "fe80::/10,[::1],11.0.0.0/8"}, P),
        ("http://[fe80::7]", {"HTTP_PROXY": P, "NO_PROXY": "localhost,fe80::/10"}, None),
        ("http://[2a00::7]:80", {"HTTP_PROXY": P, "NO_PROXY": "[2a00::7]"}, None),
        ("http://[2a00::7]:80", {"HTTP_PROXY": P, "NO_PROXY": "[2a00::7]:80"}, None),
    ],
)
def test_proxy_variables_choose_proxy(
    environment: pytest.MonkeyPatch, url: str, variables: dict[str, str], expected: str | None
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    assert proxy_url(url) == expected


@pytest.mark.parametrize("proxy", ["ftp://p.example", "http://", "http://p:port", "socks9://p:1"])
def test_unusable_proxy_is_refused_with_its_variable(
    environment: pytest.MonkeyPatch, proxy: str
) -> None:
    environment.setenv("https_proxy", proxy)
    with pytest.raises(UsageError, match=r"https_proxy is not[\s\S]*NO_PROXY=rpc\.example"):
        proxy_for("https://rpc.example")


@pytest.mark.parametrize("url", ["http://rpc.example", "ws://rpc.example"])
def test_socks_proxy_needs_its_package(environment: pytest.MonkeyPatch, url: str) -> None:
    environment.setenv("ALL_PROXY", "socks://127.0.0.1:1080/")
    package = "socksio" if url.startswith("http") else "python_socks"
    if find_spec(package) is not None:
        assert proxy_url(url) == "socks5h://127.0.0.1:1080/"
        return
    with pytest.raises(UsageError, match=r"ALL_PROXY names a SOCKS proxy[\s\S]*pip install"):
        proxy_url(url)


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as server:
        yield server


async def test_transport_sends_request_through_proxy(
    environment: pytest.MonkeyPatch, web: Web
) -> None:
    web.files["/a"] = b"tokens"
    environment.setenv("HTTP_PROXY", web.url)
    async with httpx.AsyncClient(transport=ProxyTransport()) as client:
        for url in ("http://rpc.example/a", f"{web.url}/a"):
            assert (await client.get(url)).content == b"tokens"
    assert [path for path, _ in web.requests] == ["http://rpc.example/a", "/a"]
