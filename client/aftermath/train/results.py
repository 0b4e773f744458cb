"""What was trained in the rounds that still matter: who announced what, and the payloads that stood up to checking.

Choices:
- an announcement counts only if it is what the chain's accounts say its sender had to do (`RoundPlan.admits`);
- sizes come from the schema before the first byte, the hash is checked before decoding, decoding checks the rest;
- a bad payload costs its sender the round and nobody else anything; a missing one is asked for again and again from
  everyone who may hold it, as long as the chain still stores its round.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from aftermath.optim.codec import BadPayload, Votes, decode_level
from aftermath.p2p.transport import BlobRejected, TransportError
from aftermath.run.accounts import STORED_ROUNDS, Run
from aftermath.run.commitment import Commitment, decode_announcement
from aftermath.run.consensus import Fingerprint, matches
from aftermath.run.errors import BadAnnouncement
from aftermath.train.context import Context, Desync
from aftermath.train.plan import RoundPlan
from aftermath.train.wait import Pulse, first_of

TOPIC = "commitments"
_MAX_PER_MEMBER = 3  # different commitments kept of one member in one round: it lies, but the witnesses decide
_MAX_EARLY = 1024  # announcements kept for a round this member has not seen on chain yet
LINGER = 3.0  # seconds for which members of a run that has stopped still serve its last results
_ASK_EVERY = 1.0  # seconds between questions to peers about a commitment that is missing


@dataclass
class Candidate:
    """One announced result and what was fetched of it."""

    said: Commitment
    raw: bytes
    votes: dict[int, Votes] = field(default_factory=dict)
    bad: bool = False
    fetching: asyncio.Task[None] | None = None


class Results:
    """The announcements and payloads of the last rounds of one epoch."""

    def __init__(self, context: Context) -> None:
        self._ctx = context
        self._epoch = -1
        self._retired: list[bytes] = []
        self._plans: dict[int, RoundPlan] = {}
        self._found: dict[int, dict[int, list[Candidate]]] = defaultdict(dict)
        self._early: dict[int, dict[bytes, Commitment]] = defaultdict(dict)
        self.changed = Pulse()
        context.transport.handle(TOPIC, self._answer)

    # --- rounds -------------------------------------------------------------------------------------------------

    def begin(self, epoch: int) -> None:
        """Forget everything of other epochs and listen for this one. Old payloads are served until rounds go on."""
        self._retired += [digest for height in list(self._plans) for digest in self._forget(height)]
        self._early.clear()
        self._epoch = epoch

    def open(self, plan: RoundPlan) -> None:
        """Start judging announcements of a round; forget those that no replica can need any more."""
        self._plans[plan.header.height] = plan
        for raw, said in self._early.pop(plan.header.height, {}).items():
            self._admit(said, raw)
        for height in [h for h in self._plans if h <= plan.header.height - STORED_ROUNDS]:
            self._retired += self._forget(height)
        if plan.header.height > 1:
            self._retract()

    def plan(self, height: int) -> RoundPlan | None:
        return self._plans.get(height)

    def _forget(self, height: int) -> list[bytes]:
        """Forget a round; the digests of its payloads, which are still served."""
        del self._plans[height]
        candidates = [c for found in self._found.pop(height, {}).values() for c in found]
        for candidate in candidates:
            if candidate.fetching is not None:
                candidate.fetching.cancel()
        return [payload.blake3 for candidate in candidates for payload in candidate.said.levels.values()]

    def _retract(self) -> None:
        for digest in self._retired:
            self._ctx.transport.retract(digest)
        self._retired = []

    def close(self) -> None:
        """Forget everything."""
        self.begin(-1)
        self._retract()

    # --- what comes in ------------------------------------------------------------------------------------------

    def hear(self, said: Commitment, raw: bytes) -> None:
        """Take an announcement whose signature is checked."""
        if said.epoch != self._epoch:
            return
        if said.height in self._plans:
            self._admit(said, raw)
        elif sum(map(len, self._early.values())) < _MAX_EARLY:
            self._early[said.height][raw] = said

    def _admit(self, said: Commitment, raw: bytes) -> None:
        if not self._plans[said.height].admits(said, self._ctx.schema):
            self._ctx.events.emit("refused", height=said.height, slot=said.slot, why="not what it was assigned")
            return
        candidates = self._found[said.height].setdefault(said.slot, [])
        if len(candidates) >= _MAX_PER_MEMBER or any(c.said.digest == said.digest for c in candidates):
            return
        candidate = Candidate(said, raw)
        candidates.append(candidate)
        candidate.fetching = asyncio.ensure_future(self._fetch(candidate))
        self.changed.fire()

    def keep_own(self, said: Commitment, raw: bytes, votes: Mapping[int, Votes]) -> None:
        """Add this member's own result, which needs no fetching."""
        self._found[said.height].setdefault(said.slot, []).append(Candidate(said, raw, dict(votes)))
        self.changed.fire()

    # --- fetching -----------------------------------------------------------------------------------------------

    def _needed(self, candidate: Candidate) -> list[int]:
        return [level for level in candidate.said.levels if level >= self._ctx.tier]

    async def _fetch(self, candidate: Candidate) -> None:
        """Fetch and decode the levels this member holds, until all are there or the payload is found bad."""
        said, pause = candidate.said, 0.2
        while missing := [level for level in self._needed(candidate) if level not in candidate.votes]:
            try:
                await asyncio.gather(*(self._fetch_level(candidate, level) for level in missing))
            except (BadPayload, BlobRejected) as error:
                candidate.bad = True
                self._ctx.events.emit("refused", height=said.height, slot=said.slot, why=str(error))
                break
            except TransportError as error:
                self._ctx.events.emit("fetch_failed", height=said.height, slot=said.slot, why=str(error))
                await self._ctx.clock.sleep(pause)
                pause = min(2 * pause, 5.0)
        self.changed.fire()

    async def _fetch_level(self, candidate: Candidate, level: int) -> None:
        payload = candidate.said.levels[level]
        deadline, started = float(self._ctx.feed.run.config.max_round_train_time), self._ctx.clock.monotonic()
        data = await self._ctx.transport.fetch(
            payload.blake3, payload.size, self._holders(candidate.said, level), deadline, keep=True
        )
        schema, fetched = self._ctx.schema, self._ctx.clock.monotonic()
        candidate.votes[level] = await self._ctx.decode(lambda: decode_level(data, schema, level))
        self._ctx.events.emit(
            "fetched",
            height=candidate.said.height,
            slot=candidate.said.slot,
            level=level,
            seconds=fetched - started,
            decode_seconds=self._ctx.clock.monotonic() - fetched,
        )

    def _holders(self, said: Commitment, level: int) -> list[bytes]:
        """Who may have this level's payload: its trainer first, then the reachable members that hold the level."""
        plan = self._plans[said.height]
        others = {plan.slots[slot].p2p for slot in plan.shares if plan.slots[slot].tier <= level}
        others &= self._ctx.transport.reachable()
        return [said.sender, *sorted(others - {said.sender, self._ctx.transport.node_id})]

    # --- what is known ------------------------------------------------------------------------------------------

    def announced(self, height: int) -> frozenset[int]:
        """The slots that have announced a result of this round."""
        return frozenset(self._found.get(height, {}))

    def held(self, height: int) -> dict[int, bytes]:
        """The commitment of every slot whose result is held whole and valid: {slot: 32-byte digest}."""
        firsts = {slot: self._first_whole(found) for slot, found in sorted(self._found.get(height, {}).items())}
        return {slot: digest for slot, digest in firsts.items() if digest is not None}

    def _first_whole(self, candidates: list[Candidate]) -> bytes | None:
        return next((c.said.digest for c in candidates if self._whole(c)), None)

    def _whole(self, candidate: Candidate) -> bool:
        return not candidate.bad and all(level in candidate.votes for level in self._needed(candidate))

    def losses(self, height: int) -> list[float]:
        """The losses announced for a round."""
        return [c[0].said.loss for c in self._found.get(height, {}).values()]

    # --- what everybody applies ---------------------------------------------------------------------------------

    async def collect(self, height: int, seed: int, accepted: Mapping[int, Fingerprint]) -> dict[int, list[Votes]]:
        """The votes of the accepted results per level held, in slot order; waits until all are here.

        Raises Desync when the chain no longer stores the round and something is still missing.
        """
        asked, give_up = float("-inf"), float("inf")
        while True:
            chosen = {slot: self._matching(height, seed, slot, print_) for slot, print_ in sorted(accepted.items())}
            whole = [c for c in chosen.values() if c is not None and self._whole(c)]
            if len(whole) == len(accepted):
                return self._by_level(whole)
            run, now = self._ctx.feed.run, self._ctx.clock.monotonic()
            give_up = min(give_up, now + LINGER) if run.halted else give_up
            if self._too_late(run, height) or now > give_up:
                raise Desync(f"results of round {height} could not be had from any peer")
            if (unheard := [slot for slot, c in chosen.items() if c is None]) and now >= asked:
                asked = now + _ASK_EVERY
                await self._ask(height, unheard)
                continue
            await first_of(self.changed.wait(), self._ctx.feed.after(run.seq), self._ctx.clock.sleep(_ASK_EVERY))

    def _too_late(self, run: Run, height: int) -> bool:
        """Whether the others may have stopped serving round `height` of this epoch: they do once rounds go on."""
        if run.epoch == self._epoch:
            return run.current.height > height + STORED_ROUNDS
        return run.epoch != self._epoch + 1 or run.active

    def _matching(self, height: int, seed: int, slot: int, accepted: Fingerprint) -> Candidate | None:
        candidates = self._found.get(height, {}).get(slot, [])
        return next((c for c in candidates if matches(accepted, c.said.digest, seed)), None)

    def _by_level(self, candidates: Iterable[Candidate]) -> dict[int, list[Votes]]:
        votes: dict[int, list[Votes]] = {level: [] for level in self._ctx.levels}
        for candidate in candidates:
            for level in self._needed(candidate):
                votes[level].append(candidate.votes[level])
        return votes

    # --- commitments missed by announcement ---------------------------------------------------------------------

    async def _ask(self, height: int, slots: list[int]) -> None:
        """Ask reachable members for the announcements of `slots` that never reached us."""
        question = msgspec.msgpack.encode((height, slots))
        for peer in sorted(self._ctx.transport.reachable()):
            try:
                reply = await self._ctx.transport.request(peer, TOPIC, question, 1 << 20, 2.0)
                announcements = msgspec.msgpack.decode(reply, type=list[bytes])[:1024]
            except (TransportError, msgspec.MsgspecError):
                continue
            for raw in announcements:
                try:
                    said = decode_announcement(raw)
                except BadAnnouncement:
                    continue
                if isinstance(said, Commitment) and said.epoch == self._epoch and said.height in self._plans:
                    self._admit(said, raw)

    async def _answer(self, peer: bytes, body: bytes) -> bytes:
        del peer
        height, slots = msgspec.msgpack.decode(body, type=tuple[int, list[int]])
        found = self._found.get(height, {})
        return msgspec.msgpack.encode([c.raw for slot in slots[:256] for c in found.get(slot, [])])
