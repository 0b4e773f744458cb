"""The interfaces that a member is written against: a clock, the coordinator of its run, its views.

The interface to its peers is `p2p.transport.Transport`. Modules of `member/` read no wall clock,
open no socket and draw no hidden randomness: all of it comes through these interfaces.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aftermath.rules.audits import Case
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Attestation, Round, RoundId, Run


@dataclass(frozen=True, slots=True)
class View:
    """A run, its members and its model at one moment.

    No decision mixes newer members with an older run.
    """

    run: Run
    members: Members
    model: Model


class Clock(Protocol):
    """Time as a member sees it: seconds of some monotonic clock, real or virtual."""

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Coordinator(Protocol):
    """One member's access to its run. Methods raise `coordinator.errors.Unavailable`, or `Refused`
    with a reason.

    `views`, and `view` without `fresh`, wait out an outage of several minutes: Unavailable from
    them ends the member. All other calls give up after about five seconds without an answer, and
    the caller retries while the call still matters.
    """

    @property
    def display_name(self) -> str:
        """The coordinator's name in messages: the chain, or the server."""

    @property
    def keeps_seats(self) -> bool:
        """Whether a member keeps its seat in an epoch if its process ends without leaving."""

    @property
    def has_tick(self) -> bool:
        """Whether a command can advance an overdue run (`tick`)."""

    @property
    def wallet(self) -> bytes:
        """The public key of this member."""

    def costs(self) -> Mapping[str, int]:
        """Counters of what the coordinator has cost so far, by name. For reports only."""

    def now(self) -> int:
        """The run's time in unix seconds."""

    def last_outage_end(self) -> float:
        """When the last outage of the coordinator ended, in the event loop's time. -inf if there
        was none.
        """

    def views(self) -> AsyncIterator[View]:
        """Yield the newest view at once and after every change. Slow readers miss some."""

    async def view(self, *, fresh: bool = False) -> View:
        """Return the newest known view; with `fresh`, one that is read after this call began."""

    async def attestations(self, round: Round) -> tuple[Attestation, ...]:
        """Return what the witnesses of a round have attested. Raises Refused if it is no longer
        stored.
        """

    async def join(
        self, *, p2p: bytes, tier: int, weight: int, schema_hash: bytes, stateless: bool
    ) -> None:
        """Ask for a seat in the next epoch. Raises Unavailable and Refused.

        `p2p` is the 32-byte public key of the member's endpoint, `weight` its speed in sequences
        per minute. `schema_hash` has 32 bytes. A `stateless` member holds no replica.
        """

    async def leave(self) -> None:
        """Give up the seat in the run."""

    async def tick(self) -> None:
        """Perform the transition that is due."""

    async def warmup_witness(self, seat: int, at: RoundId) -> None:
        """Report, as an elected member, that this member has the model."""

    async def witness(
        self,
        seat: int,
        at: RoundId,
        participation: int,
        fingerprints: bytes,
        *,
        step: int,
        loss: float,
        tokens_per_sec: float,
        bytes_per_sec: float,
    ) -> None:
        """Attest, as a witness of the round `at`, the results of the round that it judges.

        `participation` is a bit mask of seats. `fingerprints` has 320 bytes. `loss` is in nats per
        token.
        """

    async def attest(self, seat: int, at: RoundId, hashes: Mapping[int, bytes]) -> None:
        """State the 32-byte hash of each level, by level, at the end of an epoch."""

    async def health_check(self, dropped: int) -> None:
        """Report the members (bit mask of seats) whose results a quorum of the witnesses did not
        record.
        """

    async def cases(self) -> tuple[Case, ...]:
        """Return the cases about audited results in the running epoch. Some may be closed."""

    async def verify(self, seat: int, at: RoundId, *, target: int, mismatch: bool) -> None:
        """State whether the result of `target` in the round `at` differs from its replay.

        A mismatch by its auditor opens a case. All other statements are votes on an open case.
        """

    async def prove_equivocation(self, first: bytes, second: bytes) -> None:
        """Submit two announcements of one member that contradict each other. This ejects the
        member.
        """

    async def checkpoint(
        self, kind: int, repo: str, revision: str, hashes: Sequence[bytes]
    ) -> None:
        """Record a durable checkpoint.

        `kind` is a `CheckpointKind`. `hashes` has 32 bytes for each level, in ascending order.
        """
