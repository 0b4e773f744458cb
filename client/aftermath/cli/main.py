"""The console script `aftermath-solana`: the index of its commands, each loaded only when it is called.

Decided here: `--help` prints the index without importing a single command, because a help page should not wait for
libraries it does not show; a test holds the summaries and the commands' own docstrings together.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from aftermath import __version__

OWN, MEMBER, LOOK, JOIN, NETWORK = (
    "Own a run",
    "Take part in a run",
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
    "show-identity": Entry(MEMBER, "Show the wallet's public key and the identity peers see."),
    "can-join": Entry(MEMBER, "Say whether a wallet may join a run, and why not."),
    "create-run": Entry(OWN, "Create a run on chain."),
    "update-config": Entry(OWN, "Set or change a run's configuration."),
    "set-paused": Entry(OWN, "Pause or resume a run."),
    "tick": Entry(OWN, "Advance a run whose deadline has passed."),
    "checkpoint": Entry(OWN, "Record where the run's durable checkpoint is."),
    "set-future-epoch-rates": Entry(OWN, "Set the points that members earn and lose from the next epoch on."),
    "close-run": Entry(OWN, "Close a halted run and take back its rent."),
    "list-runs": Entry(LOOK, "List the runs on a cluster."),
    "json-dump-run": Entry(LOOK, "Print everything the chain knows of a run, as JSON."),
    "json-dump-user": Entry(LOOK, "Print everything a run knows of one wallet, as JSON."),
    "join-authorization-create": Entry(JOIN, "Let a key, or everybody, join the runs of a join authority."),
    "join-authorization-read": Entry(JOIN, "Show an authorization and its delegates."),
    "join-authorization-delegate": Entry(JOIN, "Set the keys that may join on behalf of an authorized key."),
    "join-authorization-delete": Entry(JOIN, "Withdraw an authorization, and close it when that is allowed."),
    "localnet": Entry(NETWORK, "Run a local Solana network with the programs on it."),
    "deploy": Entry(NETWORK, "Deploy or upgrade the programs on a cluster."),
}


def find(name: str) -> Any:
    """The `command.Command` of this name, from its module."""
    identifier = name.replace("-", "_")
    return getattr(import_module(f"aftermath.cli.{identifier}"), identifier)


def load(name: str) -> TyperCommand:
    """Import the command's module and build the command."""
    found = find(name)
    holder = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    holder.command(name, epilog=f"Example:\n\n{found.example}")(found.entry)
    built = typer.main.get_command(holder)
    assert isinstance(built, TyperCommand)
    return built


class LazyCommands(TyperGroup):
    """Lists commands from the index, and loads the one that is called."""

    def __init__(self, **options: Any) -> None:
        index = {
            name: TyperCommand(name, help=entry.summary, rich_help_panel=entry.panel) for name, entry in INDEX.items()
        }
        super().__init__(**{**options, "commands": index})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The called command itself."""
        name, found, rest = super().resolve_command(ctx, args)
        return (name, load(name), rest) if name and found else (name, found, rest)


app = typer.Typer(
    name="aftermath-solana",
    cls=LazyCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
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
    app()


if __name__ == "__main__":
    main()
