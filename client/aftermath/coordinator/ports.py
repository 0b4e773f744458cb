"""The Protocols a member's life is written against: a clock, and the coordinator of its run.

(Its third port, to the peers, is `p2p.transport.Transport`.) No module of `member/` reads the wall clock, opens a
socket or draws hidden randomness; everything from outside comes through these.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from aftermath.coordinator.view import View
from aftermath.rules.run import Attestation, Round, RoundId


class Clock(Protocol):
    """Time as a member sees it: seconds of some monotonic clock, real or virtual."""

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Coordinator(Protocol):
    """One member's access to its run. Methods raise `coordinator.errors.Unavailable`, or `Refused` with a reason.

    `views`, and `view` unless it is to be fresh, wait out an outage of several minutes, so that Unavailable from
    them means that the coordinator is gone for good and ends the member. All else gives up after some five seconds
    without an answer, so that nobody hangs on one call; whoever makes it tries again while it matters.
    """

    @property
    def called(self) -> str:
        """What whoever keeps the run is to a person: the chain, or the server."""

    @property
    def keeps_seats(self) -> bool:
        """Whether a member keeps its seat in an epoch after its process has ended without leaving."""

    @property
    def wallet(self) -> bytes:
        """The public key by which this member is known."""

    def costs(self) -> Mapping[str, int]:
        """What talking to the coordinator has cost so far, by name: counters to report, not to decide by."""

    def now(self) -> int:
        """The run's time in unix seconds."""

    def back(self) -> float:
        """When, on the event loop's clock, the coordinator was last reached again after an outage; -inf for never."""

    def views(self) -> AsyncIterator[View]:
        """The newest view at once and after every change; slow readers skip some, they never fail."""

    async def view(self, *, fresh: bool = False) -> View:
        """The newest view that is known; with `fresh` one that was read after this call began."""

    async def attestations(self, round: Round) -> tuple[Attestation, ...]:
        """What the witnesses of a round have stated so far. Refused when it is no longer stored."""

    async def join(self, *, p2p: bytes, tier: int, weight: int, schema_hash: bytes, stateless: bool) -> None:
        """Ask for a place in the next epoch."""

    async def leave(self) -> None:
        """Give up the place in the run."""

    async def tick(self) -> None:
        """Perform the transition that is due."""

    async def warmup_witness(self, seat: int, at: RoundId) -> None:
        """Say that all have the model."""

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
        """Attest, in the round `at`, the results of the round that it judges."""

    async def attest(self, seat: int, at: RoundId, hashes: Mapping[int, bytes]) -> None:
        """State the hashes of levels at the end of an epoch."""

    async def health_check(self, dropped: int) -> None:
        """Report the members (bit mask) whose results no quorum saw."""

    async def prove_equivocation(self, first: bytes, second: bytes) -> None:
        """Show two announcements of one member that contradict each other, which ejects it."""

    async def checkpoint(self, kind: int, repo: str, revision: str, hashes: Sequence[bytes]) -> None:
        """Name a durable checkpoint."""
