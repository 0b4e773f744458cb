"""`init`: the commented config file of a new run, and beside it what its model and tokens are made of.

Decided: what no option says is asked for, on a terminal only; without one the recipe decides. What would not pass
`config validate` is not written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from aftermath.base.errors import AftermathError, UsageError
from aftermath.cli.command import command
from aftermath.cli.present import CommandError, Result, note, plain_text
from aftermath.model.presets import PRESETS
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.limits import MAX_LEVELS
from aftermath.rules.optimizers import ExchangedName

if TYPE_CHECKING:
    from aftermath.cli.new_config import FILES
    from aftermath.config.document import RunConfig

T = TypeVar("T")
_NEITHER = "as the recipe has it"


@dataclass(frozen=True)
class InitOptions:
    """What the owner of the new run wishes; what is None the recipe decides, or a question."""

    recipe: Annotated[
        str | None,
        typer.Option(
            help="The config to begin with: one that comes with the package, as demo or solana-test/light-config.toml, "
            "or a file; else the latter."
        ),
    ] = None
    preset: Annotated[
        str | None, typer.Option(help=f"A model by name; else the recipe's. One of {', '.join(PRESETS)}.")
    ] = None
    tiers: Annotated[
        int | None, typer.Option(min=1, max=MAX_LEVELS, help="Tiers that the model is cut into; else the recipe's.")
    ] = None
    optimizer: Annotated[
        ExchangedName | None,
        typer.Option(help="What members exchange results with, and the numbers that go with it; else the recipe's."),
    ] = None
    members: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_MEMBERS, help="Members that the run begins with; else the recipe's."),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, max=2**32 - 1, help="Steps of the run, over which the learning rate goes; else the recipe's."
        ),
    ] = None
    data_path: Annotated[
        Path | None, typer.Option(help="Token file or directory of them; else they are made as the recipe's are.")
    ] = None


@command("init", example="aftermath-solana init --out run.toml --preset llama-1m --members 3 --steps 200")
def init(
    options: InitOptions,
    out: Annotated[Path, typer.Option(help="The config file to write.")] = Path("run.toml"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of text; nothing is asked.")
    ] = False,
) -> Result:
    """Write the commented config file of a new run, from questions or options.

    It begins with a recipe, which the options change; on a terminal it asks for what they do not say. Every key has a
    comment that says what it is. Where model and tokens are still to be made, a second file beside the first says of
    what: local-testnet start makes them by it, and so does python -m aftermath.testnet.files FILE.
    """
    from aftermath.cli.config_check import look
    from aftermath.cli.new_config import RECIPE, Wishes, begin, changed
    from aftermath.config.document import RunConfig, parse_as
    from aftermath.config.errors import Mistaken
    from aftermath.config.written import tables_of, text_of, write

    beside = out.with_suffix(".files.toml")
    if there := [path for path in (out, beside) if path.exists() and not force]:
        raise CommandError(f"{there[0]} is there already", "Name another file with --out, or say --force")
    if sys.stdin is not None and sys.stdin.isatty() and not json_output:
        options = asked(options)
    wishes = Wishes(**asdict(options))
    config, files = changed(*begin(wishes.recipe or RECIPE), wishes, f"runs/{out.stem}")
    text = text_of(config, _about(options, beside, files))
    parsed = parse_as(text, str(out), RunConfig)
    found = look(parsed, files)
    if found.mistakes:
        raise Mistaken(str(out), found.mistakes, "Nothing was written; choose other options, or another --recipe")
    if files:
        write(
            beside,
            tables_of(
                files, [f"What the model and the tokens of {out.name} are made of, where they are not there yet."]
            ),
        )
    else:
        beside.unlink(missing_ok=True)  # of a file that is written over
    write(out, text)
    for _, warning in found.warnings:
        note(f"warning: {warning}")
    data = {
        "file": str(out),
        "files": str(beside) if files else None,
        "warnings": [{"code": code, "message": sentence} for code, sentence in found.warnings],
        "next": _next(out, parsed, made=bool(files)),
    }
    lines = [f"wrote {out}" + (f", and {beside} for what is still to be made" if files else ""), "next:"]
    return Result(
        data, plain_text("\n".join([*lines, *(f"  {line}" for line in _next(out, parsed, made=bool(files)))]))
    )


def asked(options: InitOptions) -> InitOptions:
    """The options with answers to questions for those that were not given."""
    from aftermath.cli.new_config import RECIPE, begin, optimizer_name
    from aftermath.testnet.configs import SHIPPED, configs

    known = ", ".join(sorted(str(path.relative_to(SHIPPED)) for path in configs()))
    recipe = options.recipe or _ask(f"Recipe to begin with ({known})", RECIPE, _known_recipe)
    config, _ = begin(recipe)
    found = replace(options, recipe=recipe)
    has, exchanged = optimizer_name(config), get_args(ExchangedName)
    questions: list[tuple[str, str, object, Callable[[str], Any]]] = [
        ("preset", f"Model ({', '.join(PRESETS)})", _NEITHER, _one_of(*PRESETS, _NEITHER)),
        ("tiers", "Tiers that it is cut into", config.llm.matformer.tiers, _number(1, MAX_LEVELS)),
        ("optimizer", f"Optimizer ({', '.join(exchanged)})", has or "sparseloco", _one_of(*exchanged)),
        ("members", "Members that it begins with", config.config.init_min_clients, _number(1, MAX_MEMBERS)),
        ("steps", "Steps", config.config.total_steps, _number(1, 2**32 - 1)),
        ("data_path", "Token files, a path", _NEITHER, _path),
    ]
    for name, question, default, read in questions:
        if getattr(found, name) is None:
            answer = _ask(question, str(default), read)
            found = replace(found, **{name: None if answer == _NEITHER else answer})
    return found


def _ask(question: str, default: str, read: Callable[[str], T]) -> T:
    """An answer that can be read; Ctrl-C, and an end of the input, end the command."""
    while True:
        try:
            return read(typer.prompt(question, default=default, err=True).strip())
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


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise UsageError(f"{text!r} is none of them", f"Choose one of {', '.join(words)}")
        return text

    return read


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
            raise UsageError(f"{text!r} is no whole number from {least} to {most}", "Write one")
        return int(text)

    return read


def _about(options: InitOptions, beside: Path, files: FILES) -> list[str]:
    """What the file begins with."""
    from aftermath.cli.new_config import RECIPE

    lines = [f"The config of a run, made by aftermath-solana init from the recipe {options.recipe or RECIPE}."]
    if files:
        lines += [f"{beside.name} says what its model and its tokens are made of, where they are not there yet."]
    return [*lines, "aftermath-solana config explain KEY says more of each key, docs/config.md of all."]


def _next(out: Path, config: RunConfig, *, made: bool) -> list[str]:
    """What an owner may do with the file, as commands."""
    members = config.config.init_min_clients
    return [
        f"aftermath-solana config validate {out}",
        f"aftermath-solana local-testnet start --num-clients {members} --config-path {out}",
        *([f"python -m aftermath.testnet.files {out}"] if made else []),
        f"aftermath-solana update-config --run-id RUN --config-path {out}",
    ]
