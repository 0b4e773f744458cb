"""A run that an owner's commands create and that `aftermath-solana train` processes train."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from solders.pubkey import Pubkey
from typer.testing import CliRunner
from xprocess import XProcess

from aftermath.chain.wallet import create_wallet
from aftermath.cli.main import app
from aftermath.rules.members import Members, Seat
from aftermath.rules.model import Model
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState
from e2e import fork_server
from e2e.event_log import EventLog, applied_sequences, compare_replicas
from e2e.network import Network
from e2e.processes import CONSOLE, PATIENCE, Running, RunningMember, until

_run_numbers = itertools.count(1)
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass
class ClusterMember:
    """A wallet that takes part with a tier, in consecutive processes."""

    name: str
    tier: int
    key: Path
    wallet: Pubkey
    event_log: EventLog
    processes: list[Running] = field(default_factory=list)

    @property
    def process(self) -> Running:
        return self.processes[-1]


class TrainingCluster:
    """One run on a network, its owner and its members."""

    def __init__(self, network: Network, xprocess: XProcess, place: Path) -> None:
        self.network = network
        self._xprocess = xprocess
        self.place = place
        self.run_id = f"run-{next(_run_numbers)}"
        self.members: list[ClusterMember] = []
        self.starts_commands = False
        """Whether members are started as commands, from nothing, and not forked."""
        self.owner = place / "owner.json"
        self.owner_key = create_wallet(self.owner).pubkey

    # --- the owner's commands

    def command(self, name: str, *words: str | Path, wallet: Path | None = None) -> Any:
        """Run a command with `--json` in this process, and return its document."""
        line = [name, *self.network.at, "-w", str(wallet or self.owner), *map(str, words), "--json"]
        result = CliRunner().invoke(app, line)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def configure(self, config: Path, *options: str | Path) -> None:
        """Create the run and set its config."""
        self.command("create-run", "--run-id", self.run_id, *options)
        self.command("update-config", "--run-id", self.run_id, "--config-path", config)

    def set_paused(self, word: str) -> None:
        """Pause or resume the run with the owner's command in a new process."""
        line: list[str | Path] = [
            CONSOLE,
            "set-paused",
            "--run-id",
            self.run_id,
            "-w",
            self.owner,
            *self.network.at,
            word,
        ]
        completed = subprocess.run(
            line, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr

    # --- members

    def add_member(self, tier: int) -> ClusterMember:
        """Add a member with a new wallet."""
        name = f"member-{len(self.members)}"
        key = self.place / "keys" / f"{name}.json"
        wallet = create_wallet(key).pubkey
        self.members.append(
            ClusterMember(name, tier, key, wallet, EventLog(self.place / "events" / name))
        )
        return self.members[-1]

    def line(self, member: ClusterMember, *options: str | Path) -> list[str | Path]:
        """Return the arguments of `train` for this member."""
        archive: list[str | Path] = (
            ["--checkpoint-dir", self.place / "checkpoints"] if member.tier == 0 else []
        )
        return [
            *("train", "--run-id", self.run_id, *self.network.at, "-w"),
            member.key,
            *(
                "--matformer-tier",
                str(member.tier),
                "--micro-batch-size",
                "4",
                "--threads",
                "1",
                "--device",
                "cpu",
            ),
            *("--iroh-relay", "disabled", "--iroh-discovery", "local", "--discovery-dir"),
            self.place / "peers",
            *("--bind-p2p-interface", "127.0.0.1", "--logs", "json", "--events-dir"),
            self.place / "events" / member.name,
            *archive,
            *options,
        ]

    def start(
        self, member: ClusterMember, *options: str | Path, on: Sequence[str] = (), **own: str
    ) -> Running:
        """Start `aftermath-solana train` for a member. `on` are words before the command, `own` are
        additional environment variables.
        """
        if on or own or self.starts_commands or not fork_server.SUPPORTED:
            return self.launch(member, [*on, CONSOLE, *self.line(member, *options)], **own)
        name = f"{self.run_id}-{member.name}"
        process = RunningMember(name, self.line(member, *options), self.place / "logs", THREADS)
        member.processes.append(process)
        return process

    def launch(self, member: ClusterMember, command: Sequence[str | Path], **own: str) -> Running:
        """Start a command as the member's process."""
        name = f"{self.run_id}-{member.name}"
        member.processes.append(Running(self._xprocess, name, command, THREADS | own))
        return member.process

    def start_three(self) -> list[ClusterMember]:
        """Start members of tiers 0, 1 and 2 at once, and start the run."""
        three = [self.add_member(tier) for tier in (0, 1, 2)]
        for member in three:
            self.start(member)
        self.command("set-paused", "resume", "--run-id", self.run_id)
        return three

    # --- state

    @property
    def run(self) -> Run:
        return self.network.run(self.run_id)

    @property
    def model(self) -> Model:
        return self.network.model(self.run_id)

    @property
    def chain_members(self) -> Members:
        return self.network.members(self.run_id)

    def seat(self, member: ClusterMember) -> Seat | None:
        """Return the member's seat on chain."""
        members = self.chain_members
        index = members.find(bytes(member.wallet))
        return members.seats[index] if index is not None else None

    def until(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Wait for a condition. Fail if a member ends with an error meanwhile."""
        try:
            return until(condition, what, seconds, self.check)
        except AssertionError as error:
            error.add_note(self.situation())
            raise

    def until_run(self, condition: Callable[[Run], bool], what: str) -> Run:
        """Wait until the run meets a condition, and return it."""
        state: Run = self.until(lambda: run if condition(run := self.run) else None, what)
        return state

    def until_trains(self, member: ClusterMember, since: int, results: int = 1) -> None:
        """Wait until a member has applied some rounds after event number `since`."""
        self.until(
            lambda: len(member.event_log.events_of("applied", since)) >= results,
            f"{member.name} trains",
        )

    def until_early_in_an_epoch(self) -> Run:
        """Wait for the beginning of an epoch's rounds, when most of them are still to come."""
        return self.until_run(
            lambda run: run.state.training and 2 <= run.current.height <= 6, "an epoch begins"
        )

    def situation(self) -> str:
        """Return the run's state and its members' last output, for the report of a failure."""
        processes = {
            member.process.name: member.process for member in self.members if member.processes
        }
        last_lines = [process.last_lines for process in processes.values()]
        return "\n".join([*last_lines, f"{self.run}"])

    def check(self) -> None:
        self.network.process.check()
        for member in self.members:
            for process in member.processes:
                process.check()

    # --- checks

    def compare_replicas(self) -> int:
        """Return the number of replica comparisons. Fail if two replicas differed."""
        count = compare_replicas({member.name: member.event_log for member in self.members})
        assert count > 0
        return count

    def all_trained(self, witness: ClusterMember, up_to: int) -> bool:
        """Return whether a member that was present all the time applied every sequence below
        `up_to` exactly once.
        """
        sequences = applied_sequences(witness.event_log)
        return len(sequences) >= up_to and sequences[up_to - 1] == up_to - 1

    def in_epoch(self, member: ClusterMember) -> bool:
        """Return whether the member is healthy and in the current epoch."""
        seat = self.seat(member)
        return seat is not None and seat.state is MemberState.HEALTHY

    def kill_all(self) -> None:
        """Kill all members with kill -9."""
        for member in self.members:
            for process in member.processes:
                process.kill()
