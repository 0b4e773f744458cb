"""Shows a server's run: lines of events, or a screen of tabs (`tui`).

Both read the accounts, as members do, on the loop that serves them: only its thread may use the
chain.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from rich.console import Console
from solders.pubkey import Pubkey

from aftermath.base.signals import last_words
from aftermath.base.stdio import is_quiet
from aftermath.base.text import counted
from aftermath.chain.addresses import run_addresses
from aftermath.chain.views import parse_members, parse_model, parse_run
from aftermath.events.printable import printable
from aftermath.events.progress import in_words
from aftermath.events.status import RunStatus, standing
from aftermath.server.server import PROGRAM, CentralServer
from aftermath.ui.terminal.screen import Screen, can_show

SECONDS = 0.5
"""Between two looks."""


class Lines(logging.Handler):
    """What the server says of itself goes to `tell`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(printable(record.getMessage()))


async def watch(server: CentralServer, tui: bool) -> None:
    """Show the run until cancelled."""
    ours = logging.getLogger("aftermath")
    ours.propagate = False  # what it logs is shown here, and not once more
    try:
        await _watch(server, tui)
    finally:
        ours.propagate = True


async def _watch(server: CentralServer, tui: bool) -> None:
    console = Console(highlight=False)
    ours = logging.getLogger("aftermath")
    if ours.level != logging.DEBUG:  # as -v sets it
        ours.setLevel(logging.WARNING if is_quiet() else logging.INFO)
    if tui and can_show(console):
        screen = Screen(console, _now, time.monotonic(), "server", server.config.run_id)
        ours.addHandler(lines := Lines(screen.line))
        try:
            with screen:
                await _show(server, screen)
        except asyncio.CancelledError:  # q, or Ctrl-C: what is left on the terminal
            print(_line(where(server)), flush=True)
            raise
        finally:
            ours.removeHandler(lines)
    ours.addHandler(Lines(_print))

    def stops() -> None:
        _print(f"the server stops: {_line(where(server))}")

    try:
        with last_words(stops):  # everything acknowledged is on the disk
            await _tell(server, _print)
    except asyncio.CancelledError:  # Ctrl-C
        stops()
        raise


async def _show(server: CentralServer, screen: Screen) -> None:
    """Tell the screen where the run stands, as long as there is one."""
    said = ""
    while screen.open:
        screen.stands(found := where(server), connected(server, found))
        screen.facts("Network", network(server))
        if (line := _line(found)) != said:
            screen.line(line)
            said = line
        await asyncio.sleep(SECONDS)


async def _tell(server: CentralServer, tell: Callable[[str], None]) -> None:
    """A line for every state of the run, and for every step."""
    said = ""
    while True:
        if (line := _line(where(server))) != said:
            tell(line)
            said = line
        await asyncio.sleep(SECONDS)


def where(server: CentralServer) -> RunStatus:
    """Where the run stands now."""
    places = run_addresses(PROGRAM, server.config.run_id)
    bank = server.node.bank
    run = bank.account(places.run)
    model = bank.account(places.model)
    members = bank.account(places.members)
    assert run is not None
    assert model is not None
    assert members is not None
    accounts = (
        parse_run(bytes(run.data)),
        parse_model(bytes(model.data)),
        parse_members(bytes(members.data)),
    )
    return standing(*accounts, int(server.node.time.now()), has_tick=False)


def connected(server: CentralServer, found: RunStatus) -> frozenset[bytes]:
    """The members that are connected."""
    here = server.sessions.here
    return frozenset(member.signer for member in found.members if here(Pubkey(member.signer)))


def network(server: CentralServer) -> dict[str, str]:
    """What the server alone knows."""
    return {
        "address": f"{server.config.host}:{server.port}",
        "connected": counted(server.sessions.count, "identity", "identities"),
        "kept": str(
            server.config.state
            or "nothing: the run is lost when this server stops (--save-state-dir)"
        ),
    }


def _line(found: RunStatus) -> str:
    steps = f"epoch {found.epoch}, step {found.step} of {found.total_steps}"
    state = "training" if found.state.training else in_words(found.state)
    return f"run {found.run_id} is {state}: {steps}"


def _print(line: str) -> None:
    print(f"{_now():%H:%M:%S} {line}", flush=True)


def _now() -> datetime:
    return datetime.now(UTC)


def announced(server: CentralServer) -> None:
    """Print that members can connect, for people and parent processes."""
    print(f"server ready run={server.config.run_id} port={server.port}", flush=True)
