"""Test that the documentation names only existing links, commands, options, make targets, files and
figures.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from aftermath.chain import views
from aftermath.chain.views import (
    members_account,
    membership_account,
    model_account,
    run_account,
    witnesses_account,
)
from aftermath.cli.main import SOLANA
from aftermath.localnet.runtime import minimum_balance
from aftermath.programs import AUTHORIZER_IDL, COORDINATOR_IDL
from aftermath.server.index import CENTRALIZED

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("*.md")) + [ROOT / "keys/README.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = {"commands.md", "commands-centralized.md", "config.md"}
SCRIPTS = {script.name: script for script in (SOLANA, CENTRALIZED)}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FILE = re.compile(
    r"(?<![\w./~-])(?:scripts|benchmarks|config|tests|idl|keys|docs|programs)/[\w./-]+\.(?:sh|py|toml|md|json|rs)\b"
)


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def fenced_lines(page: Path) -> Iterator[str]:
    """Yield every command line in a page's shell blocks, with continuations joined."""
    for language, body in FENCE.findall(page.read_text()):
        if language == "sh":
            yield from body.replace("\\\n", " ").splitlines()


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = [
        re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", text) for text in HEADING.findall(prose(page))
    ]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def param_of(page: Path) -> object:
    return pytest.param(page, id=str(page.relative_to(ROOT)))


@pytest.fixture(params=[param_of(page) for page in PAGES])
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_links_resolve(page: Path) -> None:
    broken = []
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (anchor and anchor not in slugs(place)):
            broken.append(target)
    assert not broken


def test_command_lines_parse(page: Path) -> None:
    """The command itself parses each whole command line in a shell block, but does not run it."""
    for line in fenced_lines(page):
        words = shlex.split(line, comments=True)
        if words and (script := SCRIPTS.get(words[0])):
            name = script.command_of(words[1:])
            assert name, line
            script.load(name).make_context(name, words[1 + len(name.split()) :])


def test_mentioned_commands_and_options_exist(page: Path) -> None:
    for span in SPAN.findall(prose(page)):
        words = [word.rstrip(",;") for word in span.split()]
        script = SCRIPTS.get(words[0], SOLANA) if words else SOLANA
        if words and words[0] in SCRIPTS:
            words = words[1:]
            assert (
                not words
                or script.command_of(words)
                or script.commands_with(words[0])
                or words[0].startswith("-")
            ), span
        if (command := script.command_of(words)) and any(word.startswith("-") for word in words):
            known = {
                name
                for option in script.load(command).params
                for name in (*option.opts, *option.secondary_opts)
            }
            options = {word for word in words[1:] if word.startswith("-")}
            assert options <= known | {"--json", "--help"}, span


@cache
def options_of_commands() -> set[str]:
    return {
        name
        for script in SCRIPTS.values()
        for command in script.entries
        for option in script.load(command).params
        for name in (*option.opts, *option.secondary_opts)
    }


@cache
def text_of_scripts() -> str:
    simulator = ROOT / "client" / "aftermath" / "sim" / "__main__.py"
    sources = [*(ROOT / "scripts").iterdir(), *(ROOT / "benchmarks").glob("*.py"), simulator]
    return "\n".join(path.read_text() for path in sources if path.is_file())


def test_standalone_options_belong_to_a_command(page: Path) -> None:
    """Options alone in backquotes exist in a command, script, tool or benchmark."""
    known = options_of_commands()
    text = text_of_scripts()
    for span in SPAN.findall(prose(page)):
        if re.match(r"--[a-z]", span):
            flag = span.split()[0].split("=")[0]
            assert flag in known | {"--json", "--help"} or flag in text, span


def test_prose_lines_fit_100_columns(page: Path) -> None:
    """Lines have at most 100 columns without link targets; generated ones have 120."""
    limit = 120 if page.name in GENERATED else 100
    text = re.sub(r"\]\([^)]*\)", "]", prose(page))
    assert not [
        line for line in text.splitlines() if len(line) > limit and not line.startswith(("|", "!["))
    ]


def make_targets() -> set[str]:
    """Return the names before the colon of every rule of the Makefile, which may span several
    lines.
    """
    rules = re.findall(
        r"^([a-z][\w \-]*):(?!=)",
        (ROOT / "Makefile").read_text().replace("\\\n", " "),
        re.MULTILINE,
    )
    return {name for rule in rules for name in rule.split()}


def test_plain_make_lists_every_target() -> None:
    # of a make that runs these tests
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    output = subprocess.run(
        ["make"], cwd=ROOT, env=own, capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[0] for line in output.splitlines()} == make_targets()


def test_make_targets_exist(page: Path) -> None:
    spans = [*SPAN.findall(prose(page)), *fenced_lines(page)]
    mentioned = {match[1] for span in spans if (match := re.match(r"make ([a-z-]+)", span))}
    assert mentioned <= make_targets()


def test_named_files_exist(page: Path) -> None:
    """Capital words in a path are placeholders."""
    names = {name for name in FILE.findall(page.read_text()) if not re.search(r"/[A-Z]+\b", name)}
    assert not {name for name in names if not (ROOT / name).exists()}


def test_every_package_has_its_row() -> None:
    page = ROOT / "docs/architecture.md"
    text = "\n".join(line for line in page.read_text().splitlines() if line.startswith("| `"))
    packages = {path.parent.name for path in (ROOT / "client/aftermath").glob("*/__init__.py")}
    assert not {
        package
        for package in packages
        if not re.search(rf"`(?:client/aftermath/)?{package}/`", text)
    }


def test_account_parsers_are_named_in_protocol_page() -> None:
    names = set(re.findall(r"`(parse_\w+)`", (ROOT / "docs/protocol.md").read_text()))
    assert names == {name for name in vars(views) if name.startswith("parse_")}


def test_account_sizes_and_rent_equal_programs() -> None:
    text = (ROOT / "docs/protocol.md").read_text()
    accounts = [
        account() for account in (run_account, model_account, members_account, witnesses_account)
    ]
    for account in (*accounts, membership_account()):
        row = next(line for line in text.splitlines() if line.startswith(f"| `{account.name}` |"))
        assert f"| {account.size:,} | {minimum_balance(account.size) / 1e9:.8f} |" in row
    rent = sum(minimum_balance(account.size) for account in accounts)
    assert f"| {sum(account.size for account in accounts):,} | {rent / 1e9:.8f} |" in text
    assert f"{rent:,}" in (ROOT / "docs/operations.md").read_text()


@pytest.mark.parametrize(
    "idl", [COORDINATOR_IDL, AUTHORIZER_IDL], ids=["coordinator", "authorizer"]
)
def test_every_instruction_is_described(idl: Path) -> None:
    text = (ROOT / "docs/protocol.md").read_text()
    document = json.loads(idl.read_text())
    assert not [
        entry["name"]
        for entry in document["instructions"]
        if f"\n| `{entry['name']}` |" not in text
    ]


def test_named_modules_exist(page: Path) -> None:
    """Files in backquotes are in the repository, the client's package or the coordinator's
    sources.
    """
    folders = (ROOT, ROOT / "client/aftermath", ROOT / "programs/coordinator/src")
    paths = re.findall(r"`([\w.-]+/[\w/.-]+\.(?:py|rs|sh))(?:::\w+)?`", page.read_text())
    names = {path for path in paths if not re.search(r"/[A-Z]+\b|/NAME_", path)}
    assert not {name for name in names if not any((folder / name).exists() for folder in folders)}
