"""What a server shows of its run: lines of what happens, or a picture in a terminal that is drawn over.

Decided: both read the accounts, as members do; the picture's rows have one order, that of the members' places.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from solders.pubkey import Pubkey

from aftermath.central.server import PROGRAM, CentralServer
from aftermath.chain.addresses import run_addresses
from aftermath.chain.views import parse_members, parse_run
from aftermath.cli.dump import in_words
from aftermath.rules.accounts import Members, Run
from aftermath.rules.deadlines import next_deadline
from aftermath.watch.printable import printable
from aftermath.watch.terminal import redraws

SECONDS = 0.5
"""Between two looks."""
MOST_ROWS, MOST_LINES = 24, 6


class Lines(logging.Handler):
    """What the server says of itself: printed, or kept for the picture."""

    def __init__(self, *, kept: bool) -> None:
        super().__init__(logging.INFO)
        self.newest: deque[str] = deque(maxlen=MOST_LINES)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{datetime.now(UTC):%H:%M:%S} {printable(record.getMessage())}"
        self.newest.append(line)
        if not self._kept:
            print(line, flush=True)


async def watch(server: CentralServer, tui: bool) -> None:
    """Show the run for ever."""
    console = Console()
    drawn = tui and redraws(console)
    lines = Lines(kept=drawn)
    logging.getLogger("aftermath").setLevel(logging.INFO)
    logging.getLogger("aftermath").addHandler(lines)
    if not drawn:
        await _tell(server)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            live.update(picture(server, lines), refresh=True)
            await asyncio.sleep(SECONDS)


async def _tell(server: CentralServer) -> None:
    """A line for every state of the run."""
    said = ""
    while True:
        run, _ = accounts(server)
        line = f"run {run.run_id} is {in_words(run.state)}: epoch {run.epoch}, {_steps(run)}"
        if (key := line if not run.state.training else f"{run.epoch} {run.trained_steps}") != said:
            print(f"{datetime.now(UTC):%H:%M:%S} {line}", flush=True)
            said = key
        await asyncio.sleep(SECONDS)


def accounts(server: CentralServer) -> tuple[Run, Members]:
    """The run and its members as they are now."""
    places = run_addresses(PROGRAM, server.config.run_id)
    run, members = server.node.bank.account(places.run), server.node.bank.account(places.members)
    assert run is not None
    assert members is not None
    return parse_run(bytes(run.data)), parse_members(bytes(members.data))


def picture(server: CentralServer, lines: Lines) -> RenderableType:
    """The run, its members and the newest lines."""
    run, members = accounts(server)
    facts = Table.grid(padding=(0, 2))
    due = next_deadline(run)
    left = "-" if due is None else f"{max(0, due - int(server.node.time.now()))} s left"
    rows = (
        ("run", f"{run.run_id} at port {server.port}"),
        ("now", f"{in_words(run.state)}, {left}"),
        ("progress", f"epoch {run.epoch}, {_steps(run)}"),
        ("here", f"{server.presence.count} connected"),
    )
    for name, value in rows:
        facts.add_row(Text(name, style="bold"), Text(printable(value)))
    table = Table("member", "tier", "state", "connected", box=None, pad_edge=False, header_style="bold")
    used = [slot for slot in members.slots if any(slot.signer)]
    for slot in used[:MOST_ROWS]:
        identity = Pubkey(slot.signer)
        here = "yes" if server.presence.here(identity) else "no"
        table.add_row(f"{str(identity)[:12]}…", str(slot.tier), slot.state.name.lower(), here)
    if len(used) > MOST_ROWS:
        table.add_row(f"and {len(used) - MOST_ROWS} more", "", "", "")
    return Group(facts, Text(), table, Text(), Text("\n".join(lines.newest), style="dim"))


def _steps(run: Run) -> str:
    return f"step {run.trained_steps} of {run.config.total_steps}"


def announced(server: CentralServer) -> None:
    """The line that says that members can come: for people, and for whoever started the server."""
    print(f"server ready run={server.config.run_id} port={server.port}", flush=True)
