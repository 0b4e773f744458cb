"""MkDocs hooks of the site (`config/site/mkdocs.yml`): pages from outside `docs/`, and llms.txt.

Pages are written for the repository. A link to a source file becomes the file's name, because the
site has no sources; the build checks all other links. Diagrams become the pictures of
`diagrams.py`, inside the page, so they have its colours.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

from diagrams import BLOCK, inline

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "index.md",
    **{name: name for name in ("AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md")},
}
"""Pages of the repository's root and their names on the site."""

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_KINDS = (".md", ".svg", ".png")
_NO_SENTENCE = ("#", "<", "|", "```", "- ")  # but words set as code begin many


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root to those of `docs/`."""
    for name, called in OUTSIDE.items():
        files.append(File.generated(config, called, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links and diagrams for the site."""
    own = {called: name for name, called in OUTSIDE.items()}.get(page.file.src_uri)
    place = Path(own).parent if own else Path("docs")
    linked = _LINK.sub(lambda link: _on_site(link, place), markdown)
    numbers = itertools.count(1)
    return BLOCK.sub(
        lambda block: inline(ROOT / "docs" / page.file.src_uri, next(numbers), block[1]), linked
    )


def _on_site(link: re.Match[str], place: Path) -> str:
    text = link[1]
    target = link[2]
    anchor = link[3] or ""
    if not target or "://" in target or target.startswith("mailto:"):
        return link[0]
    path = (ROOT / place / target).resolve().relative_to(ROOT)
    if str(path) in OUTSIDE:
        return f"[{text}]({OUTSIDE[str(path)]}{anchor})"
    if path.parts[0] == "docs" and path.suffix in _KINDS:
        return f"[{text}]({path.relative_to('docs')}{anchor})"
    return text


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Return llms.txt (llmstxt.org), which describes the pages to programs that read them."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for section in nav.items:
        lines += ["", f"## {section.title}", ""]
        lines += [
            f"- [{page.title}]({page.file.src_uri}): {_first_sentence(page.file)}"
            for page in _pages(section)
        ]
    files.append(File.generated(config, "llms.txt", content="\n".join(lines) + "\n"))
    return nav


def _pages(item: Any) -> list[Page]:
    return [item] if item.is_page else [page for child in item.children for page in _pages(child)]


def _first_sentence(file: File) -> str:
    paragraphs = (
        part
        for part in file.content_string.split("\n\n")
        if part and not part.startswith(_NO_SENTENCE)
    )
    heading = file.content_string.partition("\n")[0].lstrip("# ")
    plain = re.sub(
        r"<!--.*?-->|[*`]", "", _LINK.sub(r"\1", " ".join(next(paragraphs, heading).split()))
    )
    return re.split(r"(?<=[.])\s", plain)[0]


def on_post_build(config: MkDocsConfig) -> None:
    """Copy the pages' sources to the site, because llms.txt links to them."""
    site = Path(config.site_dir)
    for page in sorted((ROOT / "docs").glob("*.md")):
        (site / page.name).write_text(page.read_text())
    for name, called in OUTSIDE.items():
        (site / called).write_text((ROOT / name).read_text())
