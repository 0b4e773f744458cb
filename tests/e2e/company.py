"""A run with its members: made by the commands of an owner, trained by `aftermath-solana train`
processes.
"""

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
from e2e import forking
from e2e.diary import Diary, applied_sequences, compare_replicas
from e2e.network import Network
from e2e.processes import CONSOLE, PATIENCE, Running, RunningMember, until

_run_numbers = itertools.count(1)
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass
class Player:
    """A wallet that takes part with a tier, in one process after the other."""

    name: str
    tier: int
    key: Path
    wallet: Pubkey
    diary: Diary
    processes: list[Running] = field(default_factory=list)

    @property
    def process(self) -> Running:
        return self.processes[-1]


class Company:
    """One run on a network, its owner and its members."""

    def __init__(self, network: Network, xprocess: XProcess, place: Path) -> None:
        self.network = network
        self._xprocess = xprocess
        self.place = place
        self.run_id = f"run-{next(_run_numbers)}"
        self.players: list[Player] = []
        self.starts_commands = False
        """Whether members are started as commands, from nothing, and not forked."""
        self.owner = place / "owner.json"
        self.owner_key = create_wallet(self.owner).pubkey

    # --- the owner's commands

    def command(self, name: str, *words: str | Path, wallet: Path | None = None) -> Any:
        """Run a command with `--json` in this process; its document."""
        line = [name, *self.network.at, "-w", str(wallet or self.owner), *map(str, words), "--json"]
        result = CliRunner().invoke(app, line)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def configure(self, config: Path, *options: str | Path) -> None:
        """Create the run and set its config."""
        self.command("create-run", "--run-id", self.run_id, *options)
        self.command("update-config", "--run-id", self.run_id, "--config-path", config)

    def set_paused(self, word: str) -> None:
        """Pause or resume the run with the owner's command, in a process of its own."""
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
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    # --- members

    def player(self, tier: int) -> Player:
        """A new wallet."""
        name = f"member-{len(self.players)}"
        key = self.place / "keys" / f"{name}.json"
        wallet = create_wallet(key).pubkey
        self.players.append(Player(name, tier, key, wallet, Diary(self.place / "events" / name)))
        return self.players[-1]

    def line(self, player: Player, *options: str | Path) -> list[str | Path]:
        """The arguments of `train` for this player."""
        archive: list[str | Path] = (
            ["--checkpoint-dir", self.place / "checkpoints"] if player.tier == 0 else []
        )
        return [
            *("train", "--run-id", self.run_id, *self.network.at, "-w"),
            player.key,
            *(
                "--matformer-tier",
                str(player.tier),
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
            self.place / "events" / player.name,
            *archive,
            *options,
        ]

    def start(
        self, player: Player, *options: str | Path, on: Sequence[str] = (), **own: str
    ) -> Running:
        """Start `aftermath-solana train` for it; `on` are the words before it, `own` what its
        environment says more.
        """
        if on or own or self.starts_commands or not forking.SUPPORTED:
            return self._launch(player, [*on, CONSOLE, *self.line(player, *options)], **own)
        name = f"{self.run_id}-{player.name}"
        member = RunningMember(name, self.line(player, *options), self.place / "logs", THREADS)
        player.processes.append(member)
        return member

    def _launch(self, player: Player, command: Sequence[str | Path], **own: str) -> Running:
        name = f"{self.run_id}-{player.name}"
        player.processes.append(Running(self._xprocess, name, command, THREADS | own))
        return player.process

    def start_three(self) -> list[Player]:
        """Members of tiers 0, 1 and 2, all starting at once; and the run begins."""
        three = [self.player(tier) for tier in (0, 1, 2)]
        for player in three:
            self.start(player)
        self.command("set-paused", "resume", "--run-id", self.run_id)
        return three

    # --- looking

    @property
    def run(self) -> Run:
        return self.network.run(self.run_id)

    @property
    def model(self) -> Model:
        return self.network.model(self.run_id)

    @property
    def members(self) -> Members:
        return self.network.members(self.run_id)

    def seat(self, player: Player) -> Seat | None:
        """The player's place on chain."""
        members = self.members
        index = members.find(bytes(player.wallet))
        return members.seats[index] if index is not None else None

    def until(self, wanted: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Wait for a condition; a member that ends with an error meanwhile fails the test."""
        try:
            return until(wanted, what, seconds, self.check)
        except AssertionError as error:
            error.add_note(self.situation())
            raise

    def until_run(self, wanted: Callable[[Run], bool], what: str) -> Run:
        """Wait for a state of the run; that state."""
        found: Run = self.until(lambda: run if wanted(run := self.run) else None, what)
        return found

    def until_trains(self, player: Player, since: int, results: int = 1) -> None:
        """Wait until a member has applied some rounds after event number `since`."""
        self.until(
            lambda: len(player.diary.saw("applied", since)) >= results, f"{player.name} trains"
        )

    def until_early_in_an_epoch(self) -> Run:
        """Wait for the beginning of an epoch's rounds, with most of them still to come."""
        return self.until_run(
            lambda run: run.state.training and 2 <= run.current.height <= 6, "an epoch begins"
        )

    def situation(self) -> str:
        """The run and the last words of its members, for the report of a failure."""
        processes = {
            player.process.name: player.process for player in self.players if player.processes
        }
        said = [process.last_words for process in processes.values()]
        return "\n".join([*said, f"{self.run}"])

    def check(self) -> None:
        self.network.process.check()
        for player in self.players:
            for process in player.processes:
                process.check()

    # --- what must hold

    def compare_replicas(self) -> int:
        """How many times two replicas were compared; fails if any two differed."""
        count = compare_replicas({player.name: player.diary for player in self.players})
        assert count > 0
        return count

    def all_trained(self, witness: Player, up_to: int) -> bool:
        """Whether every sequence below `up_to` was applied, exactly once, by a member that saw it
        all.
        """
        done = applied_sequences(witness.diary)
        return len(done) >= up_to and done[up_to - 1] == up_to - 1

    def in_epoch(self, player: Player) -> bool:
        """Whether it is a healthy member of the running epoch."""
        place = self.seat(player)
        return place is not None and place.state is MemberState.HEALTHY

    def disband(self) -> None:
        """kill -9 of everybody."""
        for player in self.players:
            for process in player.processes:
                process.kill()
