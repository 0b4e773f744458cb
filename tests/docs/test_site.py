"""Test that the site builds, has no broken link and loads nothing from other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\srel=["']?stylesheet[^>]*href=["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    line = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "-f",
        str(ROOT / "config/site/mkdocs.yml"),
        "-d",
        str(place),
    ]
    completed = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return place


@pytest.mark.slow
def test_site_has_every_page_and_working_links(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / page.stem / "index.html").exists(), page.name
    assert "three members train one model" in (site / "index.html").read_text()


def test_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    assert [page for page in pages if FETCHED.search(page.read_text())] == []


def test_site_llms_txt_lists_every_page(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): ", text, re.MULTILINE)
    assert {*links} >= {page.name for page in (ROOT / "docs").glob("*.md")}
    assert all((site / name).is_file() for name in links)
    assert [
        line for line in text.splitlines() if line.startswith("- ") and line.endswith(":")
    ] == []


def test_site_diagrams_match_their_sources(site: Path) -> None:
    blocks = (ROOT / "docs/architecture.md").read_text().count("```mermaid")
    page = (site / "architecture/index.html").read_text()
    assert blocks > 3
    assert page.count('<div class="diagram"') == page.count("<desc>drawn from ") == blocks
    for label in ("authorizer program", "health_check", "WarmUp", "coordinator program"):
        assert re.search(rf"<t(?:span|ext)[^>]*>(?:<tspan[^>]*>)*\s*{label.split()[0]}", page), (
            label
        )
    assert not [
        file
        for file in site.rglob("*.html")
        if re.search("mermaid</?|flowchart T", file.read_text())
    ]
