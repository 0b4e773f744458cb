"""Warm-up: how a member comes to hold the model the run continues from, and tells the others it is ready.

Choices:
- a replica the member already has is kept only if its hashes are the ones attested on chain;
- otherwise the model comes from the peers or from the durable checkpoint, whichever the chain says; a level that no
  peer can give comes from the durable checkpoint if the chain vouches for that one too;
- whatever arrives is checked level by level against the chain before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from aftermath.model.documents import CheckpointError
from aftermath.model.segments import level_hash, segment_bytes, write_segment
from aftermath.run import bitmap
from aftermath.run.accounts import Members, Run
from aftermath.run.commitment import Ready, encode_announcement
from aftermath.run.committee import is_witness
from aftermath.run.state import MemberState, ModelSource, RunState
from aftermath.train.context import Context, Desync
from aftermath.train.modelshare import LevelFetcher, ModelUnavailable, Offer, ask_offers
from aftermath.train.origin import Origin
from aftermath.train.persist import persist
from aftermath.train.replica import Replica
from aftermath.train.wait import Pulse, first_of

_PATIENCE = 5.0  # seconds a ready witness waits for members it cannot reach
_RETRY = 1.0
_NO_HASH = bytes(32)


@dataclass
class Readiness:
    """Who has announced that it is ready, by epoch."""

    changed: Pulse
    ready: dict[int, set[int]]

    def hear(self, said: Ready) -> None:
        self.ready.setdefault(said.epoch, set()).add(said.slot)
        self.changed.fire()


class WarmUp:
    """One member's warm-up into one epoch."""

    def __init__(self, context: Context, origin: Origin, readiness: Readiness, slot: int, parallel: int) -> None:
        self._ctx, self._origin, self._readiness = context, origin, readiness
        self._slot, self._parallel = slot, parallel

    async def obtain(self, run: Run, replica: Replica | None) -> Replica:
        """A replica of the model this epoch starts from. Raises Desync if warm-up ends before there is one."""
        if replica is not None and await self._is_current(run, replica):
            self._ctx.events.emit("model", source="its own replica", step=run.step)
            return replica
        while True:
            try:
                weights, source = await self._weights(run)
                break
            except (ModelUnavailable, CheckpointError) as error:
                self._ctx.events.emit("warning", message=f"the model is not to be had yet: {error}")
            if self._over(run):
                raise Desync("warm-up ended before the model was here")
            await first_of(self._ctx.feed.after(self._ctx.feed.run.seq), self._ctx.clock.sleep(_RETRY))
        self._ctx.events.emit("model", source=source, step=run.step)
        return await self._ctx.compute(lambda: self._origin.replica(weights))

    def _over(self, started: Run) -> bool:
        run = self._ctx.feed.run
        return run.epoch != started.epoch or run.state is not RunState.WARMUP

    def _expected(self, run: Run, level: int) -> bytes | None:
        """The hash the chain vouches for, if it does."""
        known = run.levels_attested >> level & 1 and run.level_hashes[level] != _NO_HASH
        return run.level_hashes[level] if known else None

    async def _is_current(self, run: Run, replica: Replica) -> bool:
        hashes = await self._ctx.compute(replica.hashes)
        expected = {level: self._expected(run, level) for level in self._ctx.levels}
        return all(expected[level] == hashes[level] for level in self._ctx.levels)

    # --- weights ------------------------------------------------------------------------------------------------

    async def _weights(self, run: Run) -> tuple[dict[str, Tensor], str]:
        if run.model_source is ModelSource.PEERS:
            return await self._from_peers(run)
        weights = await self._durable()
        for level in self._ctx.levels:
            await self._vouch(run, level, weights)
        return weights, "the checkpoint"

    async def _durable(self) -> dict[str, Tensor]:
        model = await self._ctx.chain.model()
        return await self._ctx.compute(lambda: self._origin.durable(model.checkpoint))

    async def _vouch(self, run: Run, level: int, weights: dict[str, Tensor]) -> None:
        """Check one level of the durable checkpoint against the chain."""
        expected = self._expected(run, level)
        found = await self._ctx.compute(lambda: level_hash(weights, self._ctx.schema, level))
        if expected is not None and found != expected:
            raise ModelUnavailable(f"level {level} of the durable checkpoint is not the one the members attested")

    async def _from_peers(self, run: Run) -> tuple[dict[str, Tensor], str]:
        weights = await self._ctx.compute(self._origin.blank)
        peers = self._holders(run, await self._ctx.chain.members())
        offers = await ask_offers(self._ctx.transport, self._ctx.schema, peers, run.attested_step, 5.0)
        remaining = max(10.0, run.state_started_at + run.config.warmup_time - self._ctx.chain.now())
        fetcher = LevelFetcher(self._ctx, self._parallel, remaining)
        lacking = []
        for level in reversed(self._ctx.levels):
            expected = self._expected(run, level) or self._undisputed(offers.get(level, []))
            try:
                await fetcher.fetch(level, offers.get(level, []), weights, expected)
            except ModelUnavailable as error:
                lacking.append((level, error))
        if not lacking:
            return weights, "peers"
        await self._fill(run, lacking, weights)
        return weights, "the checkpoint" if len(lacking) == len(self._ctx.levels) else "peers and the checkpoint"

    def _undisputed(self, offers: Sequence[Offer]) -> bytes | None:
        """No hash on chain: content is taken unseen only when all who offer the level offer the same."""
        if len(offers) > 1:
            raise ModelUnavailable("peers offer different tensors and the chain vouches for none")
        return None

    async def _fill(self, run: Run, lacking: list[tuple[int, ModelUnavailable]], weights: dict[str, Tensor]) -> None:
        """Take levels that no peer could give from the durable checkpoint, if the chain vouches for its copy."""
        model = await self._ctx.chain.model()
        durable = await self._durable()
        for level, error in lacking:
            current = self._expected(run, level)
            if current is None and model.checkpoint_step != run.attested_step:
                raise error
            await self._vouch(run, level, durable)
            for segment in self._ctx.schema.of_level(level):
                write_segment(weights, segment, segment_bytes(durable, segment))

    def _holders(self, run: Run, members: Members) -> list[bytes]:
        slots = bitmap.slots(run.finishers & run.current.roster & ~(1 << self._slot))
        return [members.slots[slot].p2p for slot in slots]

    # --- readiness ----------------------------------------------------------------------------------------------

    async def announce_ready(self, run: Run) -> None:
        """Tell the others, and as an elected witness tell the chain once all are ready (or out of reach)."""
        me = Ready(
            sender=self._ctx.transport.node_id,
            signer=self._ctx.chain.wallet,
            run_id=self._ctx.run_id,
            epoch=run.epoch,
            slot=self._slot,
        )
        self._readiness.hear(me)
        await self._ctx.transport.announce(encode_announcement(me, self._ctx.p2p_secret))
        if is_witness(run.rounds[0], self._slot):
            await self._witness(run)

    async def _witness(self, run: Run) -> None:
        patient_until = self._ctx.clock.monotonic() + _PATIENCE
        while not self._over(run):
            if await self._all_ready(run, self._ctx.clock.monotonic() >= patient_until):
                await persist(
                    self._ctx.clock,
                    lambda: self._ctx.chain.warmup_witness(self._slot),
                    wanted=lambda: not self._over(run),
                    done_if=frozenset({"DuplicateWitness", "WrongState"}),
                )
                return
            await first_of(
                self._readiness.changed.wait(),
                self._ctx.feed.after(self._ctx.feed.run.seq),
                self._ctx.clock.sleep(_RETRY),
            )

    async def _all_ready(self, run: Run, impatient: bool) -> bool:
        members = await self._ctx.chain.members()
        waiting = run.current.roster & members.mask(MemberState.HEALTHY)
        reachable = self._ctx.transport.reachable()
        for slot in self._readiness.ready.get(run.epoch, ()):
            waiting &= ~(1 << slot)
        return not any(members.slots[s].p2p in reachable or not impatient for s in bitmap.slots(waiting))
