"""The announced results of recent rounds, and which of them passed the checks.

An announcement counts only if it matches its sender's assignment (`RoundPlan.admits`). If a
member signed two results of a round, a witness attests neither. It also skips a result whose
private state does not continue from the member's last one (`member.state_chain`). A result that a
quorum accepted is applied anyway.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import msgspec

from aftermath.base.bounded import Malformed, msgpack_as
from aftermath.base.concurrency import Pulse, Worker
from aftermath.events import event_types
from aftermath.member.closed_rounds import ClosedRounds
from aftermath.member.evidence import Evidence
from aftermath.member.payloads import Candidate, Payloads
from aftermath.member.ports import Ports, Role
from aftermath.member.round_plan import RoundPlan
from aftermath.member.signed_results import SignedResults
from aftermath.member.state_chain import StateChain
from aftermath.optim.level_votes import Votes
from aftermath.p2p.transport import RequestRefused
from aftermath.rules.announcements import Commitment
from aftermath.rules.run import STORED_ROUNDS
from aftermath.rules.seal import ResultPlace, Reveal, RoundClosed

Fetch = Callable[[Candidate, RoundPlan], Coroutine[Any, Any, None]]

TOPIC = "commitments"
_MAX_UNASSIGNED = 16  # a peer's unassigned announcements in one round before it is banned
_MAX_PER_MEMBER = 2  # two different commitments of one member in one round prove a lie
_UNASSIGNED = "it announced a result that it was not assigned"
CLOSED_ON = "it was announced after this witness had closed the round"
MOST_PER_SEAT = 8
"""Maximum announcements per seat in an answer: its results, their keys, and a RoundClosed."""
_LONGEST_QUESTION = 1024  # bytes; a height and 256 seats take fewer


class Results:
    """The announcements and payloads of the last rounds of one epoch."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        decode: Worker,
        signed: SignedResults | None = None,
        downloads: int | None = None,
    ) -> None:
        """Fetch at most `downloads` payloads at once."""
        self._ports = ports
        self._role = role
        self._signed = signed or SignedResults()
        self.changed = Pulse()
        self.payloads = Payloads(ports, role, decode, self.changed.fire, downloads)
        self._epoch = -1
        self._retired: list[bytes] = []
        self._plans: dict[int, RoundPlan] = {}
        self._candidates: dict[int, dict[int, list[Candidate]]] = defaultdict(dict)
        self._early: dict[int, dict[bytes, dict[bytes, Commitment]]] = {}
        self._refused: dict[int, dict[int | None, set[bytes]]] = defaultdict(dict)
        self._keys: dict[int, dict[int, tuple[Reveal, bytes]]] = defaultdict(dict)
        """Keys that arrived before their result, by height and seat."""
        self._closed: set[int] = set()
        self._unproven: set[int] = set()
        """Seats that do not serve their private state in this epoch."""
        self._state_chain = StateChain()
        self.closed_rounds = ClosedRounds(ports.feed)
        self.evidence = Evidence(ports.events)
        ports.transport.handle(TOPIC, self._answer)

    # --- rounds -----------------------------------------------------------------------------------

    def begin(self, epoch: int, *, starts_empty: bool = False) -> None:
        """Forget other epochs and listen for this one. Old payloads are served until rounds run.

        `starts_empty`: whether members begin it with empty optimizer states (`Run.starts_empty`).
        """
        for height in list(self._plans):
            self._forget(height)
        self._early.clear()
        self._unproven.clear()
        self._state_chain.begin(epoch, starts_empty=starts_empty)
        self._epoch = epoch

    def open(self, plan: RoundPlan) -> None:
        """Accept announcements of a round from now on. Forget rounds that no replica needs."""
        newest = plan.header.height
        self._plans[newest] = plan
        self._state_chain.open(newest, plan.owing)
        for announcements in self._early.pop(newest, {}).values():
            for raw, commitment in announcements.items():
                self.admit(commitment, raw)
        for height in [h for h in self._plans if h <= newest - STORED_ROUNDS]:
            self._forget(height)
        for height in [h for h in self._early if h <= newest]:
            del self._early[height]
        if newest > 1:
            self._retract()

    def plan(self, height: int) -> RoundPlan | None:
        return self._plans.get(height)

    def sequences(self, height: int, seats: Iterable[int]) -> list[list[int]]:
        """Return the training data of these seats' results: [start, stop) of each range of
        sequences.
        """
        plan = self._plans.get(height)
        return (
            [[r.start, r.stop] for seat in sorted(seats) for r in plan.ranges(seat)]
            if plan is not None
            else []
        )

    def _forget(self, height: int) -> None:
        """Forget a round. Its payloads are served until `_retract`."""
        del self._plans[height]
        self._refused.pop(height, None)
        self._keys.pop(height, None)
        self._closed.discard(height)
        self.payloads.forget(height)
        for candidate in _all(self._candidates.pop(height, {})):
            for task in candidate.tasks:
                task.cancel()
            self._retired += candidate.served

    def _retract(self) -> None:
        """Stop serving forgotten payloads, except those that a current round shares."""
        needed = {
            digest
            for by_seat in self._candidates.values()
            for c in _all(by_seat)
            for digest in c.served
        }
        for digest in self._retired:
            if digest not in needed:
                self._ports.transport.retract(digest)
        self._retired = []

    def applied(self, height: int) -> None:
        """Free the votes of a round that was applied."""
        for candidate in _all(self._candidates.get(height, {})):
            candidate.votes.clear()

    def close(self) -> None:
        """Forget everything."""
        self.begin(-1)
        self._retract()

    # --- incoming announcements -------------------------------------------------------------------

    def hear(self, commitment: Commitment, raw: bytes) -> None:
        """Record an announcement that came directly from its sender.

        The caller has checked its signature.
        """
        if commitment.epoch != self._epoch:
            return
        if commitment.height in self._plans:
            self.admit(commitment, raw)
        elif 0 < commitment.height - max(self._plans, default=-1) <= STORED_ROUNDS:
            early_commitments = self._early.setdefault(commitment.height, {}).setdefault(
                commitment.sender, {}
            )
            if (
                len(early_commitments) < _MAX_PER_MEMBER
            ):  # so that one peer cannot displace other members' announcements
                early_commitments[raw] = commitment

    def admit(
        self, commitment: Commitment, raw: bytes, *, accepted: bool = False, relayed: bool = False
    ) -> None:
        """Record an announcement if it matches its sender's assignment.

        `accepted`: the chain accepted this result. `relayed`: another peer sent it. Only a member's
        own messages count against it, because anyone can relay what it signed in another attempt at
        the round.
        """
        plan = self._plans.get(commitment.height)
        if plan is None or commitment.epoch != self._epoch:
            return
        if not plan.admits(commitment, self._role.schema):
            if not relayed:
                self._refuse(commitment, raw, plan)
            return
        candidates = self._candidates[commitment.height].setdefault(commitment.seat, [])
        digest = commitment.digest
        if any(c.digest == digest for c in candidates) or (
            len(candidates) >= _MAX_PER_MEMBER and not accepted
        ):
            return
        if candidates:
            self._ports.events.emit(
                event_types.PeerRefused(
                    height=commitment.height,
                    seat=commitment.seat,
                    why="it announced another result too",
                )
            )
            self.evidence.add(commitment, candidates[0].raw, raw)
        # A witness rejects results announced after it closed the round, because they may be copies.
        candidate = Candidate(
            commitment,
            raw,
            digest,
            late=commitment.height in self._closed,
            unproven=commitment.seat in self._unproven,
        )
        candidates.append(candidate)
        if candidate.late:
            self._ports.events.emit(
                event_types.PeerRefused(
                    height=commitment.height, seat=commitment.seat, why=CLOSED_ON
                )
            )
        if (early := self._keys[commitment.height].get(commitment.seat)) is not None:
            self.hear_key(*early)
        self._state_chain.hear(commitment)
        self._check_state_chain(commitment.seat)
        self._start(candidate, plan, self.payloads.fetch)
        candidate.tasks_for_others.append(
            self._start(candidate, plan, self.payloads.fetch_for_others)
        )
        self.changed.fire()

    def hear_reveal(self, announcement: RoundClosed | Reveal, raw: bytes) -> None:
        """Record a RoundClosed message or a key. The caller has checked its signature."""
        if isinstance(announcement, RoundClosed):
            self.closed_rounds.hear(announcement, raw)
        else:
            self.hear_key(announcement, raw)

    def hear_key(self, announcement: Reveal, raw: bytes) -> None:
        """Record a key whose signature was checked. Keep a key that arrives before its result.

        Any peer may relay a key. One early key is kept per member.
        """
        plan = self._plans.get(announcement.height)
        if plan is None or not plan.comes_from(announcement):
            return
        opened = [
            c
            for c in self.candidates(announcement.height, announcement.seat)
            if c.commitment.opened_by(announcement.key)
        ]
        for candidate in opened:
            candidate.reveal(announcement.key, raw)
        if opened:
            self._keys[announcement.height].pop(announcement.seat, None)
            self.changed.fire()
        else:
            self._keys[announcement.height][announcement.seat] = announcement, raw

    def close_round(self, height: int) -> None:
        """Stop attesting, as a witness, results that are announced from now on."""
        self._closed.add(height)

    def stop_attesting(self, seat: int, height: int) -> None:
        """Attest no more results of a member, as a witness, in this epoch.

        It does not serve the private state of its result of round `height`.
        """
        self._unproven.add(seat)
        for by_seat in self._candidates.values():
            for candidate in by_seat.get(seat, ()):
                candidate.unproven = True
        why = "it does not serve its private state"
        self._ports.events.emit(event_types.PeerRefused(height=height, seat=seat, why=why))

    def _check_state_chain(self, seat: int) -> None:
        """Check that each private state of a member continues from the one before, in any order."""
        for candidate in (
            c for by_seat in self._candidates.values() for c in by_seat.get(seat, ())
        ):
            if (
                not candidate.breaks_chain
                and (why := self._state_chain.fault(candidate.commitment)) is not None
            ):
                candidate.breaks_chain = True
                self._ports.events.emit(
                    event_types.PeerRefused(height=candidate.commitment.height, seat=seat, why=why)
                )

    def _refuse(self, commitment: Commitment, raw: bytes, plan: RoundPlan) -> None:
        """Report a member's first unassigned announcement of a round. Ban a peer that continues.

        The reported seat is the one with the sender's key and wallet, not the named one. Anyone can
        register another member's key on chain, but cannot sign with it.
        """
        sender = (commitment.sender, commitment.signer)
        seat = next(
            (
                index
                for index, member in enumerate(plan.seats)
                if (member.p2p, member.signer) == sender
            ),
            None,
        )
        refused = self._refused[commitment.height].setdefault(seat, set())
        if not refused:
            self._ports.events.emit(
                event_types.PeerRefused(height=commitment.height, seat=seat, why=_UNASSIGNED)
            )
        refused.add(raw)  # signed, so only the sender can add to them
        if len(refused) > _MAX_UNASSIGNED:
            refused.pop()
            if seat is None:  # many keys share this entry, and peers can relay anyone's
                return
            self._ports.transport.bar(
                commitment.sender,
                f"more than {_MAX_UNASSIGNED} of its announcements in a round were results that it was"
                " not assigned",
            )

    def may_sign(self, place: ResultPlace, digest: bytes) -> bool:
        """Record that this member signs the result with this digest at `place`.

        Return False if it already signed a different one for that place. Blocks until the record is
        on disk. Raises OSError like `SignedResults.record`.
        """
        return self._signed.record(place, digest)

    def add_own(
        self,
        commitment: Commitment,
        raw: bytes,
        votes: Mapping[int, Votes],
        payloads: Mapping[int, bytes],
        key: bytes,
    ) -> None:
        """Add this member's own result. Its payloads, masked with `key`, are already published."""
        served = [payload.blake3 for payload in commitment.levels.values()]
        candidate = Candidate(
            commitment, raw, commitment.digest, dict(votes), dict(payloads), set(votes), served
        )
        candidate.reveal(key)
        self._candidates[commitment.height].setdefault(commitment.seat, []).append(candidate)
        self.changed.fire()

    def fetch_for_others(self, height: int) -> None:
        """Fetch the levels that every witness of a round must serve, even levels not held."""
        plan = self._plans.get(height)
        if plan is not None and self.payloads.start_for_others(height):
            for candidate in _all(self._candidates.get(height, {})):
                candidate.tasks_for_others.append(
                    self._start(candidate, plan, self.payloads.fetch_for_others)
                )

    def stop_for_others(self, height: int) -> None:
        """Stop fetching for others, because this witness has attested or its time is over."""
        if height not in self._plans:
            return
        self.payloads.stop_for_others(height)
        for candidate in _all(self._candidates.get(height, {})):
            for task in candidate.tasks_for_others:
                task.cancel()

    def _start(self, candidate: Candidate, plan: RoundPlan, fetch: Fetch) -> asyncio.Task[None]:
        async def fetching() -> None:
            await fetch(candidate, plan)
            self.changed.fire()

        task = asyncio.ensure_future(fetching())
        task.add_done_callback(self._task_done)
        candidate.tasks.append(task)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._ports.events.emit(
                event_types.Warning(message=f"a result could not be fetched: {error}")
            )

    # --- state of results ------------------------------------------------------------------------

    def candidates(self, height: int, seat: int) -> list[Candidate]:
        """Return a member's announced results of a round, in order of arrival."""
        return self._candidates.get(height, {}).get(seat, [])

    def announced(self, height: int) -> frozenset[int]:
        """Return the seats that have announced a result of this round."""
        return frozenset(self._candidates.get(height, {}))

    def attestable(self, height: int) -> dict[int, bytes]:
        """Return the attestable commitments: {seat: 32-byte digest}.

        Such a result is the seat's only one, complete, valid and in time. As far as known, its
        private state continues from the last one.
        """
        by_seat = sorted(self._candidates.get(height, {}).items())
        return {
            seat: c[0].digest
            for seat, c in by_seat
            if not _worthless(c) and self.payloads.is_valid(c[0])
        }

    def fetched(self, height: int) -> frozenset[int]:
        """Return the seats whose result was fetched (revealed or not) or is known to be invalid."""
        by_seat = self._candidates.get(height, {}).items()
        return frozenset(
            seat for seat, c in by_seat if _worthless(c) or self.payloads.is_fetched(c[0])
        )

    def settled(self, height: int) -> frozenset[int]:
        """Return the seats whose result is attestable or known to be invalid."""
        by_seat = self._candidates.get(height, {}).items()
        return frozenset(
            seat for seat, c in by_seat if _worthless(c) or self.payloads.is_valid(c[0])
        )

    def sealed(self, height: int) -> frozenset[int]:
        """Return the seats whose result is announced but whose key is unknown."""
        return frozenset(
            s
            for s, candidates in self._candidates.get(height, {}).items()
            if not all(c.key for c in candidates)
        )

    def unrevealed(self) -> list[ResultPlace]:
        """Return the places of this member's own results whose key it has not revealed."""
        own_commitments = (
            c.commitment
            for by_seat in self._candidates.values()
            for c in _all(by_seat)
            if c.key and not c.key_announcement
        )
        return [
            commitment.place
            for commitment in own_commitments
            if commitment.sender == self._ports.transport.node_id
        ]

    # --- answers to peers -------------------------------------------------------------------------

    async def _answer(self, peer: bytes, body: bytes) -> bytes:
        """Answer a request with the seats' signed results, keys and RoundClosed messages."""
        del peer
        if len(body) > _LONGEST_QUESTION:
            raise RequestRefused(f"the question has more than {_LONGEST_QUESTION} bytes")
        try:
            question: tuple[int, list[int]] = msgpack_as(body, tuple[int, list[int]])
        except Malformed as error:
            raise RequestRefused("the question is not a height and a list of seats") from error
        height = question[0]
        seats = sorted(set(question[1]))
        candidates = [c for seat in seats for c in self.candidates(height, seat)]
        keys = [c.key_announcement for c in candidates if c.key_announcement]
        announcements = [
            *(c.raw for c in candidates),
            *keys,
            *self.closed_rounds.announcements(height, seats),
        ]
        return msgspec.msgpack.encode(announcements[: MOST_PER_SEAT * len(seats)])


def _worthless(candidates: list[Candidate]) -> bool:
    """Return whether these results of one member cannot be attested."""
    return (
        len(candidates) > 1
        or bool(candidates[0].invalid)
        or candidates[0].breaks_chain
        or candidates[0].late
        or candidates[0].unproven
    )


def _all(by_seat: Mapping[int, list[Candidate]]) -> Iterable[Candidate]:
    return (candidate for candidates in by_seat.values() for candidate in candidates)
