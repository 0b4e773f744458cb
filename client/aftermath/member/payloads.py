"""The payloads of announced results: had from whoever holds them, checked, and decoded once they may be opened.

Choices:
- what is fetched, kept and served onwards is masked (`rules.seal`), so it waits for nothing. Each level is unmasked and
  decoded when it is here and its key is told;
- sizes come from the schema before the first byte, the hash is checked before decoding, decoding checks the rest;
- a bad payload costs its sender the round and nobody else anything: everybody who holds its level finds the same
  fault in the same bytes, so it can be left out even if witnesses that do not hold the level accepted the rest;
- a witness has, besides the levels it holds, those that all witnesses of the round have to have
  (`rules.availability`), as bytes that it hands on: after its own, and until it has attested. A line that is
  enough for its own levels is enough for these only a little later, and what it did without nobody asks it for;
- a missing payload is asked for again and again from everyone who may hold it, as long as the chain still stores its
  round; that it was not to be had is said of the first tries only, since a round may last for hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from aftermath.base.backoff import Backoff
from aftermath.base.wait import every
from aftermath.base.worker import Worker
from aftermath.member.downloads import Downloads
from aftermath.member.plan import RoundPlan
from aftermath.member.ports import Ports, Role
from aftermath.optim.codec import BadPayload, decode_level
from aftermath.optim.votes import Votes
from aftermath.p2p.transport import TransportError
from aftermath.rules.commitment import Commitment
from aftermath.rules.seal import masked
from aftermath.watch import kinds

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_FETCH_SECONDS, _SLOWEST_BYTES = 5.0, 200_000  # one attempt: so long, and longer by a byte rate that anyone has


@dataclass
class Candidate:
    """One announced result and what was fetched of it."""

    said: Commitment
    raw: bytes
    digest: bytes
    votes: dict[int, Votes] = field(default_factory=dict)
    """Of the `valid` levels, until the round is applied: of large results they take more than all else."""
    payloads: dict[int, bytes] = field(default_factory=dict)
    """Of the levels that are here, masked: the bytes that our transport serves, not a copy of them."""
    valid: set[int] = field(default_factory=set)
    """Levels that were unmasked and decoded."""
    served: list[bytes] = field(default_factory=list)
    """Digests of the payloads that our transport serves."""
    bad: set[int] = field(default_factory=set)
    """Levels whose payload is what was committed to and yet no valid encoding."""
    key: bytes = b""
    """What unmasks the payloads; empty while that is not known."""
    told: bytes = b""
    """The announcement that told the key, as it was signed; empty before that."""
    here: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once all levels that we hold are here."""
    opens: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the key is known."""
    late: bool = False
    """Whether this member, as a witness, was closed before it heard of it."""
    broken: bool = False
    """Whether its private state is known not to go on from the result before."""
    fetching: list[asyncio.Task[None]] = field(default_factory=list)
    for_others: list[asyncio.Task[None]] = field(default_factory=list)
    """Those of `fetching` that are done for others alone."""

    def open(self, key: bytes, told: bytes = b"") -> None:
        """Let the payloads be unmasked by the key that the seal names."""
        self.key, self.told = key, told or self.told
        self.opens.set()

    def unmasked(self) -> dict[int, bytes]:
        """The payloads that are valid, as they were encoded."""
        return {level: masked(self.payloads[level], self.key, level) for level in sorted(self.valid)}


class Payloads:
    """Fetches for one member, of the levels it holds."""

    def __init__(
        self, ports: Ports, role: Role, decode: Worker, arrived: Callable[[], None], downloads: int | None = None
    ) -> None:
        """`arrived` is called whenever a level is here; at most `downloads` are fetched at once."""
        self._downloads = Downloads(downloads)
        self._ports, self._role, self._decode, self._arrived = ports, role, decode, arrived
        self._had_by_all: dict[int, tuple[frozenset[int], frozenset[bytes]]] = {}
        """By height: the levels that the witnesses judging it have whoever holds them, and the keys of those known."""
        self._handed_on: dict[int, frozenset[int]] = {}
        """By height: those that this member, as one of these witnesses, has to have and does not hold."""

    def will_be_had(self, height: int, levels: frozenset[int], witnesses: Collection[bytes]) -> None:
        """The witnesses with these keys, and others told before, have these levels of the results of a round, whoever
        holds them.
        """
        _, before = self._had_by_all.get(height, (levels, frozenset()))
        self._had_by_all[height] = levels, before | frozenset(witnesses)

    def hand_on(self, height: int) -> bool:
        """As such a witness have these levels too; whether that is new."""
        if height in self._handed_on:
            return False
        levels, _ = self._had_by_all.get(height, (frozenset(), frozenset()))
        self._handed_on[height] = frozenset(level for level in levels if level < self._role.tier)
        return bool(self._handed_on[height])

    def hand_on_no_more(self, height: int) -> None:
        """As such a witness that has attested: what is not here is fetched for others no more."""
        self._handed_on[height] = frozenset()

    def forget(self, height: int) -> None:
        """Of a round that no replica can need any more."""
        self._had_by_all.pop(height, None)
        self._handed_on.pop(height, None)

    def needed(self, candidate: Candidate) -> list[int]:
        """The levels of a result that this member holds."""
        return [level for level in candidate.said.levels if level >= self._role.tier]

    def for_others(self, candidate: Candidate) -> list[int]:
        """The levels of a result that it does not hold and has to have as a witness."""
        return sorted(self._handed_on.get(candidate.said.height, frozenset()) & candidate.said.levels.keys())

    def complete(self, candidate: Candidate) -> bool:
        """Whether all of it that concerns us is here, valid or not."""
        return not self.missing(candidate)

    def fetched(self, candidate: Candidate) -> bool:
        """Whether all of it that concerns us, or that we have for others, is here, opened or not."""
        concerns = [*self.needed(candidate), *self.for_others(candidate)]
        return all(level in candidate.payloads for level in concerns)

    def whole(self, candidate: Candidate) -> bool:
        """Whether all of it that concerns us is here and valid, and what we have for others is here."""
        return self.complete(candidate) and self.fetched(candidate) and not candidate.bad

    def missing(self, candidate: Candidate) -> list[int]:
        """The levels of it that concern us and are not decoded."""
        return [level for level in self.needed(candidate) if level not in candidate.valid | candidate.bad]

    async def fetch(self, candidate: Candidate, plan: RoundPlan) -> None:
        """Fetch and decode the levels this member holds, until all are there."""
        await every(self._obtain(candidate, level, plan) for level in self.needed(candidate))

    async def fetch_for_others(self, candidate: Candidate, plan: RoundPlan) -> None:
        """Fetch the levels that this member has for others, until all are there; those that it needs itself first."""
        if self.for_others(candidate):
            await candidate.here.wait()
        await every(self._arrive(candidate, level, plan) for level in self.for_others(candidate))

    async def _obtain(self, candidate: Candidate, level: int, plan: RoundPlan) -> None:
        said, seconds = candidate.said, await self._arrive(candidate, level, plan)
        await candidate.opens.wait()
        opened = self._ports.clock.monotonic()
        if not await self._decoded(candidate, level):
            return
        self._ports.events.emit(
            kinds.Fetched(
                height=said.height,
                seat=said.seat,
                level=level,
                seconds=seconds,
                decode_seconds=self._ports.clock.monotonic() - opened,
            )
        )

    async def _arrive(self, candidate: Candidate, level: int, plan: RoundPlan) -> float:
        """Fetch a level; the seconds that the last try took."""
        said, pauses, started = candidate.said, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), self._ports.clock.monotonic()
        while level not in candidate.payloads:
            started = self._ports.clock.monotonic()
            try:
                await self._fetch_level(candidate, level, plan)
            except TransportError as failure:
                if not pauses.at_longest:
                    self._ports.events.emit(kinds.FetchFailed(height=said.height, seat=said.seat, why=str(failure)))
                await self._ports.clock.sleep(pauses.next())
        if all(needed in candidate.payloads for needed in self.needed(candidate)):
            candidate.here.set()
        seconds = self._ports.clock.monotonic() - started
        self._arrived()
        return seconds

    async def _fetch_level(self, candidate: Candidate, level: int, plan: RoundPlan) -> None:
        payload = candidate.said.levels[level]
        patience = _FETCH_SECONDS + payload.size / _SLOWEST_BYTES
        deadline = min(patience, float(self._ports.feed.run.config.max_round_train_time))
        holders = self._holders(candidate.said, level, plan)
        async with self._downloads.turn(candidate.said.sender):
            data = await self._ports.transport.fetch(payload.blake3, payload.size, holders, deadline, keep=True)
        candidate.payloads[level] = data
        candidate.served.append(payload.blake3)

    async def _decoded(self, candidate: Candidate, level: int) -> bool:
        """Unmask and decode a level; whether it is valid."""
        data, key, results = candidate.payloads[level], candidate.key, self._role.schema.results
        device = self._role.device
        try:
            votes = await self._decode(lambda: decode_level(masked(data, key, level), results, level, device))
        except BadPayload as error:
            candidate.bad.add(level)
            self._ports.events.emit(
                kinds.Refused(height=candidate.said.height, seat=candidate.said.seat, why=str(error))
            )
            return False
        candidate.votes[level] = votes
        candidate.valid.add(level)
        return True

    def _holders(self, said: Commitment, level: int, plan: RoundPlan) -> list[bytes]:
        """Who may have this level's payload: its trainer first, then the reachable members that hold the level, or have
        it as witnesses.
        """
        others = {plan.seats[seat].p2p for seat in plan.shares if plan.seats[seat].tier <= level}
        levels, witnesses = self._had_by_all.get(said.height, (frozenset(), frozenset()))
        others |= witnesses if level in levels else frozenset()
        others &= self._ports.transport.reachable()
        return [said.sender, *sorted(others - {said.sender, self._ports.transport.node_id})]
