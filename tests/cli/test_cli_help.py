"""Help is complete, quick, and the same as the documentation."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from aftermath import __version__
from aftermath.cli import docs
from aftermath.cli.main import INDEX, load
from aftermath.train.settings import TrainSettings
from cli.cli_runs import CONSOLE, invoke
from cli.conftest import ROOT

START_SECONDS = 0.3


def test_help_of_every_command_has_an_example_and_json(command_name: str) -> None:
    shown = invoke(*command_name.split(), "--help")
    assert shown.code == 0
    text = "\n".join(line.rstrip() for line in shown.out.splitlines())
    assert f"Example:\n  aftermath-solana {command_name}" in text
    assert "--json" in shown.out


def test_the_version_is_that_of_the_package() -> None:
    assert invoke("--version").out == f"{__version__}\n"


def test_index_says_what_the_command_says(command_name: str) -> None:
    text = load(command_name).help
    assert text is not None
    assert text.splitlines()[0] == INDEX[command_name].summary


def test_examples_parse(command_name: str) -> None:
    """Every example is a command line that the command takes."""
    loaded = load(command_name)
    assert loaded.epilog is not None
    words = shlex.split(loaded.epilog.removeprefix("Example:"))
    name = command_name.split()
    assert words[: 1 + len(name)] == ["aftermath-solana", *name]
    loaded.make_context(command_name, words[1 + len(name) :])


def test_documentation_is_current() -> None:
    assert (ROOT / "docs/commands.md").read_text() == docs.page(), "run: python -m aftermath.cli.docs docs/commands.md"


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom aftermath.cli.main import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'anchorpy', 'solders', 'matplotlib', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_starts_quickly() -> None:
    """Processor time of the fastest of five starts: what the machine is otherwise busy with does not count."""

    def once() -> float:
        before = os.times()
        subprocess.run([CONSOLE, "--help"], check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(once() for _ in range(5)) < START_SECONDS


def test_a_mistyped_command_gets_a_suggestion() -> None:
    wrong = invoke("creat-run")
    assert wrong.code == 2
    assert "create-run" in wrong.err


@pytest.mark.parametrize("other", ["tick", "can-join", "show-identity"])
def test_train_tells_of_an_option_as_other_commands_do(other: str) -> None:
    def told(command: str) -> dict[str, tuple[object, ...]]:
        options = {option.opts[0]: option for option in load(command).params}
        return {flag: (option.help, option.opts, option.envvar, option.default) for flag, option in options.items()}

    ours, theirs = told("train"), told(other)
    common = ours.keys() & theirs.keys() - {"--json"} - ({"--run-id"} if other == "show-identity" else set())
    assert "--wallet-private-key-path" in common or "--rpc" in common
    assert {flag: ours[flag] for flag in common} == {flag: theirs[flag] for flag in common}


def test_train_offers_every_setting_and_no_secret() -> None:
    options = {option for parameter in load("train").params for option in parameter.opts}
    expected = {"--" + name.replace("_", "-") for name in TrainSettings.model_fields if name != "hub_token"}
    assert expected <= options
    assert "--hub-token" not in options


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--keep-steps", "0"], "--keep-steps"),
        (["--matformer-tier", "9"], "--matformer-tier"),
        (["--iroh-relay", "psyche"], "disabled"),
        (["--micro-batch-size", "many"], "--micro-batch-size"),
    ],
)
def test_train_refuses_values_out_of_range(arguments: list[str], said: str) -> None:
    refused = invoke("train", "--run-id", "demo", *arguments)
    assert refused.code == 2
    assert said in refused.err
