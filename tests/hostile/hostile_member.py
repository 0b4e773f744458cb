"""A hostile member: a real session of `train` with a real wallet and endpoint, whose transport and
coordinator lie.

A `Behaviour` says what is different from an honest member; several make one member together, in
their order: each sees what those before it let through.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import iroh
from msgspec.structs import replace
from solders.keypair import Keypair

from aftermath.chain.member import SolanaMember
from aftermath.coordinator.errors import CoordinatorError
from aftermath.p2p.iroh import IrohTransport
from aftermath.p2p.transport import Handler
from aftermath.rules import bitmap
from aftermath.rules.announcements import (
    Announcement,
    Commitment,
    LevelPayload,
    decode_announcement,
    encode_announcement,
    head_of,
    statement,
)
from aftermath.rules.run import Run
from aftermath.rules.seal import key_of, masked
from aftermath.rules.state import RunState

Message = Announcement | bytes
"""What is announced; bytes are sent as they are."""
Verb = Callable[..., Awaitable[None]]
VERBS = ("join", "warmup_witness", "witness", "attest", "health_check", "checkpoint", "tick")


class Behaviour:
    """Honest, until something is overridden. A method `on_VERB(me, honest, *arguments)` stands for
    a verb on chain.
    """

    weight = 20_000
    """Sequences per minute that it declares, whatever its machine does; while it is new the median
    counts.
    """
    provable = False
    """Whether every honest member can see its fault, so that it must lose its place."""
    blamed_for = ""
    """What every honest member says of it."""
    epochs = 1
    """For how many epochs it is a member; its actions are those of the last."""
    newcomers_from = ""
    """Where an honest newcomer takes the model from, if it is not all from peers."""
    lives_for: float | None = None
    """Seconds after which it ends and begins again, in its epoch."""

    def announce(self, me: HostileMember, message: Announcement) -> Iterable[Message]:
        """What it tells all others in place of this."""
        yield message

    def handler(self, me: HostileMember, topic: str, honest: Handler) -> Handler:
        """How it answers requests."""
        return honest

    async def meanwhile(self, me: HostileMember) -> None:
        """What it does besides, from when its epoch begins to its end."""


class HostileMember:
    """One hostile member, which does what it does in one epoch."""

    def __init__(self, behaviours: list[Behaviour], epoch: int, secret: bytes) -> None:
        self.behaviours = behaviours
        self.epoch = epoch
        self.secret = secret
        self.began: int | None = None
        """The height of the round in which it first did what it is hostile for."""
        self._actions = 0
        self.published: dict[bytes, bytes] = {}
        self.sent: list[bytes] = []
        """What it announced, in order."""
        self._tasks: list[asyncio.Task[None]] = []
        self.transport: IrohTransport
        self.chain: SolanaMember
        self.honest: dict[str, Verb] = {}
        """The verbs as an honest member has them."""

    @property
    def actions(self) -> int:
        """How many times it did what it is hostile for."""
        return self._actions

    @actions.setter
    def actions(self, count: int) -> None:
        if count and self.began is None:
            self.began = self.run.current.height if self.run.state.training else 0
        self._actions = count

    @property
    def run(self) -> Run:
        return self.chain._watcher.latest

    @property
    def node_id(self) -> bytes:
        return self.transport.node_id

    def peers(self) -> list[bytes]:
        return sorted(self.transport.reachable())

    def link(self, peer: bytes) -> iroh.Connection | None:
        """The bare connection to a peer."""
        contact = self.transport._links._peers.get(peer)
        return contact.link.connection if contact is not None and contact.link is not None else None

    async def other_of_tier(self, tier: int) -> bytes:
        """The p2p key of another member that holds so much."""
        members = (await self.chain.view()).members
        keys = (members.seats[seat] for seat in bitmap.seats(self.run.current.roster))
        return next(one.p2p for one in keys if one.tier == tier and one.p2p != self.node_id)

    # --- what it is made of

    def on_endpoint(self, transport: IrohTransport) -> HostileTransport:
        """Return the transport for the session, once its endpoint is open."""
        self.transport = transport
        self._tasks = [asyncio.create_task(self._besides(one)) for one in self.behaviours]
        return HostileTransport(self, transport)

    def on_chain(self, chain: SolanaMember) -> SolanaMember:
        """Return the member's chain client, with the changed verbs."""
        self.chain = chain
        self.honest = {verb: getattr(chain, verb) for verb in VERBS} | {
            "join": partial(self._declare, chain.join)
        }
        chain.join = self._join  # type: ignore[method-assign]
        for behaviour in self.behaviours:
            for verb in VERBS:
                if (other := getattr(behaviour, f"on_{verb}", None)) is not None:
                    setattr(chain, verb, partial(other, self, getattr(chain, verb)))
        return chain

    async def _declare(self, join: Verb, **given: Any) -> None:
        """Join with the speed that it declares."""
        await join(**{**given, "weight": max(one.weight for one in self.behaviours)})

    async def _join(self, **given: Any) -> None:
        """It is a member of its own epochs only, so that another attack follows with another
        member.
        """
        run = self.run
        coming = run.epoch if run.state is RunState.WAITING_FOR_MEMBERS else run.epoch + 1
        if coming <= self.epoch:
            await self.honest["join"](**given)

    async def _besides(self, behaviour: Behaviour) -> None:
        """What it does besides, once its epoch has begun."""
        while not self._begun():
            await asyncio.sleep(0.1)
        await behaviour.meanwhile(self)

    def _begun(self) -> bool:
        try:
            return self.run.epoch >= self.epoch and self.run.active
        except (AttributeError, CoordinatorError):
            return False  # the run has not been looked at yet

    def end(self) -> None:
        """End what it does besides. Raises what went wrong with it: an attack that did not happen
        shows nothing.
        """
        for task in self._tasks:
            task.cancel()
            if task.done() and not task.cancelled():
                task.result()

    # --- tools of behaviours

    def sign(self, message: Message) -> bytes:
        """Return the signed message as it goes over the wire."""
        return message if isinstance(message, bytes) else encode_announcement(message, self.secret)

    def signed(self, commitment: Commitment, body: bytes) -> bytes:
        """Any body after the head of a commitment, under this member's signature."""
        head = head_of(commitment)
        return (
            self.node_id
            + bytes(Keypair.from_seed(self.secret).sign_message(statement(head, body)))
            + head
            + body
        )

    def tell(self, peer: bytes, message: Message) -> None:
        """Announce to one peer only."""
        for link, outbox in self.transport._announcer._outboxes.items():
            if link.peer == peer:
                outbox.put(self.sign(message))

    def forge(self, commitment: Commitment, change: Callable[[bytes], bytes]) -> Commitment:
        """Commit to changed payloads, and serve them, masked like the member's own."""
        key = self.key(commitment)
        levels = {}
        for level, payload in commitment.levels.items():
            data = masked(change(masked(self.published[payload.blake3], key, level)), key, level)
            levels[level] = LevelPayload(self.publish(data), len(data))
        return replace(commitment, levels=levels)

    def key(self, commitment: Commitment) -> bytes:
        """What opens its own result of a round."""
        return key_of(self.secret, commitment.place)

    def publish(self, data: bytes) -> bytes:
        digest = self.transport.publish(data)
        self.published[digest] = data
        return digest

    async def another_endpoint(self) -> iroh.Endpoint:
        """A second endpoint under the same key."""
        options = iroh.EndpointOptions(
            preset=iroh.preset_minimal(),
            secret_key=self.secret,
            alpns=[],
            relay_mode=iroh.RelayMode.disabled(),
            bind_addr="127.0.0.1:0",
        )
        return await iroh.Endpoint.bind(options)

    async def connected(self) -> list[bytes]:
        """The peers, once there are some."""
        while not self.peers():
            await asyncio.sleep(0.05)
        return self.peers()


class HostileTransport:
    """The real transport, except for what its member's behaviours change."""

    def __init__(self, me: HostileMember, inner: IrohTransport) -> None:
        self._me = me
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def publish(self, data: bytes) -> bytes:
        return self._me.publish(data)

    def handle(self, topic: str, handler: Handler) -> None:
        for behaviour in self._me.behaviours:
            handler = behaviour.handler(self._me, topic, handler)
        self._inner.handle(topic, handler)

    async def announce(self, data: bytes) -> None:
        messages: list[Message] = [decode_announcement(data)]
        for behaviour in self._me.behaviours:
            messages = [
                other
                for message in messages
                for other in (
                    [message]
                    if isinstance(message, bytes)
                    else behaviour.announce(self._me, message)
                )
            ]
        for message in messages:
            raw = self._me.sign(message)
            self._me.sent.append(raw)
            await self._inner.announce(raw)


def garbage(count: int) -> bytes:
    return os.urandom(count)
