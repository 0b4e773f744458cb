"""A console script that imports each command only when it is called.

`--help` of the script imports no command; a test compares the summaries here with the commands' own
docstrings. Two-word commands (`model init`) are listed by their first word.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import groupby, pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from aftermath.base.errors import UsageError
from aftermath.base.quiet_interrupts import QuietInterrupts
from aftermath.base.stdio import VERBOSITY, Verbosity
from aftermath.cli.error_report import remember_profile, reporting
from aftermath.cli.present import remember_options, writing
from aftermath.cli.usage import (
    ParserError,
    kind_of,
    misplaced_option,
    profile_key,
    unknown_command,
    usage_error,
)

GENERAL = "Options"
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_LEVELS = frozenset({"-q", "--quiet", "-v", "--verbose"})
_HELP_ASKED = [[name] for name in SETTINGS["help_option_names"]]


@dataclass(frozen=True)
class Entry:
    """A line of the index: where help lists the command, and what it says there."""

    panel: str
    summary: str
    module: str = ""
    """The module of the command. By default it has the command's name."""


@dataclass(frozen=True)
class Index:
    """One script: its name, its commands and their package, and the texts around them in help."""

    name: str
    package: str
    entries: Mapping[str, Entry]
    summary: str
    epilog: str
    stored: Callable[[], Mapping[str, str]] = dict
    """Return what the user stored for all commands, by the names of `options.shared`."""

    def find(self, name: str) -> Any:
        """Import the module of a command and return its `command.Command`."""
        identifier = name.replace("-", "_").replace(" ", "_")
        module = self.entries[name].module or identifier
        return getattr(import_module(f"{self.package}.{module}"), identifier)

    def kinds(self, name: str) -> Mapping[str, Any]:
        """Return the types of a command's options."""
        annotations: Mapping[str, Any] = self.find(name).entry.__annotations__
        return annotations

    def command_of(self, words: Sequence[str]) -> str | None:
        """Return the name of the command that `words` begin with, or None."""
        return next(
            (name for name in (" ".join(words[:2]), *words[:1]) if name in self.entries), None
        )

    def commands_with(self, word: str) -> dict[str, Entry]:
        """Return the two-word commands whose first word is `word`."""
        return {name: entry for name, entry in self.entries.items() if name.startswith(f"{word} ")}

    @cached_property
    def _built(self) -> dict[str, TyperCommand]:
        """The commands that were called, by their names."""
        return {}

    def load(self, name: str) -> TyperCommand:
        """Import the command's module and build the command, once in a process."""
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def _build(self, name: str) -> TyperCommand:
        definition = self.find(name)
        kinds = definition.entry.__annotations__
        holder = typer.Typer(
            add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
        )
        kind = type(
            "OneCommand", (_OneCommand,), {"kinds": kinds, "stored": staticmethod(self.stored)}
        )
        # \b keeps click from wrapping the example, so that it can be copied
        epilog = f"\b\nExample:\n  {definition.example}"
        declare = holder.command(name, cls=kind, epilog=epilog, context_settings=SETTINGS)
        declare(definition.entry)
        built = typer.main.get_command(holder)
        assert isinstance(built, TyperCommand)
        return built

    @cached_property
    def app(self) -> typer.Typer:
        """The script as typer has it."""
        app = typer.Typer(
            name=self.name,
            cls=type("LazyCommands", (_LazyCommands,), {"index": self}),
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            context_settings=SETTINGS,
            epilog=f"{self.name} help COMMAND explains a command. {self.epilog}",
        )
        app.callback(help=self.summary)(_root)
        return app

    def main(self) -> None:
        """Entry point of the console script."""
        with QuietInterrupts():
            self.app()


class _OneCommand(TyperCommand):
    """A click command with our help page, empty-path check and profile defaults."""

    kinds: Mapping[str, Any]
    """The types of its options."""
    stored: Callable[[], Mapping[str, str]]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with defaults from the profile.

        Reject an empty path, as from an unset shell variable: it would mean the current directory.
        """
        kinds = self.kinds
        paths = {
            name
            for option in self.params
            if kind_of(kinds.get(option.name)) is Path
            for name in option.opts
        }
        for flag, value in (*pairwise(args), *(word.split("=", 1) for word in args if "=" in word)):
            if flag in paths and not value:
                raise UsageError(
                    f"the path for {flag} is empty", "Name a file, or leave the option out"
                )
        names = {option.name: key for option in self.params if (key := profile_key(option))}
        profile = self.stored() if names else {}
        ctx.default_map = {name: profile[key] for name, key in names.items() if key in profile}
        try:
            remaining = super().parse_args(ctx, args)
        finally:
            sources = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in names}
            from_profile = {
                key: profile[key] for name, key in names.items() if sources[name] == "DEFAULT_MAP"
            }
            if sources.get("rpc") in ("COMMANDLINE", "ENVIRONMENT") and from_profile.pop(
                "ws-rpc", ""
            ):
                ctx.params["ws_rpc"] = None  # the stored websocket belongs to the profile's node
            remember_profile(from_profile)
        return remaining

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by panel, those without one first."""
        options_shown: list[Any] = [
            option for option in self.get_params(ctx) if option.get_help_record(ctx)
        ]
        options_shown.sort(key=lambda option: option.rich_help_panel or "")
        for panel, options in groupby(
            options_shown, key=lambda option: option.rich_help_panel or GENERAL
        ):
            with formatter.section(panel):
                formatter.write_dl([option.get_help_record(ctx) for option in options])


class _LazyCommands(TyperGroup):
    """Lists commands from the index, loads only the called one, and reports all usage errors."""

    index: Index

    def __init__(self, **options: Any) -> None:
        entries = {
            name: TyperCommand(name, help=entry.summary)
            for name, entry in self.index.entries.items()
        }
        super().__init__(**{**options, "commands": entries})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the called command, imported, and its arguments."""
        if name := self.index.command_of(args):
            return name, self.index.load(name), args[len(name.split()) :]
        if ctx.resilient_parsing:  # a shell completes an unfinished word
            return None, None, args
        words = " ".join(args[:2]) if self.index.commands_with(args[0]) else args[0]
        raise unknown_command(self.index.name, words, self.index.entries)

    def _first_word(self, ctx: Any) -> str:
        """Return the word whose commands the page lists, "" for the page of the whole script."""
        return (ctx.info_name or "").removeprefix(self.index.name).strip()

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options. The page of a first word has only --help."""
        options = super().get_params(ctx)
        return [one for one in options if one.name == "help"] if self._first_word(ctx) else options

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the page is about."""
        if not (word := self._first_word(ctx)):
            return super().format_help_text(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(f"The commands of {self.index.name} that begin with {word}.")
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by panel, or those that begin with the first word if the page is about
        it.
        """
        word = self._first_word(ctx)
        entries = self.index.commands_with(word) if word else self.index.entries
        for panel, group in groupby(entries.items(), key=lambda item: item[1].panel):
            with formatter.section(panel):
                formatter.write_dl([(name, entry.summary) for name, entry in group])

    def main(self, *positional: Any, **keywords: Any) -> Any:
        """Run a command line (`args`, else the process's own) and end the process with its exit
        code.
        """
        args = positional[0] if positional else keywords.get("args")
        words = self._in_order(list(sys.argv[1:] if args is None else args)) or ["--help"]
        verbosity = VERBOSITY.set(Verbosity.INFO)
        try:
            remember_options({})
            with reporting(as_json="--json" in words):
                code = 0 if self._shows_page(words) else self._run(words)
        except typer.Exit as ending:
            code = ending.exit_code
        finally:
            VERBOSITY.reset(verbosity)
        sys.exit(code)

    def _in_order(self, words: list[str]) -> list[str]:
        """Return the words with `help COMMAND` as `COMMAND --help`, and -q or -v behind the command
        that takes them.
        """
        if words[:1] == ["help"] and "help" not in self.index.entries:
            return [*words[1:], "--help"]
        levels = list(takewhile(_LEVELS.__contains__, words))
        rest = words[len(levels) :]
        name_length = len((self.index.command_of(rest) or "").split()) if rest else 0
        return [*rest[:name_length], *levels, *rest[name_length:]] if name_length else words

    def _shows_page(self, words: list[str]) -> bool:
        """Print requested help without the slow parser. Return whether help was requested."""
        page: Any = None
        name = self.index.command_of(words)
        if words in _HELP_ASKED:
            page = self
            path = self.index.name
        elif self.index.commands_with(words[0]) and words[1:] in ([], *_HELP_ASKED):
            page = self
            path = f"{self.index.name} {words[0]}"
        elif name and words[len(name.split()) :][:1] in _HELP_ASKED:
            page = self.index.load(name)
            path = f"{self.index.name} {name}"
        if page is None:
            return False
        with writing():
            print(page.get_help(page.context_class(page, info_name=path, **SETTINGS)))
        return True

    def _run(self, words: list[str]) -> int:
        try:
            ended = super().main(words, self.index.name, standalone_mode=False)
        except ParserError as error:
            name = self.index.command_of(words)
            if name is None:
                self._check_order(error, words)
            kinds = self.index.kinds(name) if name else {}
            raise usage_error(error, self.index.name, name, kinds) from None
        return ended if isinstance(ended, int) else 0

    def _check_order(self, error: Any, words: list[str]) -> None:
        """Raise UsageError if the option that the script does not know belongs to the command."""
        tails = (self.index.command_of(words[start:]) for start in range(len(words)))
        name = next(filter(None, tails), None)
        if name is None:
            return
        options = self.index.load(name).params
        if order_error := misplaced_option(error, self.index.name, name, options=options):
            raise order_error from None


def _say_version(requested: bool) -> None:
    if requested:
        from aftermath import __version__

        with writing():
            print(__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    pass
