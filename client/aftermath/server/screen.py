"""Show a server's run as lines of text or as a screen of tabs.

Both read the run's accounts, like members. They run on the server's event loop, because only its
thread may use the chain.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from rich.console import Console
from solders.pubkey import Pubkey

from aftermath.base.signals import before_termination
from aftermath.base.stdio import is_quiet
from aftermath.base.text import counted
from aftermath.chain.addresses import run_addresses
from aftermath.chain.views import parse_members, parse_model, parse_run
from aftermath.events.printable import printable
from aftermath.events.progress import state_phrase
from aftermath.events.status import RunStatus, status_of
from aftermath.server.server import PROGRAM, RunServer
from aftermath.ui.terminal.screen import Screen, can_show

REFRESH_SECONDS = 0.5


class LineHandler(logging.Handler):
    """A log handler that passes each message to `write` as one line."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's message without control characters."""
        self._write(printable(record.getMessage()))


async def watch(server: RunServer, tui: bool) -> None:
    """Show the run until cancelled."""
    logger = logging.getLogger("aftermath")
    logger.propagate = False  # the lines are shown here, so do not print them twice
    try:
        await _watch(server, tui)
    finally:
        logger.propagate = True


async def _watch(server: RunServer, tui: bool) -> None:
    console = Console(highlight=False)
    logger = logging.getLogger("aftermath")
    if logger.level != logging.DEBUG:  # -v has set it
        logger.setLevel(logging.WARNING if is_quiet() else logging.INFO)
    if tui and can_show(console):
        screen = Screen(console, _now, time.monotonic(), "server", server.config.run_id)
        handler = LineHandler(screen.line)
        logger.addHandler(handler)
        try:
            with screen:
                await _update_screen(server, screen)
        except asyncio.CancelledError:  # q or Ctrl-C: leave the status on the terminal
            print(_line(run_status(server)), flush=True)
            raise
        finally:
            logger.removeHandler(handler)
    logger.addHandler(LineHandler(_print))

    def print_stop() -> None:
        _print(f"the server stops: {_line(run_status(server))}")

    try:
        with before_termination(print_stop):
            await _print_changes(server)
    except asyncio.CancelledError:  # Ctrl-C
        print_stop()
        raise


async def _update_screen(server: RunServer, screen: Screen) -> None:
    """Update the screen every `REFRESH_SECONDS` while it is open."""
    previous = ""
    while screen.open:
        status = run_status(server)
        screen.show_status(status, connected_members(server, status))
        screen.facts("Network", network_facts(server))
        line = _line(status)
        if line != previous:
            screen.line(line)
            previous = line
        await asyncio.sleep(REFRESH_SECONDS)


async def _print_changes(server: RunServer) -> None:
    """Print a line for every state and step of the run, until cancelled."""
    previous = ""
    while True:
        line = _line(run_status(server))
        if line != previous:
            _print(line)
            previous = line
        await asyncio.sleep(REFRESH_SECONDS)


def run_status(server: RunServer) -> RunStatus:
    """Return the status of the run from its accounts."""
    addresses = run_addresses(PROGRAM, server.config.run_id)
    bank = server.node.bank
    run = bank.account(addresses.run)
    model = bank.account(addresses.model)
    members = bank.account(addresses.members)
    assert run is not None
    assert model is not None
    assert members is not None
    accounts = (
        parse_run(bytes(run.data)),
        parse_model(bytes(model.data), any_spec=True),
        parse_members(bytes(members.data)),
    )
    return status_of(*accounts, int(server.node.time.now()), has_tick=False)


def connected_members(server: RunServer, status: RunStatus) -> frozenset[bytes]:
    """Return the public keys of the members that are connected."""
    is_connected = server.sessions.is_connected
    signers = (member.signer for member in status.members)
    return frozenset(signer for signer in signers if is_connected(Pubkey(signer)))


def network_facts(server: RunServer) -> dict[str, str]:
    """Return the server's address, number of connected identities and state directory."""
    return {
        "address": f"{server.config.host}:{server.port}",
        "connected": counted(server.sessions.count, "identity", "identities"),
        "kept": str(
            server.config.state
            or "nothing: the run is lost when this server stops (--save-state-dir)"
        ),
    }


def _line(status: RunStatus) -> str:
    steps = f"epoch {status.epoch}, step {status.step} of {status.total_steps}"
    state = "training" if status.state.training else state_phrase(status.state)
    return f"run {status.run_id} is {state}: {steps}"


def _print(line: str) -> None:
    print(f"{_now():%H:%M:%S} {line}", flush=True)


def _now() -> datetime:
    return datetime.now(UTC)


def print_ready(server: RunServer) -> None:
    """Print that members can connect. Parent processes wait for this line."""
    print(f"server ready run={server.config.run_id} port={server.port}", flush=True)
