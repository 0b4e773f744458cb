"""What can befall a run: each fault is one method, lasts for some time or until some border, and
notes whom it touched.

Decided: the victims are mostly those on whom something hangs at that moment: a member that has just
sent a transaction, the only holder of a tier, an elected witness. What is done follows the state as
well: rounds are left and missed, a cooldown loses its members, a warm-up is given up or paused.
What a fault touched excuses what follows from it for `EXCUSED` seconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from aftermath.coordinator.errors import CoordinatorError, Refused
from aftermath.rules.committee import witnesses
from aftermath.rules.state import RunState
from aftermath.sim.faulty_rpc import Mood
from aftermath.sim.sim_member import Player
from aftermath.sim.simulation import Simulation

EXCUSED = 90.0
_LONGEST = 90.0  # virtual seconds a fault lasts at most
_OUTAGE = 20.0  # and one for all
_SPOILT = (Mood.HTML, Mood.CUT, Mood.TYPES, Mood.IDS, Mood.GENESIS, Mood.BEHIND, Mood.MUTE)
_ABSENT = (Mood.REFUSES, Mood.SILENT, Mood.LIMITS, Mood.FAILS)

Fault = Callable[[], Awaitable[None]]


@dataclass
class Window:
    """A fault: when it began and ended, and whom it touched."""

    what: str
    names: frozenset[str]
    start: float
    end: float = float("inf")

    def describe(self) -> str:
        return f"{self.start:7.1f} to {self.end:7.1f} s  {self.what}: {', '.join(sorted(self.names))}"


class Faults:
    """All faults of one run. `border` waits for N changes of the run's state, or (None) for a
    warm-up's end.
    """

    def __init__(self, sim: Simulation, lot: random.Random, border: Callable[[int | None], Awaitable[None]]) -> None:
        self._sim, self._lot, self._border = sim, lot, border
        self.windows: list[Window] = []
        self._everywhere: list[Fault] = [
            *(self.kill, self.stop, self.restart, self.alone, self.outage, self.cut, self.lose, self.replies),
            *(self.pause, self.mood),
        ]
        self._aimed: dict[RunState, list[Fault]] = {
            RunState.WARMUP: [self.pause, self.pause, self.stop, self.kill],
            RunState.ROUND_TRAIN: [self.alone, self.alone, self.kill, self.mood],
            RunState.COOLDOWN: [self.kill, self.kill, self.restart, self.alone],
        }

    def choose(self, state: RunState) -> Fault:
        """A fault for this state of the run (of the rounds' states the first stands for both)."""
        return self._lot.choice(self._lot.choice([self._everywhere, self._aimed.get(state, self._everywhere)]))

    def excuses(self, name: str, when: float) -> bool:
        """Whether a fault can be the reason for what happened to this member."""
        return any(name in one.names and one.start <= when <= one.end + EXCUSED for one in self.windows)

    # --- whom, and for how long -------------------------------------------------------------------

    def _victim(self) -> Player:
        alive = [player for player in self._sim.players if player.alive]
        if not alive:
            return self._lot.choice(self._sim.players)
        tiers = [player.tier for player in alive]
        run, members = self._sim.run, self._sim.members
        seated = witnesses(run.current, members)
        elected = {members.seats[seat].signer for seat in seated}
        groups = [
            alive,
            [player for player in alive if player.wallet == self._sim.chain.last_signer],
            [player for player in alive if tiers.count(player.tier) == 1],
            [player for player in alive if player.wallet in elected],
        ]
        return self._lot.choice(self._lot.choice(groups) or alive)

    def _begin(self, what: str, players: Iterable[Player]) -> Window:
        window = Window(what, frozenset(player.name for player in players), self._sim.now)
        self.windows.append(window)
        return window

    async def _last(self, longest: float = _LONGEST) -> None:
        """Some seconds, or until just after a border: one of the next, or the end of the next
        warm-up.
        """
        drawn, after = self._lot.random(), self._lot.uniform(0, 1.5)
        if drawn < 0.35:
            await asyncio.sleep(self._lot.uniform(0.2, min(15.0, longest)))
            return
        try:
            await asyncio.wait_for(self._border(self._lot.randint(1, 3) if drawn < 0.7 else None), longest)
        except TimeoutError:
            return
        await asyncio.sleep(after)

    def _end(self, window: Window) -> None:
        window.end = self._sim.now

    def _return(self, player: Player) -> None:
        if not player.alive and self._sim.run.state is not RunState.FINISHED:
            self._sim.start(player)

    # --- members ----------------------------------------------------------------------------------

    async def kill(self) -> None:
        await self._away("kill", self._sim.kill)

    async def stop(self) -> None:
        await self._away("stop", self._sim.stop)

    async def _away(self, what: str, end: Callable[[Player], Awaitable[None]]) -> None:
        """A member ends, and is back after a while."""
        player = self._victim()
        window = self._begin(what, [player])
        if player.alive:
            await end(player)
        await self._last()
        self._return(player)
        self._end(window)

    async def restart(self) -> None:
        """Dead and back at once."""
        player = self._victim()
        window = self._begin("restart", [player])
        if player.alive:
            await self._sim.kill(player)
        self._return(player)
        self._end(window)

    # --- the chain --------------------------------------------------------------------------------

    async def alone(self) -> None:
        """One member does not reach the chain."""
        player = self._victim()
        window = self._begin("alone", [player])
        await self._under(player, [Mood.REFUSES] * len(player.moods))
        self._end(window)

    async def mood(self) -> None:
        """One of a member's nodes is sick: absent first, often, so that it is asked for its cluster
        again.
        """
        player = self._victim()
        window = self._begin("mood", [player])
        index = self._lot.randrange(len(player.moods))
        for mood in (*self._lot.sample(_ABSENT, self._lot.randint(0, 1)), self._lot.choice(_SPOILT)):
            moods = list(player.moods)
            moods[index] = mood
            window.what = f"{window.what} {mood}"
            await self._under(player, moods)
        self._end(window)

    async def _under(self, player: Player, moods: list[Mood]) -> None:
        player.set_moods(moods)
        try:
            await self._last()
        finally:
            player.set_moods([Mood.GOOD] * len(moods))

    async def outage(self) -> None:
        window = self._begin("outage", self._sim.players)
        self._sim.chain.down = True
        await self._last(_OUTAGE)
        self._sim.chain.down = False
        self._end(window)

    async def replies(self) -> None:
        player = self._victim()
        window = self._begin("replies", [player])
        if player.chain is not None:
            player.chain.replies_lost = self._lot.randint(1, 4)
        self._end(window)

    async def pause(self) -> None:
        """The owner pauses, and resumes some time after the run has halted."""
        window = self._begin("pause", self._sim.players)
        try:
            self._sim.pause(True)
        except Refused:
            self._end(window)  # paused already, or finished
            return
        await self._last()
        self.resume()
        self._end(window)

    def resume(self) -> None:
        if self._sim.run.state is RunState.PAUSED or self._sim.run.pending_pause:
            try:
                self._sim.pause(False)
            except CoordinatorError:
                return

    # --- the network ------------------------------------------------------------------------------

    async def cut(self) -> None:
        one = self._victim()
        others = [player for player in self._sim.players if player is not one]
        window = self._begin("cut", self._sim.players)
        for other in self._lot.sample(others, self._lot.randint(1, len(others))):
            self._sim.network.cut(one.id, other.id)
        await self._last()
        self._sim.network.heal()
        self._end(window)

    async def lose(self) -> None:
        window = self._begin("lose", self._sim.players)
        lot, share = random.Random(self._lot.random()), self._lot.choice((0.2, 0.5, 0.9))
        self._sim.network.loses = lambda sender, receiver: lot.random() < share
        await self._last()
        self._sim.network.loses = lambda sender, receiver: False
        self._end(window)

    def calm(self) -> None:
        """Undo everything and have everybody back."""
        self._sim.chain.down = False
        self._sim.network.heal()
        self._sim.network.loses = lambda sender, receiver: False
        for player in self._sim.players:
            player.set_moods([Mood.GOOD] * len(player.moods))
        self.resume()
        for player in self._sim.players:
            self._return(player)
        for window in self.windows:
            window.end = min(window.end, self._sim.now)
