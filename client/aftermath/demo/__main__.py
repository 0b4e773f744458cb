"""`make demo`: three members of different tiers train one model through a local Solana network.

One of them is killed and restarted.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

import typer
from rich.console import Console

from aftermath.base.errors import AftermathError
from aftermath.base.signals import terminations_interrupt
from aftermath.cli.error_report import reporting
from aftermath.cli.script import ScriptParser
from aftermath.demo.commands import (
    DEMO_NAMES,
    KILLED,
    MODELS,
    OPTIMIZERS,
    REPOSITORY,
    TIERS,
    Commands,
    DemoFailed,
    DemoPaths,
    create_run,
    launch,
    member_name,
    prepare_files,
    resume_run,
    write_config,
)
from aftermath.demo.report import write_report
from aftermath.demo.screen import DemoScreen
from aftermath.testnet.chain import await_chain
from aftermath.testnet.member_progress import MemberProgress, RunProgress
from aftermath.testnet.processes import Process, stop_all
from aftermath.testnet.workdir import claimed_workdir

LIMIT_SECONDS = 900.0
KILL_AT_STEP = 5
DEAD_SECONDS = 6.0  # seconds until the killed member is restarted


class Demo:
    """One run of the demonstration."""

    def __init__(
        self,
        paths: DemoPaths,
        engine: str,
        model: str,
        device: str,
        console: Console,
        optimizer: str = "sparseloco",
    ) -> None:
        self.paths = paths
        self.engine = engine
        self.model = model
        self.console = console
        self.device = device
        self.optimizer = optimizer
        self.started = time.monotonic()
        self.run_progress = RunProgress([MemberProgress(member_name(tier), tier) for tier in TIERS])
        self.processes: dict[str, Process] = {}
        self.commands: Commands | None = None

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def perform(self) -> int:
        """Run everything. Return 0 on success."""
        # Independent steps run in parallel to use all cores: the network starts while the files are
        # made, and members load PyTorch while the owner resumes the run.
        self.processes["localnet"], self.commands = launch(self.paths, self.engine, self.device)
        self.console.print(
            f"Tokenising the standard library and making a model in {self.paths.root} ...",
            soft_wrap=True,
        )
        prepare_files(self.paths, self.model)
        config_name, how_it_trains = OPTIMIZERS[self.optimizer]
        write_config(self.paths, REPOSITORY / "config" / "demo" / config_name, self.model)
        self.console.print(f"Optimizer: {how_it_trains}.", highlight=False, soft_wrap=True)
        await_chain(self.processes["localnet"], self.commands.chain)
        self.console.print(f"The chain answers at {self.commands.chain.rpc}; creating the run ...")
        create_run(self.commands, [member.name for member in self.run_progress.members])
        self.run_progress.follow(self.paths.all_events)
        for member in self.run_progress.members:
            self.start(member)
        resume_run(self.commands)
        self.watch()
        return write_report(
            self.run_progress, self.commands, self.engine, self.elapsed(), self.console
        )

    def start(self, member: MemberProgress) -> None:
        assert self.commands is not None
        environment = {**self.commands.environment, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = self.commands.train(member.name, member.tier)
        self.processes[member.name] = Process(
            member.name, command, self.paths.log(member.name), environment
        )

    # --- watching ---

    def watch(self) -> None:
        """Show the run until it finishes. Kill one member on the way and restart it."""
        victim = self.run_progress.members[KILLED]
        killed_at: float | None = None
        revived = False
        with DemoScreen(self.console, f"aftermath on {self.engine}") as screen:
            while any(self.processes[m.name].running for m in self.run_progress.members) or (
                killed_at and not revived
            ):
                self.read()
                if killed_at is None and self.time_to_kill():
                    self.processes[victim.name].kill()
                    killed_at = self.elapsed()
                    victim.state = "killed"
                elif (
                    killed_at is not None
                    and not revived
                    and self.elapsed() > killed_at + DEAD_SECONDS
                ):
                    self.start(victim)
                    victim.state = "starting"
                    revived = True
                self.check(victim.name if killed_at is not None and not revived else None)
                screen.show(self.run_progress, self.caption(killed_at, revived), self.elapsed())
                time.sleep(0.2)
            self.read()
            screen.show(self.run_progress, "the run is finished", self.elapsed())
        if killed_at is None:
            raise DemoFailed(
                f"the run ended before step {KILL_AT_STEP}, when the demo kills a member"
            )

    def read(self) -> None:
        self.run_progress.read(self.elapsed())

    def time_to_kill(self) -> bool:
        """Return whether to kill now: early in the first epoch, so that the member is back for the
        second or third.
        """
        return self.run_progress.steps >= KILL_AT_STEP

    def check(self, absent: str | None) -> None:
        """Raise DemoFailed if any member but the killed one ended with an error."""
        self.processes["localnet"].expect_running()
        for member in self.run_progress.members:
            process = self.processes[member.name]
            if member.name != absent and process.code not in (None, 0):
                process.expect_running()
        if self.elapsed() > LIMIT_SECONDS:
            raise DemoFailed(
                f"the run did not finish within {LIMIT_SECONDS:.0f} s; see {self.paths.root / 'logs'}"
            )

    def caption(self, killed_at: float | None, revived: bool) -> str:
        """Return what is happening to the killed member, and what comes next."""
        victim = self.run_progress.members[KILLED]
        if killed_at is None:
            return f"the demo will kill {victim.name} at step {KILL_AT_STEP} and restart it later"
        dead = f"{victim.name} was killed (kill -9) at {killed_at:.0f} s"
        if not revived:
            return f"{dead}; the others continue and train its share too"
        if victim.returned is None:
            return f"{dead} and restarted; it fetches the model from its peers and joins the next epoch"
        return f"{dead}, came back, and has trained again since step {victim.returned}"

    def close(self) -> None:
        chain = self.processes.pop("localnet", None)
        stop_all(self.processes.values())
        stop_all([chain] if chain else [])


def main() -> int:
    try:
        with reporting(as_json=False):
            chosen = _chosen()
    except typer.Exit as ended:
        return ended.exit_code
    return _perform(chosen)


def _chosen() -> argparse.Namespace:
    """Parse the command line. Raises UsageError."""
    parser = ScriptParser("python -m aftermath.demo", __doc__, result=False)
    parser.add_argument(
        "--engine", choices=("embedded", "validator"), default="embedded", help="local chain"
    )
    parser.add_argument(
        "--model", choices=MODELS, default="llama", help="architecture of the model"
    )
    parser.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        default="sparseloco",
        help="optimizer of the run",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        help="device of the tier-0 member, as for train; the others train on the CPU",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=None,
        help="working directory (default runs/demo-ENGINE); the demo removes an earlier demo's output "
        "there, and moves its checkpoints to checkpoints-1, -2 and so on",
    )
    return parser.parse_args()


def _perform(chosen: argparse.Namespace) -> int:
    root = (chosen.dir or REPOSITORY / "runs" / f"demo-{chosen.engine}").resolve()
    console = Console()
    try:
        with (
            claimed_workdir(root, "demo", "make demo DIR=...", DEMO_NAMES),
            terminations_interrupt(),
            contextlib.closing(
                Demo(
                    DemoPaths(root),
                    chosen.engine,
                    chosen.model,
                    chosen.device,
                    console,
                    chosen.optimizer,
                )
            ) as demo,
        ):
            return demo.perform()
    except AftermathError as failure:
        console.print(f"[red]The demo failed:[/red] {failure}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
