"""The console script `aftermath-solana`: the index of its commands, each loaded only when it is called.

Decided here: `--help` prints the index without importing a single command, because a help page should not wait for
libraries it does not show; a test holds the summaries and the commands' own docstrings together. Commands about one
thing have two words (`model init`); the first alone lists them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from aftermath import __version__
from aftermath.base.errors import UsageError
from aftermath.cli.describe import kind_of
from aftermath.cli.help import command_page, index_page
from aftermath.cli.present import EXIT_INTERRUPTED, reporting
from aftermath.cli.usage import ParserError, explained, unknown_command

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

OWN, MEMBER, LAB, MODEL, DATA, LOOK, JOIN, NETWORK = (
    "Own a run",
    "Take part in a run",
    "Train without a run",
    "Checkpoints of models",
    "Token files",
    "Look at runs",
    "Who may join",
    "Networks and programs",
)


@dataclass(frozen=True)
class Entry:
    """A line of the index: where help lists the command, and what it says there."""

    panel: str
    summary: str


INDEX = {
    "train": Entry(MEMBER, "Join a run and train until it ends."),
    "predownload": Entry(MEMBER, "Fetch a run's model and check its data before joining."),
    "withdraw": Entry(MEMBER, "End a wallet's membership of a run and take back its bond and rent."),
    "show-identity": Entry(MEMBER, "Show the wallet's public key and the identity peers see."),
    "can-join": Entry(MEMBER, "Say whether a wallet may join a run, and why not."),
    "train-local": Entry(LAB, "Train on this machine alone, without chain or network."),
    "eval": Entry(LAB, "Ask a model the questions of named tasks."),
    "generate": Entry(LAB, "Write text with a model, or with a tier of it."),
    "preview-lr": Entry(LAB, "Show the learning rate of every step that a config file means."),
    "model init": Entry(MODEL, "Write a new, untrained checkpoint with a tokenizer."),
    "model inspect": Entry(MODEL, "Say what a checkpoint is, tier by tier."),
    "model export": Entry(MODEL, "Export tiers of a full checkpoint, with a manifest."),
    "model merge": Entry(MODEL, "Put a tier's slice back into the full model it belongs to."),
    "model verify": Entry(MODEL, "Read a checkpoint and its tiers whole, and say whether they are."),
    "model push": Entry(MODEL, "Upload a checkpoint to the Hugging Face Hub."),
    "data tokenize": Entry(DATA, "Turn a folder of text into token files."),
    "data inspect": Entry(DATA, "Say what token files are, and what marks them."),
    "data fetch": Entry(DATA, "Download the tokens of FineWeb, or numbered token files elsewhere."),
    "data serve": Entry(DATA, "Serve token files to a run's members, over TCP."),
    "create-run": Entry(OWN, "Create a run on chain."),
    "update-config": Entry(OWN, "Set or change a run's configuration."),
    "set-paused": Entry(OWN, "Pause or resume a run."),
    "tick": Entry(OWN, "Advance a run whose deadline has passed."),
    "checkpoint": Entry(OWN, "Record where the run's durable checkpoint is."),
    "rewind": Entry(OWN, "Take a paused run back to a recorded checkpoint, or list these."),
    "reopen": Entry(OWN, "Let a finished run go on, with more steps."),
    "kick": Entry(OWN, "Take a wallet out of the next epoch, or bar it from the run."),
    "set-future-epoch-rates": Entry(OWN, "Set the points that members earn and lose from the next epoch on."),
    "close-run": Entry(OWN, "Close a halted run and take back its rent."),
    "list-runs": Entry(LOOK, "List the runs on a cluster."),
    "decode-gradients": Entry(LOOK, "Show what members sent, from the files that train writes of it."),
    "json-dump-run": Entry(LOOK, "Print everything the chain knows of a run, as JSON."),
    "json-dump-user": Entry(LOOK, "Print everything a run knows of one wallet, as JSON."),
    "join-authorization-create": Entry(
        JOIN, "Let a key, or everybody, join one run of a join authority, or all of them."
    ),
    "join-authorization-read": Entry(JOIN, "Show an authorization and its delegates."),
    "join-authorization-delegate": Entry(JOIN, "Set the keys that may join on behalf of an authorized key."),
    "join-authorization-delete": Entry(JOIN, "Withdraw an authorization, and close it when that is allowed."),
    "localnet": Entry(NETWORK, "Run a local Solana network with the programs on it."),
    "deploy": Entry(NETWORK, "Deploy or upgrade the programs on a cluster."),
}


def find(name: str) -> Any:
    """The `command.Command` of this name, from its module."""
    identifier = name.replace("-", "_").replace(" ", "_")
    return getattr(import_module(f"aftermath.cli.{identifier}"), identifier)


def called(words: Sequence[str]) -> str | None:
    """The command that a command line begins with, if there is one."""
    return next((name for name in (" ".join(words[:2]), *words[:1]) if name in INDEX), None)


def about(word: str) -> dict[str, Entry]:
    """The commands of two words that begin with this one."""
    return {name: entry for name, entry in INDEX.items() if name.startswith(f"{word} ")}


def load(name: str) -> TyperCommand:
    """Import the command's module and build the command."""
    found = find(name)
    holder = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    declare = holder.command(name, cls=OneCommand, epilog=f"Example:\n\n{found.example}", context_settings=HELP_NAMES)
    declare(found.entry)
    built = typer.main.get_command(holder)
    assert isinstance(built, TyperCommand)
    return built


class OneCommand(TyperCommand):
    """A command whose help page is ours, and that takes no empty text for a path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, but for an unset variable of a shell: the empty path would be the current directory."""
        kinds = find(str(self.name)).entry.__annotations__
        paths = {name for option in self.params if kind_of(kinds.get(option.name)) is Path for name in option.opts}
        for flag, value in (*pairwise(args), *(word.split("=", 1) for word in args if "=" in word)):
            if flag in paths and not value:
                raise UsageError(f"the path given for {flag} is empty", "name a file, or leave the option out")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page."""
        formatter.write(command_page(ctx.command_path, self, find(str(self.name)).entry.__annotations__))


class LazyCommands(TyperGroup):
    """Lists commands from the index, loads the one that is called, and tells every mistake in one form."""

    def __init__(self, **options: Any) -> None:
        index = {name: TyperCommand(name, help=entry.summary) for name, entry in INDEX.items()}
        super().__init__(**{**options, "commands": index})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The called command itself."""
        if name := called(args):
            return name, load(name), args[len(name.split()) :]
        if ctx.resilient_parsing:  # a shell that completes a word that is not finished
            return None, None, args
        raise unknown_command(" ".join(args[:2]) if about(args[0]) else args[0], INDEX)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page."""
        formatter.write(index_page(self, INDEX))

    def main(self, *given: Any, **named: Any) -> Any:
        """Run a command line (`args`, else the process's own) and end the process with its exit code."""
        args = given[0] if given else named.get("args")
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        if (ones := about(words[0])) and words[1:] in ([], *([name] for name in HELP_NAMES["help_option_names"])):
            print(index_page(self, ones))
            sys.exit(0)
        try:
            with reporting(as_json="--json" in words):
                code = self._run(words)
        except typer.Exit as ending:
            code = ending.exit_code
        sys.exit(code)

    def _run(self, words: list[str]) -> int:
        try:
            ended = super().main(words, "aftermath-solana", standalone_mode=False)
        except ParserError as error:
            name = called(words)
            raise explained(error, name, find(name).entry.__annotations__ if name else {}) from None
        return ended if isinstance(ended, int) else 0


app = typer.Typer(
    name="aftermath-solana",
    cls=LazyCommands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
    epilog="Options that name a cluster, a wallet or a run also read an environment variable: --run-id reads RUN_ID.",
)


def _say_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Train one language model together, through Solana."""


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except KeyboardInterrupt:  # while a command's libraries are imported
        raise SystemExit(EXIT_INTERRUPTED) from None


if __name__ == "__main__":
    main()
