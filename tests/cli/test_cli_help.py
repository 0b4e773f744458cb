"""Help is complete, quick, and the same as the documentation."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys

import pytest

from aftermath import __version__
from aftermath.cli import docs
from aftermath.cli.main import INDEX, load
from aftermath.train.settings import TrainSettings
from cli.cli_runs import invoke
from cli.conftest import ROOT


def test_help_of_every_command_has_an_example_and_json(command_name: str) -> None:
    shown = invoke(*command_name.split(), "--help")
    assert shown.code == 0
    text = "\n".join(line.rstrip() for line in shown.out.splitlines())
    assert f"Example:\n  aftermath-solana {command_name}" in text
    assert "--json" in shown.out


@pytest.mark.parametrize("words", ["train --help", "model --help", "--help", "--version"])
@pytest.mark.parametrize(
    ("line", "said"),
    [("{} | true", ""), ("{} >/dev/full", "error: the output cannot be written: No space left on device")],
)
def test_a_page_that_nobody_reads_is_no_fault(words: str, line: str, said: str) -> None:
    given = line.format(f"{sys.executable} -m aftermath {words}")
    done = subprocess.run(["bash", "-c", given], capture_output=True, text=True, check=False)
    assert done.stderr.partition("\n")[0] == said
    assert "unexpected" not in done.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert invoke("--version").out == f"{__version__}\n"


def test_the_index_has_every_heading_once() -> None:
    headings = [line for line in invoke("--help").out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert "Networks and programs:" in headings
    assert len(headings) == len(set(headings))


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


HEAVY = ("torch", "numpy", "anchorpy", "solders", "matplotlib", "importlib.metadata", "rich", "asyncio", "pydantic")


def imported_for(*words: str) -> set[str]:
    """Which of the heavy ones a help page imports."""
    program = (
        f"import sys\nfrom aftermath.cli.main import app\ntry: app({[*words, '--help']!r})\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(ast.literal_eval(done.stdout.splitlines()[-1]))


def test_the_index_imports_nothing_heavy() -> None:
    assert imported_for() == set()


def test_help_of_a_command_imports_nothing_heavy(command_name: str) -> None:
    assert imported_for(*command_name.split()) <= {"rich"}  # 20 ms, where lines are coloured


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_that_is_asked_for_first_is_that_which_the_parser_gives(flag: str) -> None:
    for name in ("tick", "model init", "train"):
        line = [*name.split(), flag]
        assert invoke(*line).out == invoke(*name.split(), "--json", flag).out


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
    expected = {"--" + name.replace("_", "-") for name in TrainSettings.__dataclass_fields__ if name != "hub_token"}
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
