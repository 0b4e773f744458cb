"""What was trained in the rounds that still matter: who announced what, and what of it stood up to checking.

Choices:
- an announcement counts only if it is what the chain's accounts say its sender had to do (`RoundPlan.admits`);
- a member that signs two different results of one round has delivered none, as far as a witness is concerned;
- whose private state does not go on from its last result (`member.lineage`) has delivered none either, to a witness
  that knows it; what a quorum accepted all the same is applied.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from aftermath.base.bounded import Malformed, msgpack_as
from aftermath.base.wait import Pulse
from aftermath.base.worker import Worker
from aftermath.member.evidence import Evidence
from aftermath.member.lineage import Lineage
from aftermath.member.payloads import Candidate, Payloads
from aftermath.member.plan import RoundPlan
from aftermath.member.ports import Ports, Role
from aftermath.optim.votes import Votes
from aftermath.p2p.transport import RequestRefused
from aftermath.rules.commitment import Commitment
from aftermath.rules.run import STORED_ROUNDS
from aftermath.watch import kinds

TOPIC = "commitments"
_MAX_UNASSIGNED = 16  # announcements of one peer in one round that are not what it was assigned, until it is kept out
_MAX_PER_MEMBER = 2  # two different commitments of one member in one round prove that it lies; no more are kept
_UNASSIGNED = "not what it was assigned"
_LONGEST_QUESTION = 1024  # bytes: a height and 256 seats take fewer, and reading one takes time for each value


class Results:
    """The announcements and payloads of the last rounds of one epoch."""

    def __init__(self, ports: Ports, role: Role, decode: Worker) -> None:
        self._ports, self._role = ports, role
        self.payloads = Payloads(ports, role, decode)
        self._epoch = -1
        self._retired: list[bytes] = []
        self._plans: dict[int, RoundPlan] = {}
        self._found: dict[int, dict[int, list[Candidate]]] = defaultdict(dict)
        self._early: dict[int, dict[bytes, dict[bytes, Commitment]]] = {}
        self._refused: dict[int, dict[int | None, set[bytes]]] = defaultdict(dict)
        self._lineage = Lineage()
        self.changed = Pulse()
        self.evidence = Evidence(ports.events)
        ports.transport.handle(TOPIC, self._answer)

    # --- rounds -------------------------------------------------------------------------------------------------

    def begin(self, epoch: int) -> None:
        """Forget everything of other epochs and listen for this one. Old payloads are served until rounds go on."""
        for height in list(self._plans):
            self._forget(height)
        self._early.clear()
        self._lineage.begin(epoch)
        self._epoch = epoch

    def open(self, plan: RoundPlan) -> None:
        """Start judging announcements of a round; forget those that no replica can need any more."""
        newest = plan.header.height
        self._plans[newest] = plan
        for announcements in self._early.pop(newest, {}).values():
            for raw, said in announcements.items():
                self.admit(said, raw)
        for height in [h for h in self._plans if h <= newest - STORED_ROUNDS]:
            self._forget(height)
        for height in [h for h in self._early if h <= newest]:
            del self._early[height]
        if newest > 1:
            self._retract()

    def plan(self, height: int) -> RoundPlan | None:
        return self._plans.get(height)

    def sequences(self, height: int, seats: Iterable[int]) -> list[list[int]]:
        """What the results of these seats were trained on: [start, stop) of each range of sequences."""
        plan = self._plans.get(height)
        return [[r.start, r.stop] for seat in sorted(seats) for r in plan.ranges(seat)] if plan is not None else []

    def _forget(self, height: int) -> None:
        """Forget a round; its payloads are still served until `_retract`."""
        del self._plans[height]
        self._refused.pop(height, None)
        for candidate in _all(self._found.pop(height, {})):
            if candidate.fetching is not None:
                candidate.fetching.cancel()
            self._retired += candidate.served

    def _retract(self) -> None:
        """Stop serving forgotten payloads, except those that are also the payload of a round that still matters."""
        needed = {digest for found in self._found.values() for c in _all(found) for digest in c.served}
        for digest in self._retired:
            if digest not in needed:
                self._ports.transport.retract(digest)
        self._retired = []

    def applied(self, height: int) -> None:
        """Let go of the votes of a round that is in the replica."""
        for candidate in _all(self._found.get(height, {})):
            candidate.votes.clear()

    def close(self) -> None:
        """Forget everything."""
        self.begin(-1)
        self._retract()

    # --- what comes in ------------------------------------------------------------------------------------------

    def hear(self, said: Commitment, raw: bytes) -> None:
        """Take an announcement whose signature is checked and whose sender is who sent it."""
        if said.epoch != self._epoch:
            return
        if said.height in self._plans:
            self.admit(said, raw)
        elif 0 < said.height - max(self._plans, default=-1) <= STORED_ROUNDS:
            kept = self._early.setdefault(said.height, {}).setdefault(said.sender, {})
            if len(kept) < _MAX_PER_MEMBER:  # so nobody can crowd out the announcements of others
                kept[raw] = said

    def admit(self, said: Commitment, raw: bytes, *, accepted: bool = False) -> None:
        """Keep an announcement if it is what its sender was assigned; `accepted`: the chain says it is the one."""
        plan = self._plans.get(said.height)
        if plan is None or said.epoch != self._epoch:
            return
        if not plan.admits(said, self._role.schema):
            self._refuse(said, raw, plan)
            return
        candidates, digest = self._found[said.height].setdefault(said.seat, []), said.digest
        if any(c.digest == digest for c in candidates) or (len(candidates) >= _MAX_PER_MEMBER and not accepted):
            return
        if candidates:
            self._ports.events.emit(
                kinds.Refused(height=said.height, seat=said.seat, why="it announced another result too")
            )
            self.evidence.add(said, candidates[0].raw, raw)
        candidate = Candidate(said, raw, digest)
        candidates.append(candidate)
        self._lineage.hear(said)
        self._follow(said.seat)
        candidate.fetching = asyncio.ensure_future(self._fetch(candidate, plan))
        candidate.fetching.add_done_callback(self._fetched)
        self.changed.fire()

    def _follow(self, seat: int) -> None:
        """Look whether a member's private states go on from each other; they may be heard in any order."""
        for candidate in (c for found in self._found.values() for c in found.get(seat, ())):
            if not candidate.broken and (why := self._lineage.broken(candidate.said)) is not None:
                candidate.broken = True
                self._ports.events.emit(kinds.Refused(height=candidate.said.height, seat=seat, why=why))

    def _refuse(self, said: Commitment, raw: bytes, plan: RoundPlan) -> None:
        """Say whose announcement is not what it was assigned, once a round; who goes on with such is kept out.

        The seat is that of the key and the wallet that it is from, whatever seat it names: anybody may write another
        one's key into the chain, but not sign with it. None if these are no member's.
        """
        whose = (said.sender, said.signer)
        seat = next((index for index, member in enumerate(plan.seats) if (member.p2p, member.signer) == whose), None)
        refused = self._refused[said.height].setdefault(seat, set())
        if not refused:
            self._ports.events.emit(kinds.Refused(height=said.height, seat=seat, why=_UNASSIGNED))
        refused.add(raw)  # signed: nobody else can make them more
        if len(refused) > _MAX_UNASSIGNED:
            refused.pop()
            if seat is None:  # these are many keys together, and peers can pass on those of anybody
                return
            self._ports.transport.bar(said.sender, f"over {_MAX_UNASSIGNED} announcements of a round {_UNASSIGNED}")

    def keep_own(self, said: Commitment, raw: bytes, votes: Mapping[int, Votes], payloads: Mapping[int, bytes]) -> None:
        """Add this member's own result, whose payloads are published already."""
        served = [payload.blake3 for payload in said.levels.values()]
        own = Candidate(said, raw, said.digest, dict(votes), dict(payloads), served)
        self._found[said.height].setdefault(said.seat, []).append(own)
        self.changed.fire()

    async def _fetch(self, candidate: Candidate, plan: RoundPlan) -> None:
        await self.payloads.fetch(candidate, plan)
        self.changed.fire()

    def _fetched(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._ports.events.emit(kinds.Warning(message=f"a result could not be fetched: {error}"))

    # --- what is known ------------------------------------------------------------------------------------------

    def candidates(self, height: int, seat: int) -> list[Candidate]:
        """What a member announced of a round, in the order it came."""
        return self._found.get(height, {}).get(seat, [])

    def announced(self, height: int) -> frozenset[int]:
        """The seats that have announced a result of this round."""
        return frozenset(self._found.get(height, {}))

    def held(self, height: int) -> dict[int, bytes]:
        """The commitment of every seat whose one result can be attested: {seat: 32-byte digest}.

        That is held whole and valid, and its private state goes on from the one before, as far as that is known.
        """
        found = sorted(self._found.get(height, {}).items())
        return {seat: c[0].digest for seat, c in found if len(c) == 1 and not c[0].broken and self.payloads.whole(c[0])}

    def settled(self, height: int) -> frozenset[int]:
        """The seats whose result is held, or is known to be worthless: nothing is left to wait for."""
        found = self._found.get(height, {}).items()
        return frozenset(
            seat for seat, c in found if len(c) > 1 or c[0].bad or c[0].broken or self.payloads.whole(c[0])
        )

    # --- what others may ask ------------------------------------------------------------------------------------

    async def _answer(self, peer: bytes, body: bytes) -> bytes:
        """The announcements of a round by the seats asked for, as they were signed."""
        del peer
        if len(body) > _LONGEST_QUESTION:
            raise RequestRefused("a height and seats take fewer bytes")
        try:
            asked: tuple[int, list[int]] = msgpack_as(body, tuple[int, list[int]])
        except Malformed as error:
            raise RequestRefused("a height and seats are expected") from error
        height, seats = asked
        found = self._found.get(height, {})
        return msgspec.msgpack.encode([c.raw for seat in sorted(set(seats)) for c in found.get(seat, [])])


def _all(found: Mapping[int, list[Candidate]]) -> Iterable[Candidate]:
    return (candidate for candidates in found.values() for candidate in candidates)
