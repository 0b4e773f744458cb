"""Test in Chromium that text in diagrams has the page's colours in light and dark mode and is not
cut off.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.chrome.service import Service

from docs.test_site import ROOT, site  # noqa: F401 (a fixture)
from ui.web.test_observer_browser import DRIVER, chromium

# Return the colour of each text in a diagram, and whether it lies inside the image.
LETTERS = """
return [...document.querySelectorAll(".diagram text")].map((text) => {
  const picture = text.closest("svg").getBoundingClientRect(), own = text.getBoundingClientRect();
  const inside = own.left >= picture.left - 1 && own.right <= picture.right + 1;
  return [getComputedStyle(text.querySelector("tspan") ?? text).fill, inside];
});
"""


class Quiet(SimpleHTTPRequestHandler):
    """Does not log requests."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(site: Path) -> Iterator[str]:  # noqa: F811
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param("light", marks=pytest.mark.slow),
        pytest.param("dark", marks=pytest.mark.nightly),
    ],
)
def test_site_diagrams_have_colours_of_their_page(served: str, tmp_path: Path, scheme: str) -> None:
    with Chrome(options=chromium(tmp_path / "profile"), service=Service(DRIVER)) as browser:
        colours = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", colours)
        browser.get(f"{served}/architecture/")
        ink, paper = browser.execute_script(
            "return [getComputedStyle(document.querySelector('article')).color,"
            " getComputedStyle(document.body).backgroundColor]"
        )
        letters = browser.execute_script(LETTERS)
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        assert len(letters) > 60
        assert letters == [[ink, True]] * len(letters)
        fetched = browser.execute_script(
            "return performance.getEntriesByType('resource').map((one) => one.name)"
        )
        assert [url for url in fetched if not url.startswith(served)] == []
