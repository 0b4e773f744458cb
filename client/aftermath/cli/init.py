"""`init`: write the config file of a new run, and the recipe file for its model and tokens.

On a terminal it asks for options that were not given; elsewhere the starting config decides. It
never writes a config that `config validate` refuses.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from aftermath.base.errors import AftermathError, UsageError
from aftermath.base.outputs import STANDARD_OUTPUT, check_file, output_file
from aftermath.base.stdio import is_quiet
from aftermath.cli.command import command
from aftermath.cli.error_docs import with_local_pages
from aftermath.cli.present import CommandError, Result, note, plain_text, writing
from aftermath.config.recipe_file import recipe_file, run_files_command
from aftermath.model.presets import PRESETS
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.limits import MAX_LEVELS
from aftermath.rules.optimizers import WITH_RECIPE

if TYPE_CHECKING:
    from aftermath.cli.new_config import FILES

    OptimizerName = str
else:
    OptimizerName = Literal[WITH_RECIPE]
_RECIPE_VALUE = "the recipe's"
_WALLET = "owner.json"


@dataclass(frozen=True)
class InitOptions:
    """The choices of a new run's owner. For None, a question or the recipe decides."""

    recipe: Annotated[
        str | None,
        typer.Option(
            help="Config to start from: a packaged one, such as demo, or a file. By default "
            "solana-test/light-config.toml."
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(help=f"Named model. By default the recipe's. One of {', '.join(PRESETS)}."),
    ] = None
    tiers: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_LEVELS, help="Number of tiers. By default the recipe's."),
    ] = None
    optimizer: Annotated[
        OptimizerName | None,
        typer.Option(
            help="Optimizer, with the learning rate, overlap and batch size that suit it. By default the recipe's."
        ),
    ] = None
    members: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_MEMBERS,
            help="How many members must be present before the run starts. By default the recipe's.",
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**32 - 1,
            help="Number of steps, which also scales the learning-rate schedule. By default the recipe's.",
        ),
    ] = None
    data_path: Annotated[
        Path | None,
        typer.Option(
            help="Token file, or a directory of them. By default tokens are made as in the recipe."
        ),
    ] = None


@command(
    "init", example="aftermath-solana init --out run.toml --preset llama-1m --members 3 --steps 200"
)
def init(
    options: InitOptions,
    out: Annotated[
        Path, typer.Option(help="Config file to write; - writes to standard output.")
    ] = Path("run.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json_output: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON document instead of text, and ask nothing."),
    ] = False,
) -> Result:
    """Write the commented config file of a new run.

    It starts from a recipe, an existing config, and changes it by the options. On a terminal it
    asks for options that were not given. If model or tokens do not exist yet, it also writes
    NAME.files.toml, by which run-files and local-testnet start make them.
    """
    from aftermath.cli.config_check import check_config
    from aftermath.cli.new_config import RECIPE, NewRunOptions, apply_options, begin
    from aftermath.config.document import RunConfig, parse_as
    from aftermath.config.errors import Mistaken
    from aftermath.config.keys import config_text, tables_text

    to_stdout = str(out) == STANDARD_OUTPUT
    if to_stdout and json_output:
        raise UsageError(
            "--out - and --json both write to standard output",
            "Leave out --json, or name a file: --out run.toml",
        )
    if not to_stdout and not out.name:
        raise UsageError(
            f"--out {out} is not a file name", "Name the config file, for example --out run.toml"
        )
    files_path = recipe_file(out)
    targets = [] if to_stdout else [out, files_path]
    if existing := [path for path in targets if path.exists() and not force]:
        raise CommandError(
            f"{existing[0]} exists already", "Name another file with --out, or pass --force"
        )
    for path in targets:
        check_file(path, _is_no_key)
    if sys.stdin is not None and sys.stdin.isatty() and not json_output:
        options = ask_missing(options)
    new_options = NewRunOptions(**asdict(options))
    recipe = begin(new_options.recipe or RECIPE)
    config, files = apply_options(*recipe, new_options, f"runs/{'run' if to_stdout else out.stem}")
    text = config_text(config, _header_lines(options, None if to_stdout else files_path, files))
    parsed = parse_as(text, str(out), RunConfig)
    checked = check_config(parsed, files)
    if checked.mistakes:
        raise Mistaken(
            str(out),
            checked.mistakes,
            "Nothing was written. Choose other options, or another --recipe",
        )
    if to_stdout:
        with writing():
            sys.stdout.write(text)
        return Result(None, None)
    header = f"How run-files makes the model and the tokens of {out.name} if they do not exist yet."
    _write_both(out, text, files_path, tables_text(files, [header]) if files else "")
    new = set(checked.warnings).difference(check_config(*recipe).warnings)
    new_warnings = [warning for warning in checked.warnings if warning in new]
    for _, warning in new_warnings:
        note(f"warning: {warning}")
    return _summary(
        out, files_path if files else None, config.config.init_min_clients, new_warnings
    )


def _write_both(out: Path, text: str, files_path: Path, recipe_text: str) -> None:
    """Write the config and its recipe file, if it has one. Write neither if one of them fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if recipe_text:
            stream = stack.enter_context(output_file(files_path, _is_no_key))
            stream.write(recipe_text.encode())
            stream.flush()
        with output_file(out, _is_no_key) as stream:
            stream.write(text.encode())
    if not recipe_text:
        files_path.unlink(missing_ok=True)  # it belongs to the config that is replaced


def _is_no_key(head: bytes) -> bool:
    """Return whether a file may be replaced with --force: it does not begin as a key file does."""
    return re.match(rb"\s*\[\s*\d", head) is None


def _summary(
    out: Path, files_path: Path | None, members: int, new_warnings: list[tuple[str, str]]
) -> Result:
    """Return what was written and the next steps. `files_path` describes files that are still to be
    made.
    """
    steps = _next_commands(out, needs_files=files_path is not None)
    at_once = f"aftermath-solana local-testnet start --num-clients {members} --config-path {shlex.quote(str(out))}"
    file = shlex.quote(str(out))
    run = shlex.quote(_suggested_run_id(out))
    server = [run_files_command(out)] if files_path else []
    host = f"aftermath-centralized server run --run-id {run} --state {file}"
    server.append(f"{host} -s 20000 --save-state-dir runs/server")
    data = {
        "file": str(out),
        "files": str(files_path) if files_path else None,
        "warnings": [{"code": code, "message": sentence} for code, sentence in new_warnings],
        "next": steps,
        "at_once": at_once,
        "server": server,
    }
    lines = [
        f"wrote {out}" + (f", and {files_path} for run-files" if files_path else ""),
        "next steps, the first in a terminal of its own:",
        *(f"  {line}" for line in steps),
        *([f"  (run by {members} members, each with a wallet of its own)"] if members > 1 else []),
        "or everything at once on this machine:",
        f"  {at_once}",
        "or on a server, without a chain:",
        *(f"  {line}" for line in server),
    ]
    return Result(data, plain_text("\n".join(lines[:1] if is_quiet() else lines)))


def ask_missing(options: InitOptions) -> InitOptions:
    """Ask for the options that were not given, and return all of them."""
    from aftermath.cli.new_config import RECIPE, begin, optimizer_name
    from aftermath.testnet.files import SHIPPED, configs

    note("Enter accepts the value in brackets; ? lists the valid answers")
    known_recipes = f"one of {', '.join(sorted(str(path.relative_to(SHIPPED)) for path in configs()))}, or a file"
    recipe = options.recipe or _ask(Question("Recipe", known_recipes, RECIPE, _known_recipe))
    config, _ = begin(recipe)
    answered = replace(options, recipe=recipe)
    current_optimizer = optimizer_name(config)
    exchanged = WITH_RECIPE
    rules = config.config
    questions: dict[str, Question] = {
        "preset": Question(
            "Model", _any_of(*PRESETS), _RECIPE_VALUE, _one_of(*PRESETS, _RECIPE_VALUE)
        ),
        "tiers": _number_question("Tiers", config.llm.matformer.tiers, MAX_LEVELS),
        "optimizer": Question(
            "Optimizer", _any_of(*exchanged), current_optimizer or "sparseloco", _one_of(*exchanged)
        ),
        "members": _number_question("Members at the start", rules.init_min_clients, MAX_MEMBERS),
        "steps": _number_question("Steps", rules.total_steps, 2**32 - 1),
        "data_path": Question("Token files", "a file or a directory of them", _RECIPE_VALUE, _path),
    }
    for name, question in questions.items():
        if getattr(answered, name) is None:
            answer = _ask(question)
            answered = replace(answered, **{name: None if answer == _RECIPE_VALUE else answer})
    return answered


@dataclass(frozen=True)
class Question:
    """A question. `help_text`: what `?` prints. `read` raises UsageError for an invalid answer."""

    text: str
    help_text: str
    default: str
    read: Callable[[str], Any]


def _ask(question: Question) -> Any:
    """Ask until the answer is valid. Ctrl-C and the end of the input end the command."""
    while True:
        try:
            answer = typer.prompt(question.text, default=question.default, err=True).strip()
            if answer != "?":
                return question.read(answer)
            note(question.help_text)
        except typer.Abort:
            raise KeyboardInterrupt from None
        except AftermathError as error:
            note(f"{error.message}; {error.fix[:1].lower()}{error.fix[1:]}")


def _known_recipe(text: str) -> str:
    from aftermath.cli.new_config import begin

    begin(text)
    return text


def _path(text: str) -> Path | str:
    return text if text == _RECIPE_VALUE else Path(text)


def _any_of(*words: str) -> str:
    return f"one of {', '.join(words)}"


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise UsageError(f"{text!r} is not a valid choice", f"Choose {_any_of(*words)}")
        return text

    return read


def _number_question(text: str, default: int, most: int) -> Question:
    help_text = f"a whole number from 1 to {most}"

    def read(answer: str) -> int:
        if not (
            answer.isascii()
            and answer.isdecimal()
            and len(answer) < 20
            and 1 <= int(answer) <= most
        ):
            raise UsageError(f"{answer!r} is not {help_text}", "Enter one")
        return int(answer)

    return Question(text, help_text, str(default), read)


def _header_lines(options: InitOptions, files_path: Path | None, files: FILES) -> list[str]:
    """Return the lines that the config begins with. `files_path` describes files that are still to
    be made.
    """
    from aftermath.cli.new_config import RECIPE

    lines = [
        f"Config of a run, written by aftermath-solana init from the recipe {options.recipe or RECIPE}."
    ]
    if files and files_path is None:
        lines += [
            "Its model and tokens do not exist yet: init --out FILE also writes the recipe file that run-files needs."
        ]
    elif files and files_path is not None:
        lines += [
            f"{files_path.name} tells run-files how to make its model and tokens if they do not exist yet."
        ]
    return [
        *lines,
        f"aftermath-solana config explain KEY describes a key, and {with_local_pages('docs/config.md')} all keys.",
    ]


def _next_commands(out: Path, *, needs_files: bool) -> list[str]:
    """Return the commands that an owner runs next, in order, until the run trains."""
    file = shlex.quote(str(out))
    run = shlex.quote(_suggested_run_id(out))
    run_flags = f"--run-id {run} -w {_WALLET}"
    make_files = [run_files_command(out)] if needs_files else []
    # otherwise the model is lost with the last member
    checkpoint_dir = shlex.quote(str(Path("runs") / _suggested_run_id(out) / "checkpoints"))
    new_wallet = (
        [] if Path(_WALLET).exists() else [f"aftermath-solana show-identity --create -w {_WALLET}"]
    )
    return [
        "aftermath-solana localnet",
        *make_files,
        *new_wallet,
        f"aftermath-solana create-run {run_flags}",
        f"aftermath-solana update-config --config-path {file} {run_flags}",
        f"aftermath-solana set-paused resume {run_flags}",
        f"aftermath-solana train {run_flags} --matformer-tier 0 --checkpoint-dir {checkpoint_dir}",
    ]


def _suggested_run_id(out: Path) -> str:
    """Return the config's file name as run id, or "RUN" if it is not a valid one."""
    from aftermath.cli.create_run import check_readable
    from aftermath.cli.options import checked_run_id

    try:
        checked_run_id(out.stem)
        check_readable(out.stem)
    except UsageError:
        return "RUN"
    return out.stem
