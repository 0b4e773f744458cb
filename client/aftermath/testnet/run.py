"""The run of a local testnet: everything is started, clients are killed and come back, until the
run is finished.

Decided: a client that a signal ended is started again, whatever sent the signal; one that ended
with an error is not, since it would again, and the testnet tells of it when the others are done.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from aftermath.base.counted import counted
from aftermath.testnet.backends import Backend, logged
from aftermath.testnet.errors import StageError
from aftermath.testnet.files import make_missing
from aftermath.testnet.kills import BACK_SECONDS, Kills
from aftermath.testnet.lines import Lines
from aftermath.testnet.panes import Panes
from aftermath.testnet.plan import Client, Plan
from aftermath.testnet.processes import Running, stop_all
from aftermath.testnet.story import MemberStory, Story
from aftermath.testnet.summary import Ending, Summary, summary_of
from aftermath.ui.terminal.messages import ClientRow, Clients

LOOK_SECONDS = 0.2


class Testnet:
    """One of them."""

    def __init__(
        self, plan: Plan, backend: Backend, kills: Kills, environment: Mapping[str, str], lines: Lines
    ) -> None:
        self._plan, self._backend, self._kills = plan, backend, kills
        self._environment, self._lines = environment, lines
        self._running: dict[Client, Running] = {}
        self._back: dict[Client, float] = {}
        """When killed clients are started again."""
        self._failed: list[str] = []
        self._killed, self._returned = Counter[Client](), Counter[Client]()
        self.story = Story([MemberStory(client.name, client.tier) for client in plan.clients])

    def perform(self, seconds: float | None) -> Summary:
        """Run it, for at most `seconds` after its clients are started."""
        plan, started = self._plan, time.monotonic()
        for made in make_missing(plan.chosen.path, plan.chosen.config, plan.log("files"), self._environment):
            self._lines.own(f"made {made}")
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
            self.story.follow(plan.events)
            for client in plan.clients:
                self._start(client)
            said = "what it says" if len(plan.clients) == 1 else "what they say"
            self._lines.own(f"started {counted(len(plan.clients), 'client')}; {said} is in {plan.place / 'logs'}")
            viewer = panes.attach() if panes else None
            until = None if seconds is None else time.monotonic() + seconds
            ending = self._follow(keeper, until, lambda: viewer is not None and viewer.poll() is not None)
        self._read()  # what they told while they were ended
        took = time.monotonic() - started
        return summary_of(plan, self.story, ending, self._kills.done, self._failed, took)

    def _start(self, client: Client) -> None:
        command = [*self._backend.client(client), *self._plan.options(client)]
        self._told(client).trained = False
        self._running[client] = self._open(client.name, command)

    def _follow(self, keeper: Running, until: float | None, left: Callable[[], bool]) -> Ending:
        """Watch, kill and start again until nobody runs or it is time to end; why it ended."""
        try:
            while self._running or self._back:
                self._read()
                if left():
                    return Ending.LEFT
                if keeper.code is not None:
                    said = keeper.last_words()
                    raise StageError(f"{keeper.name} ended with code {keeper.code}; its last words:\n{said}")
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
        self._lines.told(self.story.read(time.monotonic()))
        progress = self.story.progress
        clients = tuple(map(self._row, self._plan.clients, self.story.members))
        self._lines.stands(
            Clients(
                config=str(self._plan.chosen.path),
                state=self.story.state,
                progress=progress.words(),
                step=progress.step,
                total=progress.total,
                clients=clients,
            )
        )

    def _told(self, client: Client) -> MemberStory:
        return self.story.members[self._plan.clients.index(client)]

    def _row(self, client: Client, member: MemberStory) -> ClientRow:
        process, state = self._running.get(client), member.state
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
        return any(member.finished for member in self.story.members)

    def _kill_some(self) -> None:
        if self.story.first_loss_at is None or self._finished:
            return
        by_number = {
            client.number: client
            for client, process in self._running.items()
            if process.code is None and self._told(client).trained
        }
        for number in self._kills.now(time.monotonic(), list(by_number)):
            client = by_number[number]
            self._running[client].kill()
            self._lines.own(f"{client.name} was killed (kill -9)")

    def _see_to_ended(self) -> None:
        """Take note of who ended, and start those again whom a signal ended."""
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
                self._lines.own(f"{client.name} ended with code {code}; its last words:\n{process.last_words()}")
        for client in [client for client, at in self._back.items() if now >= at or self._finished]:
            del self._back[client]
            if not self._finished:
                self._start(client)
                self._returned[client] += 1
                self._lines.own(f"{client.name} is started again")
