#!/usr/bin/env python3
"""Draw the Mermaid blocks of README.md and docs/ as pictures for the site (`site_pages.py`).

npm pack mermaid@11 && tar xzf mermaid-*.tgz
python scripts/diagrams.py package/dist/mermaid.min.js
"""

# GitHub draws the blocks itself. The site shows the pictures in docs/assets, so it loads no
# script.

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_INK = "currentColor"
_PAPER = "var(--md-default-bg-color, Canvas)"
_CSS = f"""
g, text, tspan {{ color: inherit !important; }}
text, tspan {{ fill: {_INK} !important; font-size: 14px; }}
.messageText {{ paint-order: stroke; stroke: {_PAPER} !important; stroke-width: 4px; }}
.node rect, .node path, .node circle, rect.actor, .note, .labelBox, .statediagram-state rect.basic
{{ fill: {_PAPER} !important; stroke: {_INK} !important; stroke-width: 1px !important; rx: 4px; }}
.cluster rect {{ fill: {_INK} !important; fill-opacity: .05; stroke: {_INK} !important; stroke-opacity: .5; }}
.edgePaths path, .flowchart-link, .transition, .actor-line, .messageLine0, .messageLine1, .loopLine
{{ stroke: {_INK} !important; }}
.actor-line {{ stroke-opacity: .5; }}
.edgeLabel rect, .edgeLabel .background {{ fill: {_PAPER} !important; opacity: 1 !important; }}
.marker, marker path, marker circle, .state-start {{ fill: {_INK} !important; stroke: {_INK} !important; }}
"""
_SETTINGS = {
    "startOnLoad": False,
    "securityLevel": "strict",
    "deterministicIds": True,
    "htmlLabels": False,
    "fontFamily": "sans-serif",
    "themeCSS": _CSS,
    "flowchart": {"htmlLabels": False, "padding": 12},
}
# Mermaid's attributes for editing, not needed here
_KEPT_BY_MERMAID = re.compile(r' data-[a-z]+="[^"]*"')
_DRAW = """
const [settings, name, text, done] = arguments;
mermaid.initialize(settings);
mermaid.render(name, text).then(({ svg }) => {
  document.body.innerHTML = svg;
  done(new XMLSerializer().serializeToString(document.querySelector("svg")));
}, (error) => done("error: " + error));
"""


def blocks(page: Path) -> list[str]:
    """Return the sources of a page's diagrams."""
    return BLOCK.findall(page.read_text())


def picture(page: Path, number: int) -> Path:
    """Return the path of the picture of a page's diagram. `number` counts from 1."""
    return page.parent / "assets" / f"{page.stem}-{number}.svg"


def stamp(source: str) -> str:
    """Return the tag with the hash of a picture's source."""
    return f"<desc>drawn from {hashlib.sha256(source.encode()).hexdigest()}</desc>"


def inline(page: Path, number: int, source: str) -> str:
    """Return the picture as HTML for a page of the site.

    Raises ValueError for a picture of another source.
    """
    place = picture(page, number)
    if not place.exists() or stamp(source) not in (drawn := place.read_text()):
        raise ValueError(
            f"{place} is not drawn from its text in {page.name}: see scripts/diagrams.py"
        )
    return f'<div class="diagram" style="overflow-x: auto">{drawn.strip()}</div>'


def main() -> int:
    """Draw every picture. Return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mermaid", type=Path, help="Mermaid's own file, mermaid.min.js")
    given = parser.parse_args()
    chromium = shutil.which("chromium")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        print(
            "error: no chromium and chromedriver here\nfix: apt-get install chromium chromium-driver",
            file=sys.stderr,
        )
        return 1
    if not given.mermaid.is_file():
        print(
            f"error: there is no {given.mermaid}\nfix: {__doc__.splitlines()[2].strip()}",
            file=sys.stderr,
        )
        return 1
    sources = {page: page for page in sorted(DOCS.glob("*.md"))}
    sources[DOCS / "index.md"] = DOCS.parent / "README.md"  # what the site calls README
    pages = {page: found for page, source in sources.items() if (found := blocks(source))}
    with tempfile.TemporaryDirectory() as scratch:
        empty = Path(scratch) / "empty.html"
        empty.write_text(
            f"<!doctype html><meta charset=utf-8><script>{given.mermaid.read_text()}</script><body>"
        )
        _draw(pages, empty, chromium, driver)
    return 0


def _draw(pages: dict[Path, list[str]], empty: Path, chromium: str, driver: str) -> None:
    """Write every picture. Raises ValueError for a text that Mermaid does not understand."""
    from selenium.webdriver import Chrome
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = chromium
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={empty.parent / 'profile'}",
    ):
        options.add_argument(flag)
    with Chrome(options=options, service=Service(driver)) as browser:
        browser.get(empty.as_uri())
        for page, sources in pages.items():
            for number, source in enumerate(sources, 1):
                place = picture(page, number)
                svg = browser.execute_async_script(_DRAW, _SETTINGS, place.stem, source)
                if svg.startswith("error:"):
                    raise ValueError(f"{page.name}, diagram {number}: {svg}")
                head, bracket, rest = svg.partition(">")
                # else nobody could read it
                head = head.replace("max-width", "min-width: 34rem; max-width")
                place.write_text(
                    _KEPT_BY_MERMAID.sub("", f"{head}{bracket}{stamp(source)}{rest}\n")
                )
                print(place.relative_to(DOCS.parent))


if __name__ == "__main__":
    sys.exit(main())
