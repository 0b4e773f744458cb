"""The payloads of announced results: fetched from any holder, checked, decoded after the reveal.

The schema gives a payload's size before its first byte arrives. The hash is checked before
decoding, which checks the rest. An invalid payload loses the round only for its sender, because all
holders of the level find the same fault in the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from aftermath.base.concurrency import Worker, every
from aftermath.base.rate_limit import Backoff
from aftermath.events import event_types
from aftermath.member.downloads import Downloads
from aftermath.member.ports import Ports, Role
from aftermath.member.round_plan import RoundPlan
from aftermath.optim.codec import BadPayload, decode_level
from aftermath.optim.level_votes import Votes
from aftermath.p2p.transport import TransportError
from aftermath.rules.announcements import Commitment
from aftermath.rules.seal import masked

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_FETCH_SECONDS = 5.0  # of one attempt, plus the time at the rate below
_SLOWEST_BYTES = 200_000


@dataclass
class Candidate:
    """One announced result and its fetched payloads."""

    commitment: Commitment
    raw: bytes
    digest: bytes
    votes: dict[int, Votes] = field(default_factory=dict)
    """Votes of the `valid` levels until the round is applied. They take most of the memory."""
    payloads: dict[int, bytes] = field(default_factory=dict)
    """Masked payloads of the fetched levels, without a copy: our transport serves these bytes."""
    valid: set[int] = field(default_factory=set)
    """Levels that were unmasked and decoded."""
    served: list[bytes] = field(default_factory=list)
    """Digests of the payloads that our transport serves."""
    invalid: set[int] = field(default_factory=set)
    """Levels whose payload matches the commitment but is not a valid encoding."""
    key: bytes = b""
    """Key that unmasks the payloads; empty while unknown."""
    key_announcement: bytes = b""
    """The signed announcement of the key; empty while unknown."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once all levels that this member holds are fetched."""
    revealed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the key is known."""
    late: bool = False
    """Whether this member, as a witness, received the announcement after it closed the round."""
    breaks_chain: bool = False
    """Whether its private state is known not to continue from the last result's."""
    unproven: bool = False
    """Whether its member does not serve the private state of a result drawn for an audit."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    tasks_for_others: list[asyncio.Task[None]] = field(default_factory=list)
    """Tasks of `fetching` that fetch for others only."""

    def reveal(self, key: bytes, raw: bytes = b"") -> None:
        """Unmask the payloads with the key that the seal names."""
        self.key, self.key_announcement = key, raw or self.key_announcement
        self.revealed.set()

    def unmasked(self) -> dict[int, bytes]:
        """Return the valid payloads, unmasked."""
        return {
            level: masked(self.payloads[level], self.key, level) for level in sorted(self.valid)
        }


class Payloads:
    """Fetches the levels that one member holds."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        decode: Worker,
        arrived: Callable[[], None],
        downloads: int | None = None,
    ) -> None:
        """Call `arrived` for each fetched level. Fetch at most `downloads` results at once."""
        self._downloads = Downloads(downloads)
        self._ports = ports
        self._role = role
        self._decode = decode
        self._arrived = arrived
        self._fetched_by_all: dict[int, tuple[frozenset[int], frozenset[bytes]]] = {}
        """Levels that all witnesses fetch (`rules.availability`), and their keys, by height."""
        self._for_others: dict[int, frozenset[int]] = {}
        """Levels that this member, as a witness, fetches only for others, by height."""

    def note_fetched_by_all(
        self, height: int, levels: frozenset[int], witnesses: Collection[bytes]
    ) -> None:
        """Record which levels of a round all its witnesses fetch, and add these witnesses' keys."""
        _, before = self._fetched_by_all.get(height, (levels, frozenset()))
        self._fetched_by_all[height] = levels, before | frozenset(witnesses)

    def start_for_others(self, height: int) -> bool:
        """Start to fetch a round's levels for others. Return whether there are new ones."""
        if height in self._for_others:
            return False
        levels, _ = self._fetched_by_all.get(height, (frozenset(), frozenset()))
        self._for_others[height] = frozenset(level for level in levels if level < self._role.tier)
        return bool(self._for_others[height])

    def stop_for_others(self, height: int) -> None:
        """Stop fetching a round's levels for others, because this witness has attested."""
        self._for_others[height] = frozenset()

    def forget(self, height: int) -> None:
        """Forget a round that no replica needs any more."""
        self._fetched_by_all.pop(height, None)
        self._for_others.pop(height, None)

    def held_levels(self, candidate: Candidate) -> list[int]:
        """Return the levels of a result that this member holds."""
        return [level for level in candidate.commitment.levels if level >= self._role.tier]

    def levels_for_others(self, candidate: Candidate) -> list[int]:
        """Return the levels of a result that this member, as a witness, fetches for others."""
        return sorted(
            self._for_others.get(candidate.commitment.height, frozenset())
            & candidate.commitment.levels.keys()
        )

    def is_decoded(self, candidate: Candidate) -> bool:
        """Return whether all levels that we hold were fetched, valid or not."""
        return not self.undecoded(candidate)

    def is_fetched(self, candidate: Candidate) -> bool:
        """Return whether all levels that we hold or serve were fetched, revealed or not."""
        concerns = [*self.held_levels(candidate), *self.levels_for_others(candidate)]
        return all(level in candidate.payloads for level in concerns)

    def is_valid(self, candidate: Candidate) -> bool:
        """Return whether all held levels are valid, and all levels to serve were fetched."""
        return self.is_decoded(candidate) and self.is_fetched(candidate) and not candidate.invalid

    def undecoded(self, candidate: Candidate) -> list[int]:
        """Return the held levels that are not decoded yet."""
        return [
            level
            for level in self.held_levels(candidate)
            if level not in candidate.valid | candidate.invalid
        ]

    async def fetch(self, candidate: Candidate, plan: RoundPlan) -> None:
        """Fetch and decode the levels that this member holds, until all are done."""
        await every(
            self._fetch_and_decode(candidate, level, plan) for level in self.held_levels(candidate)
        )

    async def fetch_for_others(self, candidate: Candidate, plan: RoundPlan) -> None:
        """Fetch the levels that this member serves, after those that it needs itself."""
        if self.levels_for_others(candidate):
            await candidate.arrived.wait()
        await every(
            self._fetch_until_done(candidate, level, plan)
            for level in self.levels_for_others(candidate)
        )

    # Retry while the chain stores the round. Report only the first failures, because a round may
    # last for hours.
    async def _fetch_and_decode(self, candidate: Candidate, level: int, plan: RoundPlan) -> None:
        commitment = candidate.commitment
        seconds = await self._fetch_until_done(candidate, level, plan)
        await candidate.revealed.wait()
        opened = self._ports.clock.monotonic()
        if not await self._decoded(candidate, level):
            return
        self._ports.events.emit(
            event_types.Fetched(
                height=commitment.height,
                seat=commitment.seat,
                level=level,
                seconds=seconds,
                decode_seconds=self._ports.clock.monotonic() - opened,
            )
        )

    async def _fetch_until_done(self, candidate: Candidate, level: int, plan: RoundPlan) -> float:
        """Fetch a level, with retries. Return the seconds that the last attempt took."""
        commitment = candidate.commitment
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        started = self._ports.clock.monotonic()
        while level not in candidate.payloads:
            started = self._ports.clock.monotonic()
            try:
                await self._fetch_level(candidate, level, plan)
            except TransportError as failure:
                if not pauses.at_longest:
                    self._ports.events.emit(
                        event_types.FetchFailed(
                            height=commitment.height, seat=commitment.seat, why=str(failure)
                        )
                    )
                await self._ports.clock.sleep(pauses.next())
        if all(needed in candidate.payloads for needed in self.held_levels(candidate)):
            candidate.arrived.set()
        seconds = self._ports.clock.monotonic() - started
        self._arrived()
        return seconds

    async def _fetch_level(self, candidate: Candidate, level: int, plan: RoundPlan) -> None:
        payload = candidate.commitment.levels[level]
        patience = _FETCH_SECONDS + payload.size / _SLOWEST_BYTES
        deadline = min(patience, float(self._ports.feed.run.config.max_round_train_time))
        holders = self._holders(candidate.commitment, level, plan)
        async with self._downloads.turn(candidate.commitment.sender):
            data = await self._ports.transport.fetch(
                payload.blake3,
                payload.size,
                holders,
                deadline,
                keep=True,
                author=candidate.commitment.sender,
            )
        candidate.payloads[level] = data
        candidate.served.append(payload.blake3)

    async def _decoded(self, candidate: Candidate, level: int) -> bool:
        """Unmask and decode a level. Return whether it is valid."""
        data = candidate.payloads[level]
        key = candidate.key
        results = self._role.schema.results
        device = self._role.device
        try:
            votes = await self._decode(
                lambda: decode_level(masked(data, key, level), results, level, device)
            )
        except BadPayload as error:
            candidate.invalid.add(level)
            self._ports.events.emit(
                event_types.PeerRefused(
                    height=candidate.commitment.height,
                    seat=candidate.commitment.seat,
                    why=str(error),
                )
            )
            return False
        candidate.votes[level] = votes
        candidate.valid.add(level)
        return True

    def _holders(self, commitment: Commitment, level: int, plan: RoundPlan) -> list[bytes]:
        """Return the peers that may have a payload: its trainer, then reachable holders."""
        others = {plan.seats[seat].p2p for seat in plan.shares if plan.seats[seat].tier <= level}
        levels, witnesses = self._fetched_by_all.get(commitment.height, (frozenset(), frozenset()))
        others |= witnesses if level in levels else frozenset()
        others &= self._ports.transport.reachable()
        return [
            commitment.sender,
            *sorted(others - {commitment.sender, self._ports.transport.node_id}),
        ]
