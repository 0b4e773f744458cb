"""The Protocols the pipeline receives: a clock and a chain. (The transport's Protocol is `p2p.transport.Transport`.)

No module of this room reads the wall clock, opens a socket or draws hidden randomness; everything from outside comes
through these.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from aftermath.chain.spend import ChainSpend
from aftermath.run.accounts import Attestation, Members, Model, Round, Run


class Clock(Protocol):
    """Time as the pipeline sees it: seconds of some monotonic clock, real or virtual."""

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Chain(Protocol):
    """One member's view of its run on chain. Methods raise `run.errors.ChainUnavailable` or `ChainRefused`.

    Reads (and `updates`) wait out an outage of several minutes, so ChainUnavailable from them means that the chain
    is gone for good and ends the member. Writes and `run(fresh=True)` give up after some five seconds without an
    answer, so that nobody hangs on one call; whoever makes it tries again while it matters.
    """

    @property
    def wallet(self) -> bytes: ...

    @property
    def spent(self) -> ChainSpend: ...

    def now(self) -> int:
        """Chain time in unix seconds."""

    def back(self) -> float:
        """When, on the event loop's clock, the chain was last reached again after an outage; -inf for never."""

    def updates(self) -> AsyncIterator[Run]:
        """The run's newest state at once and after every change; slow readers skip states, they never fail."""

    async def run(self, *, fresh: bool = False) -> Run: ...

    async def model(self) -> Model: ...

    async def members(self) -> Members: ...

    async def attestations(self, round: Round) -> tuple[Attestation, ...]: ...

    async def join(self, *, p2p: bytes, tier: int, weight: int, schema_hash: bytes, stateless: bool) -> None: ...

    async def leave(self) -> None: ...

    async def tick(self) -> None: ...

    async def warmup_witness(self, slot: int) -> None: ...

    async def witness(
        self,
        slot: int,
        height: int,
        participation: int,
        fingerprints: bytes,
        *,
        step: int,
        loss: float,
        tokens_per_sec: float,
        bytes_per_sec: float,
    ) -> None: ...

    async def attest(self, slot: int, hashes: Mapping[int, bytes]) -> None: ...

    async def health_check(self, dropped: int) -> None: ...

    async def checkpoint(self, kind: int, repo: str, revision: str, hashes: Sequence[bytes]) -> None: ...
