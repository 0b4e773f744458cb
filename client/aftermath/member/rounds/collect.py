"""Fetch announcements that this member missed, and accepted results in full.

It asks a few peers at a time, in turn, so a lost announcement causes little traffic even in a large
run. Answers are announcements that carry their authors' signatures.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

import msgspec

from aftermath.base.bounded import Malformed, msgpack_as
from aftermath.base.concurrency import first_of
from aftermath.base.errors import BadAnnouncement
from aftermath.member.announced_results import MOST_PER_SEAT, TOPIC, Results
from aftermath.member.payloads import Candidate
from aftermath.member.ports import Desync, Ports
from aftermath.optim.level_votes import Votes
from aftermath.p2p.limits import LogLimits
from aftermath.p2p.transport import TransportError
from aftermath.rules.announcements import (
    MAX_ANNOUNCEMENT_BYTES,
    Commitment,
    Ready,
    decode_announcement,
)
from aftermath.rules.consensus import Fingerprint, matches
from aftermath.rules.run import STORED_ROUNDS, Run

LINGER = 3.0  # seconds during which members of a stopped run still serve its last results
ASK_EVERY = 1.0  # seconds between questions to peers about a missing commitment
_ASKED_AT_ONCE = 3
_REPLY_SECONDS = 2.0
_MAX_REPLY = 1 << 20
_AROUND = 5  # bytes of a msgpack header: of the list, and of each announcement in it
_log = logging.getLogger(__name__)


class Collector:
    """Completes the rounds of one epoch."""

    def __init__(self, ports: Ports, levels: range, results: Results, epoch: int) -> None:
        self._ports = ports
        self._levels = levels
        self._results = results
        self._epoch = epoch
        self._turn = 0
        self._log_limits = LogLimits(_log)

    async def collect(
        self,
        height: int,
        salt: int,
        accepted: Mapping[int, Fingerprint],
        vouched: Mapping[int, frozenset[int]],
    ) -> list[Candidate]:
        """Return the accepted results in seat order, once all levels that we hold are fetched.

        `vouched` maps a level to the members whose result is applied there. `salt` is the attesting
        round's. Raises Desync if a result is missing when the chain no longer stores the round.
        """
        next_ask = float("-inf")
        give_up = float("inf")
        while True:
            candidates = {
                seat: self._matching(height, salt, seat, fingerprint)
                for seat, fingerprint in sorted(accepted.items())
            }
            complete = [
                c
                for c in candidates.values()
                if c is not None and not _is_incomplete(c, self._results, vouched)
            ]
            if len(complete) == len(accepted):
                return complete
            run = self._ports.feed.run
            now = self._ports.clock.monotonic()
            give_up = min(give_up, now + LINGER) if run.halted else give_up
            if self._too_late(run, height) or now > give_up:
                raise Desync(f"no peer has all results of round {height}")
            unheard = {
                seat: accepted[seat]
                for seat, candidate in candidates.items()
                if candidate is None or not candidate.key
            }
            if unheard and now >= next_ask:
                next_ask = now + ASK_EVERY
                await self.ask(
                    height,
                    unheard,
                    lambda commitment: matches(accepted[commitment.seat], commitment.digest, salt),
                )
                continue
            await first_of(
                self._results.changed.wait(),
                self._ports.feed.after(run.seq),
                self._ports.clock.sleep(ASK_EVERY),
            )

    def _too_late(self, run: Run, height: int) -> bool:
        """Return whether others may have stopped serving round `height` of this epoch."""
        if run.epoch == self._epoch:
            return run.current.height > height + STORED_ROUNDS
        return run.epoch != self._epoch + 1 or run.active

    def _matching(
        self, height: int, salt: int, seat: int, accepted: Fingerprint
    ) -> Candidate | None:
        candidates = self._results.candidates(height, seat)
        return next((c for c in candidates if matches(accepted, c.digest, salt)), None)

    def by_level(
        self, candidates: Collection[Candidate], vouched: Mapping[int, frozenset[int]]
    ) -> dict[int, list[Votes]]:
        """Return the votes per held level, in seat order, of the members applied at that level."""
        votes: dict[int, list[Votes]] = {level: [] for level in self._levels}
        for candidate in candidates:
            for level in (votes.keys() & candidate.commitment.levels.keys()) - candidate.invalid:
                if candidate.commitment.seat in vouched[level]:
                    # without them this replica would diverge
                    votes[level].append(candidate.votes[level])
        return votes

    async def ask(
        self, height: int, seats: Collection[int], accepted: Callable[[Commitment], bool]
    ) -> None:
        """Ask a few reachable members for missing announcements.

        `accepted` returns whether a commitment is one that the chain accepted.
        """
        peers = sorted(self._ports.transport.reachable())
        start = self._turn % max(1, len(peers))
        self._turn += _ASKED_AT_ONCE
        chosen = (peers[start:] + peers[:start])[:_ASKED_AT_ONCE]
        question = msgspec.msgpack.encode((height, sorted(seats)))
        replies = await asyncio.gather(
            *(self._question(peer, question, len(seats)) for peer in chosen)
        )
        for raw, peer in {
            raw: p for p, reply in zip(chosen, replies, strict=True) for raw in reply
        }.items():
            try:
                announcement = decode_announcement(raw)
                if (
                    not isinstance(announcement, Ready)
                    and announcement.height == height
                    and announcement.seat in seats
                ):
                    if isinstance(announcement, Commitment):
                        self._results.admit(
                            announcement,
                            raw,
                            accepted=accepted(announcement),
                            relayed=announcement.sender != peer,
                        )
                    else:
                        self._results.hear_reveal(announcement, raw)
            except BadAnnouncement as error:
                self._ports.transport.bar(
                    peer, f"it answered with an invalid announcement: {error}"
                )
            except Exception as error:  # an invalid answer must not end this member
                self._log_limits.failure("reading the answer of", peer, error)

    async def _question(self, peer: bytes, question: bytes, seats: int) -> list[bytes]:
        """Return the announcements in a peer's answer about `seats` seats, or none without an
        answer.

        The limits are what these seats can need, because parsing takes time per byte and value.
        """
        most = MOST_PER_SEAT * seats
        longest = min(_MAX_REPLY, _AROUND + most * (MAX_ANNOUNCEMENT_BYTES + _AROUND))
        try:
            reply = await self._ports.transport.request(
                peer, TOPIC, question, longest, _REPLY_SECONDS
            )
            answered: list[bytes] = msgpack_as(reply, list[bytes], 1 + most)
        except TransportError:
            return []
        except Malformed:
            self._ports.transport.bar(
                peer, f"its answer is not a list of at most {most} announcements"
            )
            return []
        return answered


def _is_incomplete(
    candidate: Candidate, results: Results, vouched: Mapping[int, frozenset[int]]
) -> bool:
    """Return whether a level that all members apply is missing."""
    return any(
        candidate.commitment.seat in vouched[level]
        for level in results.payloads.undecoded(candidate)
    )
