"""Tests that help is complete, fast, and equal to the documentation."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from aftermath import __version__
from aftermath.cli import commands_page
from aftermath.cli.main import INDEX, SOLANA, load
from aftermath.train.settings import TrainSettings
from cli.cli_runs import invoke, unread
from cli.conftest import ROOT


def test_help_of_every_command_has_example_and_json() -> None:
    for name in INDEX:
        outcome = invoke(*name.split(), "--help")
        assert outcome.code == 0, name
        text = "\n".join(line.rstrip() for line in outcome.out.splitlines())
        # unwrapped, so that it can be copied
        assert f"  Example:\n    {SOLANA.find(name).example}" in text
        assert "--json" in outcome.out, name


@pytest.mark.parametrize("words", ["train --help", "--version"])
def test_help_with_closed_or_full_output_is_silent(words: str) -> None:
    line = [sys.executable, "-m", "aftermath", *words.split()]
    assert unread(line).stderr == ""
    with Path("/dev/full").open("w") as full:
        completed = subprocess.run(
            line, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (
        completed.stderr.partition("\n")[0]
        == "error: cannot write the output: No space left on device"
    )
    assert "unexpected" not in completed.stderr


def test_version_equals_package_version() -> None:
    assert invoke("--version").out == f"{__version__}\n"


def test_index_lists_each_heading_once() -> None:
    headings = [
        line
        for line in invoke("--help").out.splitlines()
        if line.endswith(":") and not line.startswith(" ")
    ]
    assert "Networks and programs:" in headings
    assert len(headings) == len(set(headings))


def test_index_summary_equals_command_help() -> None:
    for name, entry in INDEX.items():
        text = load(name).help
        assert text is not None, name
        assert text.splitlines()[0] == entry.summary


def test_help_of_first_word_lists_its_commands() -> None:
    for words in (("model",), ("model", "--help"), ("help", "model")):
        text = invoke(*words).out
        assert "model merge" in text
        assert "predownload" not in text
        assert "The commands of aftermath-solana that begin with model." in " ".join(text.split())
        assert "--install-completion" not in text


def test_shared_options_are_explained_once() -> None:
    page = commands_page.page()
    for flag in ("--rpc", "--wallet-private-key-path", "--data-root", "--max-priority-fee"):
        assert len(re.findall(rf"^- `{flag}`", page, re.MULTILINE)) == (
            2 if flag == "--rpc" else 1
        ), flag
    tick = page.partition("### tick")[2].partition("\n### ")[0]
    assert "`--run-id`" in tick
    assert "cluster options" in " ".join(tick.split())


@pytest.mark.parametrize("name", INDEX)
def test_help_examples_parse(name: str) -> None:
    """Every example is a valid command line of its command."""
    loaded = load(name)
    words = shlex.split(SOLANA.find(name).example)
    command_words = name.split()
    assert words[: 1 + len(command_words)] == ["aftermath-solana", *command_words]
    loaded.make_context(name, words[1 + len(command_words) :])


def test_commands_page_is_current() -> None:
    assert (ROOT / "docs/commands.md").read_text() == commands_page.page(), (
        "run: python -m aftermath.cli.commands_page docs/commands.md"
    )


HEAVY = (
    "torch",
    "numpy",
    "anchorpy",
    "solders",
    "matplotlib",
    "importlib.metadata",
    "rich",
    "asyncio",
    "pydantic",
)


def test_help_pages_import_nothing_heavy() -> None:
    """All pages in one process, the index first. `watch` needs rich, which takes 20 ms."""
    program = f"""
import contextlib, io, sys
from aftermath.cli.main import INDEX, app

for name in ("", *INDEX):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        app([*name.split(), "--help"])
    found = [heavy for heavy in {HEAVY!r} if heavy in sys.modules and (heavy != "rich" or not name)]
    assert not found, (name, found)
"""
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_fast_help_equals_parser_help(flag: str) -> None:
    for name in ("tick", "model init", "train"):
        line = [*name.split(), flag]
        assert invoke(*line).out == invoke(*name.split(), "--json", flag).out


def test_mistyped_command_gets_suggestion() -> None:
    wrong = invoke("creat-run")
    assert wrong.code == 2
    assert "create-run" in wrong.err


@pytest.mark.parametrize("other", ["tick", "can-join", "show-identity"])
def test_train_option_help_equals_other_commands(other: str) -> None:
    def option_table(command: str) -> dict[str, tuple[object, ...]]:
        options = {option.opts[0]: option for option in load(command).params}
        return {
            flag: (option.help, option.opts, option.envvar, option.default)
            for flag, option in options.items()
        }

    ours = option_table("train")
    theirs = option_table(other)
    common = ours.keys() & theirs.keys() - {"--json"} - (
        {"--run-id"} if other == "show-identity" else set()
    )
    assert "--wallet-private-key-path" in common or "--rpc" in common
    assert {flag: ours[flag] for flag in common} == {flag: theirs[flag] for flag in common}


def test_train_options_cover_settings_without_secrets() -> None:
    options = {option for parameter in load("train").params for option in parameter.opts}
    expected = {
        "--" + name.replace("_", "-")
        for name in TrainSettings.__dataclass_fields__
        if name != "hub_token"
    }
    assert expected <= options
    assert "--hub-token" not in options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep-steps", "0"], "--keep-steps"),
        (["--matformer-tier", "9"], "--matformer-tier"),
        (["--iroh-relay", "psyche"], "disabled"),
        (["--micro-batch-size", "many"], "--micro-batch-size"),
    ],
)
def test_train_refuses_values_out_of_range(arguments: list[str], message: str) -> None:
    refused = invoke("train", "--run-id", "demo", *arguments)
    assert refused.code == 2
    assert message in refused.err
