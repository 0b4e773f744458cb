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
from aftermath.cli.command import command
from aftermath.cli.error_docs import placed
from aftermath.cli.present import CommandError, Result, note, plain_text, writing
from aftermath.config.recipe import making, recipe_file
from aftermath.model.presets import PRESETS
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.limits import MAX_LEVELS
from aftermath.rules.optimizers import WITH_RECIPE

if TYPE_CHECKING:
    from aftermath.cli.new_config import FILES

if TYPE_CHECKING:
    OptimizerName = str
else:
    OptimizerName = Literal[WITH_RECIPE]
_NEITHER = "the recipe's"
_WALLET = "owner.json"


@dataclass(frozen=True)
class InitOptions:
    """The choices of a new run's owner. For None, a question or the recipe decides."""

    recipe: Annotated[
        str | None,
        typer.Option(
            help="The config to begin with: one that comes with the package, as demo or solana-test/light-config.toml, "
            "or a file; else the latter."
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(help=f"A model by name; else the recipe's. One of {', '.join(PRESETS)}."),
    ] = None
    tiers: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_LEVELS, help="Tiers that the model is cut into; else the recipe's."
        ),
    ] = None
    optimizer: Annotated[
        OptimizerName | None,
        typer.Option(
            help="What members exchange results with, and the numbers that go with it; else the recipe's."
        ),
    ] = None
    members: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_MEMBERS, help="Members that the run begins with; else the recipe's."
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**32 - 1,
            help="Steps of the run, over which the learning rate goes; else the recipe's.",
        ),
    ] = None
    data_path: Annotated[
        Path | None,
        typer.Option(
            help="Token file or directory of them; else they are made as the recipe's are."
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
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is there.")
    ] = False,
    json_output: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON document instead of text; nothing is asked."),
    ] = False,
) -> Result:
    """Write the commented config file of a new run.

    It starts from a recipe, an existing config, and changes it by the options. On a terminal it
    asks for options that were not given. If model or tokens do not exist yet, it also writes
    NAME.files.toml, by which run-files and local-testnet start make them.
    """
    from aftermath.cli.config_check import look
    from aftermath.cli.new_config import RECIPE, NewRunOptions, begin, changed
    from aftermath.config.document import RunConfig, parse_as
    from aftermath.config.errors import Mistaken
    from aftermath.config.written import tables_of, text_of

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
    if there := [path for path in targets if path.exists() and not force]:
        raise CommandError(
            f"{there[0]} is there already", "Name another file with --out, or say --force"
        )
    for path in targets:
        check_file(path, _is_no_key)
    if sys.stdin is not None and sys.stdin.isatty() and not json_output:
        options = asked(options)
    new_options = NewRunOptions(**asdict(options))
    recipe = begin(new_options.recipe or RECIPE)
    config, files = changed(*recipe, new_options, f"runs/{'run' if to_stdout else out.stem}")
    text = text_of(config, _about(options, None if to_stdout else files_path, files))
    parsed = parse_as(text, str(out), RunConfig)
    found = look(parsed, files)
    if found.mistakes:
        raise Mistaken(
            str(out),
            found.mistakes,
            "Nothing was written; choose other options, or another --recipe",
        )
    if to_stdout:
        with writing():
            sys.stdout.write(text)
        return Result(None, None)
    about = (
        f"What the model and the tokens of {out.name} are made of, where they are not there yet."
    )
    _write_both(out, text, files_path, tables_of(files, [about]) if files else "")
    new = set(found.warnings).difference(look(*recipe).warnings)
    told = [warning for warning in found.warnings if warning in new]
    for _, warning in told:
        note(f"warning: {warning}")
    return _made(out, files_path if files else None, config.config.init_min_clients, told)


def _write_both(out: Path, text: str, files_path: Path, made_of: str) -> None:
    """Write the config and its recipe file, if it has one. Write neither if one of them fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if made_of:
            stream = stack.enter_context(output_file(files_path, _is_no_key))
            stream.write(made_of.encode())
            stream.flush()
        with output_file(out, _is_no_key) as stream:
            stream.write(text.encode())
    if not made_of:
        files_path.unlink(missing_ok=True)  # of a file that is written over


def _is_no_key(head: bytes) -> bool:
    """Return whether a file may be replaced with --force: it does not begin as a key file does."""
    return re.match(rb"\s*\[\s*\d", head) is None


def _made(out: Path, files_path: Path | None, members: int, told: list[tuple[str, str]]) -> Result:
    """Return what was written and the next steps. `files_path` describes files that are still to be
    made.
    """
    steps = _next(out, made=files_path is not None)
    at_once = f"aftermath-solana local-testnet start --num-clients {members} --config-path {shlex.quote(str(out))}"
    data = {
        "file": str(out),
        "files": str(files_path) if files_path else None,
        "warnings": [{"code": code, "message": sentence} for code, sentence in told],
        "next": steps,
        "at_once": at_once,
    }
    lines = [
        f"wrote {out}" + (f", and {files_path} for what is still to be made" if files_path else ""),
        "next, the first in a terminal of its own:",
        *(f"  {line}" for line in steps),
        *(
            [f"  which {members} members call, each with a wallet of its own"]
            if members > 1
            else []
        ),
        "or all of it at once, on this machine:",
        f"  {at_once}",
    ]
    return Result(data, plain_text("\n".join(lines)))


def asked(options: InitOptions) -> InitOptions:
    """Ask for the options that were not given, and return all of them."""
    from aftermath.cli.new_config import RECIPE, begin, optimizer_name
    from aftermath.testnet.configs import SHIPPED, configs

    note("Enter takes what is in brackets; ? says what may be answered")
    known = f"one of {', '.join(sorted(str(path.relative_to(SHIPPED)) for path in configs()))}, or a file"
    recipe = options.recipe or _ask(Question("Recipe", known, RECIPE, _known_recipe))
    config, _ = begin(recipe)
    found = replace(options, recipe=recipe)
    has = optimizer_name(config)
    exchanged = WITH_RECIPE
    rules = config.config
    questions: dict[str, Question] = {
        "preset": Question("Model", _any_of(*PRESETS), _NEITHER, _one_of(*PRESETS, _NEITHER)),
        "tiers": _counted("Tiers", config.llm.matformer.tiers, MAX_LEVELS),
        "optimizer": Question(
            "Optimizer", _any_of(*exchanged), has or "sparseloco", _one_of(*exchanged)
        ),
        "members": _counted("Members that begin", rules.init_min_clients, MAX_MEMBERS),
        "steps": _counted("Steps", rules.total_steps, 2**32 - 1),
        "data_path": Question("Token files", "a file or a directory of them", _NEITHER, _path),
    }
    for name, question in questions.items():
        if getattr(found, name) is None:
            answer = _ask(question)
            found = replace(found, **{name: None if answer == _NEITHER else answer})
    return found


@dataclass(frozen=True)
class Question:
    """A question. `says`: its help for `?`. `read` raises UsageError for an invalid answer."""

    text: str
    says: str
    default: str
    read: Callable[[str], Any]


def _ask(question: Question) -> Any:
    """Ask until the answer is valid. Ctrl-C and the end of the input end the command."""
    while True:
        try:
            answer = typer.prompt(question.text, default=question.default, err=True).strip()
            if answer != "?":
                return question.read(answer)
            note(question.says)
        except typer.Abort:
            raise KeyboardInterrupt from None
        except AftermathError as error:
            note(f"{error.message}; {error.fix[:1].lower()}{error.fix[1:]}")


def _known_recipe(text: str) -> str:
    from aftermath.cli.new_config import begin

    begin(text)
    return text


def _path(text: str) -> Path | str:
    return text if text == _NEITHER else Path(text)


def _any_of(*words: str) -> str:
    return f"one of {', '.join(words)}"


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise UsageError(f"{text!r} is none of them", f"Choose {_any_of(*words)}")
        return text

    return read


def _counted(text: str, default: int, most: int) -> Question:
    says = f"a whole number from 1 to {most}"

    def read(given: str) -> int:
        if not (
            given.isascii() and given.isdecimal() and len(given) < 20 and 1 <= int(given) <= most
        ):
            raise UsageError(f"{given!r} is not {says}", "Write one")
        return int(given)

    return Question(text, says, str(default), read)


def _about(options: InitOptions, files_path: Path | None, files: FILES) -> list[str]:
    """Return the lines that the config begins with. `files_path` describes files that are still to
    be made.
    """
    from aftermath.cli.new_config import RECIPE

    lines = [
        f"The config of a run, made by aftermath-solana init from the recipe {options.recipe or RECIPE}."
    ]
    if files and files_path is None:
        lines += [
            "Its model and its tokens are still to be made: init --out FILE also writes what run-files needs for that."
        ]
    elif files and files_path is not None:
        lines += [
            f"{files_path.name} says what its model and its tokens are made of, where they are not there yet."
        ]
    return [
        *lines,
        f"aftermath-solana config explain KEY says more of each key, {placed('docs/config.md')} of all.",
    ]


def _next(out: Path, *, made: bool) -> list[str]:
    """Return the commands that an owner runs next, in order, until the run trains."""
    file = shlex.quote(str(out))
    run = shlex.quote(_run_id(out))
    signed = f"--run-id {run} -w {_WALLET}"
    make = [making(out)] if made else []
    # else the model is lost with the last member
    kept = shlex.quote(str(Path("runs") / _run_id(out) / "checkpoints"))
    new = (
        [] if Path(_WALLET).exists() else [f"aftermath-solana show-identity --create -w {_WALLET}"]
    )
    return [
        "aftermath-solana localnet",
        *make,
        *new,
        f"aftermath-solana create-run {signed}",
        f"aftermath-solana update-config --config-path {file} {signed}",
        f"aftermath-solana set-paused resume {signed}",
        f"aftermath-solana train {signed} --matformer-tier 0 --checkpoint-dir {kept}",
    ]


def _run_id(out: Path) -> str:
    """Return the config's file name as run id, or "RUN" if it is not a valid one."""
    from aftermath.cli.create_run import check_readable
    from aftermath.cli.options import checked_run_id

    try:
        checked_run_id(out.stem)
        check_readable(out.stem)
    except UsageError:
        return "RUN"
    return out.stem
