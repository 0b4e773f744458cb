"""The faults of a simulated run, one method each.

Each lasts a while and records its victims. Victims are mostly members that matter at that moment.
Examples are a member that just sent a transaction, the only holder of a tier, or an elected
witness. Failures of a victim are excused for `EXCUSED` seconds after the fault.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from aftermath.coordinator.errors import CoordinatorError, Refused
from aftermath.rules.committee import witnesses
from aftermath.rules.state import RunState
from aftermath.sim.faulty_rpc import NodeFault
from aftermath.sim.sim_member import SimMember
from aftermath.sim.simulation import SimulatedRun

EXCUSED = 90.0
_LONGEST = 90.0  # maximum virtual seconds of a fault
_OUTAGE = 20.0  # maximum virtual seconds of a fault that hits all members
_SPOILT = (
    NodeFault.HTML,
    NodeFault.CUT,
    NodeFault.TYPES,
    NodeFault.IDS,
    NodeFault.GENESIS,
    NodeFault.BEHIND,
    NodeFault.MUTE,
)
_ABSENT = (NodeFault.REFUSES, NodeFault.SILENT, NodeFault.LIMITS, NodeFault.FAILS)

Fault = Callable[[], Awaitable[None]]


@dataclass
class Window:
    """A fault's start, end and victims."""

    what: str
    names: frozenset[str]
    start: float
    end: float = float("inf")

    def describe(self) -> str:
        return (
            f"{self.start:7.1f} to {self.end:7.1f} s  {self.what}: {', '.join(sorted(self.names))}"
        )


class Faults:
    """All faults of one run.

    `wait_for_changes(N)` waits for N state changes; `wait_for_changes(None)` waits for the
    end of a warm-up.
    """

    def __init__(
        self,
        sim: SimulatedRun,
        rng: random.Random,
        wait_for_changes: Callable[[int | None], Awaitable[None]],
    ) -> None:
        self._sim = sim
        self._rng = rng
        self._wait_for_changes = wait_for_changes
        self.windows: list[Window] = []
        self._everywhere: list[Fault] = [
            *(
                self.kill,
                self.stop,
                self.restart,
                self.alone,
                self.outage,
                self.cut,
                self.lose,
                self.replies,
            ),
            *(self.pause, self.node_fault),
        ]
        self._aimed: dict[RunState, list[Fault]] = {
            RunState.WARMUP: [self.pause, self.pause, self.stop, self.kill],
            RunState.ROUND_TRAIN: [self.alone, self.alone, self.kill, self.node_fault],
            RunState.COOLDOWN: [self.kill, self.kill, self.restart, self.alone],
        }

    def choose(self, state: RunState) -> Fault:
        """Draw a fault for this state. ROUND_TRAIN stands for both states of a round."""
        return self._rng.choice(
            self._rng.choice([self._everywhere, self._aimed.get(state, self._everywhere)])
        )

    def absences(self, name: str, when: float) -> bool:
        """Return whether a fault may have caused what happened to this member."""
        return any(
            name in one.names and one.start <= when <= one.end + EXCUSED for one in self.windows
        )

    # --- victims and durations ---

    def _victim(self) -> SimMember:
        """Draw a member: any live one, the last sender, an only holder or a witness."""
        alive = [sim_member for sim_member in self._sim.sim_members if sim_member.alive]
        if not alive:
            return self._rng.choice(self._sim.sim_members)
        tiers = [sim_member.tier for sim_member in alive]
        run = self._sim.run
        members = self._sim.members
        seated = witnesses(run.current, members)
        elected = {members.seats[seat].signer for seat in seated}
        groups = [
            alive,
            [
                sim_member
                for sim_member in alive
                if sim_member.wallet == self._sim.chain.last_signer
            ],
            [sim_member for sim_member in alive if tiers.count(sim_member.tier) == 1],
            [sim_member for sim_member in alive if sim_member.wallet in elected],
        ]
        return self._rng.choice(self._rng.choice(groups) or alive)

    def _begin(self, what: str, sim_members: Iterable[SimMember]) -> Window:
        window = Window(
            what, frozenset(sim_member.name for sim_member in sim_members), self._sim.now
        )
        self.windows.append(window)
        return window

    async def _last(self, longest: float = _LONGEST) -> None:
        """Wait some seconds, or until just after one of the next state changes."""
        drawn = self._rng.random()
        after = self._rng.uniform(0, 1.5)
        if drawn < 0.35:
            await asyncio.sleep(self._rng.uniform(0.2, min(15.0, longest)))
            return
        try:
            await asyncio.wait_for(
                self._wait_for_changes(self._rng.randint(1, 3) if drawn < 0.7 else None), longest
            )
        except TimeoutError:
            return
        await asyncio.sleep(after)

    def _end(self, window: Window) -> None:
        window.end = self._sim.now

    def _return(self, sim_member: SimMember) -> None:
        if not sim_member.alive and self._sim.run.state is not RunState.FINISHED:
            self._sim.start(sim_member)

    # --- members ---

    async def kill(self) -> None:
        await self._away("kill", self._sim.kill)

    async def stop(self) -> None:
        await self._away("stop", self._sim.stop)

    async def _away(self, what: str, end: Callable[[SimMember], Awaitable[object]]) -> None:
        """Stop a member and restart it after a while."""
        sim_member = self._victim()
        window = self._begin(what, [sim_member])
        if sim_member.alive:
            await end(sim_member)
        await self._last()
        self._return(sim_member)
        self._end(window)

    async def restart(self) -> None:
        """Kill a member and restart it at once."""
        sim_member = self._victim()
        window = self._begin("restart", [sim_member])
        if sim_member.alive:
            await self._sim.kill(sim_member)
        self._return(sim_member)
        self._end(window)

    # --- the chain ---

    async def alone(self) -> None:
        """Cut one member off from the chain."""
        sim_member = self._victim()
        window = self._begin("alone", [sim_member])
        await self._under(sim_member, [NodeFault.REFUSES] * len(sim_member.node_faults))
        self._end(window)

    async def node_fault(self) -> None:
        """Make one of a member's nodes faulty, often after an absence, so that it is checked
        again.
        """
        sim_member = self._victim()
        window = self._begin("node fault", [sim_member])
        index = self._rng.randrange(len(sim_member.node_faults))
        for node_fault in (
            *self._rng.sample(_ABSENT, self._rng.randint(0, 1)),
            self._rng.choice(_SPOILT),
        ):
            node_faults = list(sim_member.node_faults)
            node_faults[index] = node_fault
            window.what = f"{window.what} {node_fault}"
            await self._under(sim_member, node_faults)
        self._end(window)

    async def _under(self, sim_member: SimMember, node_faults: list[NodeFault]) -> None:
        sim_member.set_node_faults(node_faults)
        try:
            await self._last()
        finally:
            sim_member.set_node_faults([NodeFault.GOOD] * len(node_faults))

    async def outage(self) -> None:
        window = self._begin("outage", self._sim.sim_members)
        self._sim.chain.down = True
        await self._last(_OUTAGE)
        self._sim.chain.down = False
        self._end(window)

    async def replies(self) -> None:
        sim_member = self._victim()
        window = self._begin("replies", [sim_member])
        if sim_member.chain is not None:
            sim_member.chain.replies_lost = self._rng.randint(1, 4)
        self._end(window)

    async def pause(self) -> None:
        """Pause the run as its owner, and resume it some time after it halted."""
        window = self._begin("pause", self._sim.sim_members)
        try:
            self._sim.pause(True)
        except Refused:
            self._end(window)  # already paused, or finished
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

    # --- the network ---

    async def cut(self) -> None:
        one = self._victim()
        others = [sim_member for sim_member in self._sim.sim_members if sim_member is not one]
        window = self._begin("cut", self._sim.sim_members)
        for other in self._rng.sample(others, self._rng.randint(1, len(others))):
            self._sim.network.cut(one.id, other.id)
        await self._last()
        self._sim.network.heal()
        self._end(window)

    async def lose(self) -> None:
        window = self._begin("lose", self._sim.sim_members)
        rng = random.Random(self._rng.random())
        share = self._rng.choice((0.2, 0.5, 0.9))
        self._sim.network.loses = lambda sender, receiver: rng.random() < share
        await self._last()
        self._sim.network.loses = lambda sender, receiver: False
        self._end(window)

    def calm(self) -> None:
        """Undo all faults and restart all members."""
        self._sim.chain.down = False
        self._sim.network.heal()
        self._sim.network.loses = lambda sender, receiver: False
        for sim_member in self._sim.sim_members:
            sim_member.set_node_faults([NodeFault.GOOD] * len(sim_member.node_faults))
        self.resume()
        for sim_member in self._sim.sim_members:
            self._return(sim_member)
        for window in self.windows:
            window.end = min(window.end, self._sim.now)
