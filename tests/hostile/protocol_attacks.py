"""Attacks by floods, or by neglect and abuse of duties on chain."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import iroh
import msgspec

from aftermath.coordinator.errors import CoordinatorError
from aftermath.p2p.peer_connection import greet
from aftermath.p2p.transport import Handler
from aftermath.p2p.wire import ALPN, BlobRequest, frame_of
from aftermath.replica.model_sharing import TOPIC as MODEL
from aftermath.rules import bitmap
from aftermath.rules.announcements import Announcement, Ready
from aftermath.rules.seal import RoundClosed
from aftermath.rules.state import RunState
from hostile.hostile_member import Behaviour, HostileMember, Message, Verb, garbage

_encode = msgspec.msgpack.encode


# --- duties


class NeverReady(Behaviour):
    def announce(self, me: HostileMember, message: Announcement) -> Iterable[Message]:
        if not isinstance(message, Ready):
            yield message

    async def on_warmup_witness(self, me: HostileMember, honest: Verb, *given: Any) -> None:
        me.actions += 1


class NeverWitness(Behaviour):
    epochs = 2  # it may vote after it delivered in the first epoch

    async def on_witness(self, me: HostileMember, honest: Verb, *given: Any, **more: Any) -> None:
        me.actions += 1


class FalseWitness(Behaviour):
    """Attests that nobody delivered. Its vote counts because it delivered in the first epoch."""

    epochs = 2

    async def on_witness(
        self, me: HostileMember, honest: Verb, seat: int, place: Any, *given: Any, **more: Any
    ) -> None:
        me.actions += 1
        await honest(seat, place, 0, bytes(len(given[1])), **more)


class ClosesEarly(Behaviour):
    """Announces `RoundClosed` as soon as a round begins, so that fewer witnesses are needed before
    results are revealed.
    """

    async def background(self, me: HostileMember) -> None:
        last_height = -1
        while True:
            await asyncio.sleep(0.02)
            run = me.run
            header = run.round(run.config.judged(run.current.height))
            if not run.state.training or header is None or header.height == last_height:
                continue
            last_height = header.height
            members = (await me.chain.view()).members
            seat = members.find(me.chain.wallet)
            if seat is None:
                continue
            me.actions += 1
            message = RoundClosed(
                sender=me.node_id,
                signer=me.chain.wallet,
                run_id=run.run_id,
                epoch=run.epoch,
                height=header.height,
                seed=header.seed,
                seat=seat,
            )
            for peer in me.peers():
                me.tell(peer, message)


class FalseAttest(Behaviour):
    """Attests false hashes. It has finished an epoch, so it may attest."""

    epochs = 2

    async def on_attest(self, me: HostileMember, honest: Verb, *given: Any) -> None:
        me.actions += 1
        *place, hashes = given
        await honest(*place, {level: bytes(31) + b"\x01" for level in hashes})


class AttestsUnasked(Behaviour):
    """A newcomer that repeatedly attests false hashes of all levels."""

    async def background(self, me: HostileMember) -> None:
        while True:
            await asyncio.sleep(0.1)
            members = (await me.chain.view()).members
            if me.run.state is RunState.COOLDOWN and me.run.epoch == me.epoch:
                seat = next(
                    number for number, one in enumerate(members.seats) if one.p2p == me.node_id
                )
                me.actions += 1
                with contextlib.suppress(CoordinatorError):
                    await me.honest["attest"](
                        seat, me.run.round_id, dict.fromkeys(range(me.run.levels), garbage(32))
                    )


class FalseOffers(Behaviour):
    """Finishes an epoch, then offers a garbage model to newcomers."""

    epochs = 2

    def handler(self, me: HostileMember, topic: str, honest: Handler) -> Handler:
        async def answer(peer: bytes, body: bytes) -> bytes:
            me.actions += 1
            try:
                offered = msgspec.msgpack.decode(await honest(peer, body))
            except Exception:
                return garbage(200)
            return _encode(
                {
                    **offered,
                    "levels": {k: [garbage(32) for _ in v] for k, v in offered["levels"].items()},
                }
            )

        return answer if topic == MODEL else honest


class InconsistentOffers(Behaviour):
    """Prevents attestation of level 0, then offers the real model to finishers and garbage to
    newcomers.
    """

    epochs = 3  # a newcomer does not attest at the end of its first epoch
    newcomers_from = "peers and the checkpoint"

    async def on_attest(self, me: HostileMember, honest: Verb, *given: Any) -> None:
        *place, hashes = given
        await honest(
            *place, {**hashes, 0: bytes(31) + b"\x01"} if me.run.epoch < me.epoch else hashes
        )

    def handler(self, me: HostileMember, topic: str, honest: Handler) -> Handler:
        false_offer = FalseOffers().handler(me, topic, honest)

        async def answer(peer: bytes, body: bytes) -> bytes:
            seats = (await me.chain.view()).members.seats
            there = {seats[seat].p2p for seat in bitmap.seats(me.run.finishers)}
            return await (honest if peer in there else false_offer)(peer, body)

        return answer if topic == MODEL else honest


class EarlyTicks(Behaviour):
    async def background(self, me: HostileMember) -> None:
        while True:
            await asyncio.sleep(0.2)
            me.actions += 1
            with contextlib.suppress(CoordinatorError):
                await me.honest["tick"]()


class FalseHealthChecks(Behaviour):
    """Reports all members as missing, together and one by one."""

    async def background(self, me: HostileMember) -> None:
        while True:
            roster = me.run.current.roster
            for missing in (roster, *(1 << seat for seat in bitmap.seats(roster))):
                await asyncio.sleep(0.1)
                me.actions += 1
                with contextlib.suppress(CoordinatorError):
                    await me.honest["health_check"](missing)


class LeavesAndRejoins(Behaviour):
    """Leaves and joins repeatedly."""

    def __init__(self) -> None:
        self._given: Mapping[str, Any] = {}

    async def on_join(self, me: HostileMember, honest: Verb, **given: Any) -> None:
        self._given = given
        await honest(**given)

    async def background(self, me: HostileMember) -> None:
        while not me.run.state.training:
            await asyncio.sleep(0.1)
        while me.run.epoch == me.epoch and me.run.state.training:
            me.actions += 1
            for verb in (me.chain.leave, partial(me.honest["join"], **self._given), me.chain.leave):
                with contextlib.suppress(CoordinatorError):
                    await verb()
            await asyncio.sleep(0.3)


class GreatSpeed(Behaviour):
    """Declares the maximum speed."""

    weight = 65_535


class Restarts(Behaviour):
    """Restarts every few seconds without leaving."""

    lives_for = 4.0


# --- floods


class FloodsAnnouncements(Behaviour):
    """Sends as many signed announcements as possible."""

    async def background(self, me: HostileMember) -> None:
        number = 0
        while True:
            for peer in me.peers():
                for _ in range(100):
                    number += 1
                    me.actions += 1
                    signer = number.to_bytes(32, "big")
                    message = Ready(
                        sender=me.node_id,
                        signer=signer,
                        run_id=me.run.run_id,
                        epoch=me.run.epoch,
                        seat=0,
                    )
                    me.tell(peer, message)
            await asyncio.sleep(0.05)


class FloodsStreams(Behaviour):
    """Requests as many missing blobs as possible, with unrequested data after each request."""

    async def background(self, me: HostileMember) -> None:
        await asyncio.gather(
            *(self._pour(me, peer) for peer in await me.connected() for _ in range(30))
        )

    async def _pour(self, me: HostileMember, peer: bytes) -> None:
        while True:
            connection = me.link(peer)
            try:
                if connection is None:
                    raise TimeoutError
                async with asyncio.timeout(2):
                    stream = await connection.open_bi()
                    me.actions += 1
                    await stream.send().write_all(
                        frame_of(BlobRequest(os.urandom(32), 0, 1 << 30)) + bytes(200_000)
                    )
            except (iroh.IrohError, TimeoutError):
                await asyncio.sleep(0.2)


class FloodsConnections(Behaviour):
    """Connects repeatedly under its own key from another endpoint, up to 240 times in parallel."""

    async def background(self, me: HostileMember) -> None:
        endpoint = await me.another_endpoint()
        peers = await me.connected()
        await asyncio.gather(
            *(self._connect(me, endpoint, peer) for peer in peers for _ in range(80))
        )

    async def _connect(self, me: HostileMember, endpoint: iroh.Endpoint, peer: bytes) -> None:
        while True:
            with contextlib.suppress(Exception):
                if (address := me.transport._locate(peer)) is not None:
                    me.actions += 1
                    async with asyncio.timeout(5):
                        await greet(await endpoint.connect(address, ALPN), os.urandom(16))
            await asyncio.sleep(0.3)


class SlowLoris(Behaviour):
    """Opens as many streams as possible and writes one byte per second to each."""

    async def background(self, me: HostileMember) -> None:
        await asyncio.gather(
            *(self._drip(me, peer) for peer in await me.connected() for _ in range(60))
        )

    async def _drip(self, me: HostileMember, peer: bytes) -> None:
        while True:
            with contextlib.suppress(iroh.IrohError):
                if (connection := me.link(peer)) is not None:
                    stream = await connection.open_bi()
                    me.actions += 1
                    for byte in b"\0\0\0\x40" + bytes(64):
                        await stream.send().write_all(bytes([byte]))
                        await asyncio.sleep(1)
            await asyncio.sleep(0.2)
