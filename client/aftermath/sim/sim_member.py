"""One member of a simulation, with its events and the faults of its RPC nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from solders.keypair import Keypair

from aftermath.events.event_types import Event
from aftermath.events.stream import plain
from aftermath.member.member import Member
from aftermath.member.stall_detector import StallDetector
from aftermath.sim.faulty_rpc import NodeFault
from aftermath.sim.sim_chain import SimMemberChain
from aftermath.sim.sim_transport import SimTransport
from aftermath.sim.virtual_time import InlineWorker

EventDict = dict[str, Any]
"""An event of a member, as the flat object of its JSON."""


@dataclass
class SimMember:
    """One member. It keeps its keys and events across restarts."""

    name: str
    tier: int
    key: Keypair
    identity: Keypair
    seconds: float
    nodes: int = 1
    member: Member | None = None
    task: asyncio.Task[None] | None = None
    chain: SimMemberChain | None = None
    transport: SimTransport | None = None
    compute: InlineWorker | None = None
    events: list[EventDict] = field(default_factory=list)
    lost: str = ""
    """The error with which it ended because no checkpoint had the trained steps."""
    ejected: str = ""
    """The error with which it ended because it was ejected."""

    @property
    def id(self) -> bytes:
        return bytes(self.identity.pubkey())

    def note(self, event: Event) -> None:
        self.events.append(plain(event))

    @property
    def wallet(self) -> bytes:
        return bytes(self.key.pubkey())

    @property
    def node_faults(self) -> list[NodeFault]:
        """The fault of each of its RPC nodes."""
        return (
            self.chain.rpc.node_faults if self.chain is not None else [NodeFault.GOOD] * self.nodes
        )

    def set_node_faults(self, node_faults: Sequence[NodeFault]) -> None:
        if self.chain is not None:
            self.chain.rpc.set_node_faults(node_faults)

    @property
    def alive(self) -> bool:
        return self.task is not None and not self.task.done()

    def saw(self, kind: str, **fields: Any) -> list[EventDict]:
        return [
            e
            for e in self.events
            if e["kind"] == kind and all(e.get(k) == v for k, v in fields.items())
        ]


class Undisturbed(StallDetector):
    """A stall detector that never fires.

    A real one has a timer, which would shift all other timers and change what a seed does.
    """

    def woke(self) -> float:
        return float("-inf")

    async def watch(self) -> None:
        await asyncio.Event().wait()
