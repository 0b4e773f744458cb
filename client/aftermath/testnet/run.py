"""Run a local testnet: start its clients, kill and restart some, and summarise."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from aftermath.base.text import counted
from aftermath.testnet.backends import Backend, logged
from aftermath.testnet.chaos import BACK_SECONDS, ChaosSchedule
from aftermath.testnet.display import DisplayLines
from aftermath.testnet.files import make_missing
from aftermath.testnet.member_progress import MemberProgress, RunProgress
from aftermath.testnet.panes import Panes
from aftermath.testnet.plan import LocalTestnetClient, LocalTestnetPlan
from aftermath.testnet.processes import ProcessError, Running, stop_all
from aftermath.ui.terminal.messages import ClientRow, Clients


class Ending(StrEnum):
    """Why the testnet ended."""

    FINISHED = "finished"
    TIME = "time is over"
    LEFT = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Summary:
    """The outcome of a testnet."""

    ending: Ending
    steps: int
    total_steps: int
    clients: int
    tiers: list[int]
    kills: int
    failed: list[str]
    """Clients that ended with an error."""
    loss_first: float | None
    """Loss of the first trained step, over all tokens of the step."""
    loss_last: float | None
    """Loss of the last trained step."""
    comparisons: int
    differing: list[str]
    """Where two replicas differed. This is always a bug."""
    seconds: float
    directory: str

    @property
    def good(self) -> bool:
        return not self.failed and not self.differing

    def data(self) -> dict[str, Any]:
        return asdict(self) | {"ending": self.ending.name.lower()}

    def line(self) -> str:
        """Return the summary as one line."""
        took = f"{self.ending}: step {self.steps} of {self.total_steps} in {self.seconds:.0f} s"
        tiers = ("tier " if len(self.tiers) == 1 else "tiers ") + ", ".join(map(str, self.tiers))
        loss = (
            f"loss {self.loss_first:.3f} to {self.loss_last:.3f}"
            if self.loss_last is not None
            else "no loss yet"
        )
        comparisons_text = f"replicas identical in {counted(self.comparisons, 'comparison')}"
        if not self.comparisons:
            comparisons_text = "no two replicas to compare"
        parts = [
            f"{counted(self.clients, 'client')} of {tiers}",
            counted(self.kills, "kill"),
            loss,
            f"REPLICAS DIFFER: {self.differing[0]}" if self.differing else comparisons_text,
        ]
        parts += [f"ended with an error: {', '.join(self.failed)}"] if self.failed else []
        return f"{took}; {', '.join(parts)}; everything is in {self.directory}"


def summary_of(
    plan: LocalTestnetPlan,
    run_progress: RunProgress,
    ending: Ending,
    kills: int,
    failed: list[str],
    seconds: float,
) -> Summary:
    """Return the summary from what the clients reported."""
    curve = run_progress.history.loss_curve()
    checks, differing = run_progress.replica_checks()
    return Summary(
        ending=ending,
        steps=max((member.step for member in run_progress.members), default=0),
        total_steps=plan.chosen.config.config.total_steps,
        clients=len(plan.clients),
        tiers=[client.tier for client in plan.clients],
        kills=kills,
        failed=failed,
        loss_first=round(curve[0][1], 4) if curve else None,
        loss_last=round(curve[-1][1], 4) if curve else None,
        comparisons=checks,
        differing=differing,
        seconds=round(seconds, 1),
        directory=str(plan.place),
    )


LOOK_SECONDS = 0.2


class Testnet:
    """One local testnet."""

    def __init__(
        self,
        plan: LocalTestnetPlan,
        backend: Backend,
        kills: ChaosSchedule,
        environment: Mapping[str, str],
        lines: DisplayLines,
    ) -> None:
        self._plan = plan
        self._backend = backend
        self._kills = kills
        self._environment = environment
        self._lines = lines
        self._running: dict[LocalTestnetClient, Running] = {}
        self._back: dict[LocalTestnetClient, float] = {}
        """When killed clients are to be restarted."""
        self._failed: list[str] = []
        self._killed = Counter[LocalTestnetClient]()
        self._returned = Counter[LocalTestnetClient]()
        self.run_progress = RunProgress(
            [MemberProgress(client.name, client.tier) for client in plan.clients]
        )

    def perform(self, seconds: float | None) -> Summary:
        """Run the testnet, for at most `seconds` after its clients start."""
        plan = self._plan
        started = time.monotonic()
        for path in make_missing(
            plan.chosen.path, plan.chosen.config, plan.log("files"), self._environment
        ):
            self._lines.report_action(f"made {path}")
        with ExitStack() as stack:
            panes = None
            self._open = logged(plan, self._environment)
            if plan.panes:
                panes = Panes(plan.place, self._environment)
                stack.callback(panes.close)
                self._open = panes.open
            keeper = self._backend.start(self._open)
            stack.callback(lambda: stop_all([keeper]))
            stack.callback(lambda: stop_all(self._running.values()))
            self.run_progress.follow(plan.events)
            for client in plan.clients:
                self._start(client)
            output_text = "what it says" if len(plan.clients) == 1 else "what they say"
            self._lines.report_action(
                f"started {counted(len(plan.clients), 'client')}; {output_text} is in {plan.place / 'logs'}"
            )
            viewer = panes.attach() if panes else None
            until = None if seconds is None else time.monotonic() + seconds
            ending = self._follow(
                keeper, until, lambda: viewer is not None and viewer.poll() is not None
            )
        self._read()  # events that clients wrote while they were stopped
        took = time.monotonic() - started
        return summary_of(plan, self.run_progress, ending, self._kills.done, self._failed, took)

    def _start(self, client: LocalTestnetClient) -> None:
        command = [*self._backend.client(client), *self._plan.options(client)]
        self._progress_of(client).trained = False
        self._running[client] = self._open(client.name, command)

    def _follow(self, keeper: Running, until: float | None, left: Callable[[], bool]) -> Ending:
        """Watch, kill and restart clients until none runs or time is up. Return the reason for the
        end.
        """
        try:
            while self._running or self._back:
                self._read()
                if left():
                    return Ending.LEFT
                if keeper.code is not None:
                    output = keeper.last_lines()
                    raise ProcessError(
                        f"{keeper.name} ended with code {keeper.code}; its last output:\n{output}"
                    )
                if until is not None and time.monotonic() > until:
                    return Ending.TIME
                self._kill_some()
                self._see_to_ended()
                time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            return Ending.LEFT
        self._read()
        if self._finished:
            return Ending.FINISHED
        return Ending.FAILED if self._failed else Ending.LEFT

    def _read(self) -> None:
        self._lines.show_events(self.run_progress.read(time.monotonic()))
        progress = self.run_progress.progress
        clients = tuple(map(self._row, self._plan.clients, self.run_progress.members))
        self._lines.show_clients(
            Clients(
                config=str(self._plan.chosen.path),
                state=self.run_progress.state,
                progress=progress.text(),
                step=progress.step,
                total=progress.total,
                clients=clients,
            )
        )

    def _progress_of(self, client: LocalTestnetClient) -> MemberProgress:
        return self.run_progress.members[self._plan.clients.index(client)]

    def _row(self, client: LocalTestnetClient, member: MemberProgress) -> ClientRow:
        process = self._running.get(client)
        state = member.state
        if client in self._back:
            state = "killed, comes back"
        elif client.name in self._failed:
            state = "ended with an error"
        return ClientRow(
            name=client.name,
            tier=client.tier,
            state=state,
            loss=member.loss,
            killed=self._killed[client],
            back=self._returned[client],
            pid=process.pid if process is not None and process.code is None else None,
        )

    @property
    def _finished(self) -> bool:
        return any(member.finished for member in self.run_progress.members)

    def _kill_some(self) -> None:
        if self.run_progress.first_loss_at is None or self._finished:
            return
        by_number = {
            client.number: client
            for client, process in self._running.items()
            if process.code is None and self._progress_of(client).trained
        }
        for number in self._kills.now(time.monotonic(), list(by_number)):
            client = by_number[number]
            self._running[client].kill()
            self._lines.report_action(f"{client.name} was killed (kill -9)")

    def _see_to_ended(self) -> None:
        """Record the clients that ended, and restart those that a signal ended."""
        now = time.monotonic()
        for client, process in list(self._running.items()):
            if (code := process.code) is None:
                continue
            del self._running[client]
            if code < 0:
                self._killed[client] += 1
                self._back[client] = now + BACK_SECONDS
            elif code:
                self._failed.append(client.name)
                self._lines.report_action(
                    f"{client.name} ended with code {code}; its last output:\n{process.last_lines()}"
                )
        for client in [client for client, at in self._back.items() if now >= at or self._finished]:
            del self._back[client]
            if not self._finished:
                self._start(client)
                self._returned[client] += 1
                self._lines.report_action(f"{client.name} is started again")
