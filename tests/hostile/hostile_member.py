"""A hostile member: a real `train` session whose transport and coordinator are replaced by hostile
ones.

A `Behaviour` is one difference from an honest member. A member may have several. Each one sees the
messages that those before it let through.
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
"""A message to announce. Bytes are sent unchanged."""
Verb = Callable[..., Awaitable[None]]
VERBS = ("join", "warmup_witness", "witness", "attest", "health_check", "checkpoint", "tick")


class Behaviour:
    """Base class of behaviours; honest by default.

    A method `on_VERB(me, honest, *arguments)` replaces a coordinator method.
    """

    weight = 20_000
    """Declared speed in sequences per minute. A newcomer gets the median instead."""
    provable = False
    """Whether every honest member can prove the fault, so that the attacker must lose its seat."""
    blamed_for = ""
    """Text by which honest members must report the attack, or empty."""
    epochs = 1
    """Epochs in which it takes part. Actions are counted in the last one."""
    newcomers_from = ""
    """Expected source of an honest newcomer's model. Empty: peers."""
    lives_for: float | None = None
    """Seconds between restarts in its epoch."""

    def announce(self, me: HostileMember, message: Announcement) -> Iterable[Message]:
        """Yield the messages to send instead of this one."""
        yield message

    def handler(self, me: HostileMember, topic: str, honest: Handler) -> Handler:
        """Return the handler of requests."""
        return honest

    async def background(self, me: HostileMember) -> None:
        """Run in the background during its epoch."""


class HostileMember:
    """A member that is hostile in one epoch."""

    def __init__(self, behaviours: list[Behaviour], epoch: int, secret: bytes) -> None:
        self.behaviours = behaviours
        self.epoch = epoch
        self.secret = secret
        self.began: int | None = None
        """Round height of its first hostile action."""
        self._actions = 0
        self.published: dict[bytes, bytes] = {}
        self.sent: list[bytes] = []
        """The announcements it sent, in order."""
        self._tasks: list[asyncio.Task[None]] = []
        self.transport: IrohTransport
        self.chain: SolanaMember
        self.honest: dict[str, Verb] = {}
        """The original coordinator methods."""

    @property
    def actions(self) -> int:
        """Return the number of its hostile actions."""
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
        """Return the connection to a peer, if there is one."""
        contact = self.transport._links._peers.get(peer)
        return contact.link.connection if contact is not None and contact.link is not None else None

    async def other_of_tier(self, tier: int) -> bytes:
        """Return the p2p key of another member of this tier."""
        members = (await self.chain.view()).members
        keys = (members.seats[seat] for seat in bitmap.seats(self.run.current.roster))
        return next(one.p2p for one in keys if one.tier == tier and one.p2p != self.node_id)

    # --- parts of the session

    def on_endpoint(self, transport: IrohTransport) -> HostileTransport:
        """Return the transport for the session, once its endpoint is open."""
        self.transport = transport
        self._tasks = [asyncio.create_task(self._run_background(one)) for one in self.behaviours]
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
        """Join with the declared speed."""
        await join(**{**given, "weight": max(one.weight for one in self.behaviours)})

    async def _join(self, **given: Any) -> None:
        """Join only in its own epochs, so that attacks do not overlap."""
        run = self.run
        coming = run.epoch if run.state is RunState.WAITING_FOR_MEMBERS else run.epoch + 1
        if coming <= self.epoch:
            await self.honest["join"](**given)

    async def _run_background(self, behaviour: Behaviour) -> None:
        """Run a background task from the epoch's beginning."""
        while not self._begun():
            await asyncio.sleep(0.1)
        await behaviour.background(self)

    def _begun(self) -> bool:
        try:
            return self.run.epoch >= self.epoch and self.run.active
        except (AttributeError, CoordinatorError):
            return False  # the run's state is not read yet

    def end(self) -> None:
        """Stop the background tasks, and raise their errors: an attack that did not run proves
        nothing.
        """
        for task in self._tasks:
            task.cancel()
            if task.done() and not task.cancelled():
                task.result()

    # --- helpers of behaviours

    def sign(self, message: Message) -> bytes:
        """Return the signed message as it goes over the wire."""
        return message if isinstance(message, bytes) else encode_announcement(message, self.secret)

    def signed(self, commitment: Commitment, body: bytes) -> bytes:
        """Return a commitment with any body, signed by this member."""
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
        """Return the key of its own result."""
        return key_of(self.secret, commitment.place)

    def publish(self, data: bytes) -> bytes:
        digest = self.transport.publish(data)
        self.published[digest] = data
        return digest

    async def another_endpoint(self) -> iroh.Endpoint:
        """Return a second endpoint with the same key."""
        options = iroh.EndpointOptions(
            preset=iroh.preset_minimal(),
            secret_key=self.secret,
            alpns=[],
            relay_mode=iroh.RelayMode.disabled(),
            bind_addr="127.0.0.1:0",
        )
        return await iroh.Endpoint.bind(options)

    async def connected(self) -> list[bytes]:
        """Wait for peers and return them."""
        while not self.peers():
            await asyncio.sleep(0.05)
        return self.peers()


class HostileTransport:
    """The real transport, changed by the member's behaviours."""

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
