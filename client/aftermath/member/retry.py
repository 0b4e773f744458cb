"""Calls to the chain that are retried while the run still wants them.

An unreachable RPC node is retried with a doubling backoff. A refusal by the program is final;
callers list the refusals that mean "already done". A refused duty only emits a warning: this member
loses a vote and continues.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aftermath.base.rate_limit import Backoff
from aftermath.coordinator.errors import SETTLED, Refusal, Refused, Unavailable
from aftermath.coordinator.ports import Clock
from aftermath.events import event_types
from aftermath.member.ports import Ports

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 4.0
_FIRST_WAIT = 5.0  # seconds until a duty with a temporary refusal is retried
_LONGEST_WAIT = 60.0


async def persist(
    clock: Clock,
    call: Callable[[], Awaitable[None]],
    *,
    still_wanted: Callable[[], bool],
    done_if: frozenset[Refusal] = frozenset(),
) -> bool:
    """Retry `call` until it succeeds. Return whether it did.

    Return False if it is no longer `still_wanted`, or if a refusal is in `done_if`. Raises Refused
    for any other refusal.
    """
    pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while still_wanted():
        try:
            await call()
            return True
        except Refused as refused:
            if refused.reason in done_if:
                return False
            raise
        except Unavailable:
            await clock.sleep(pauses.next())
    return False


class Duty:
    """A transaction that a member owes while `still_wanted`. Refusals in `done_if` end the duty."""

    def __init__(
        self,
        ports: Ports,
        name: str,
        *,
        still_wanted: Callable[[], bool],
        done_if: frozenset[Refusal] = SETTLED,
    ) -> None:
        self._ports = ports
        self._name = name
        self._still_wanted = still_wanted
        self._done_if = done_if
        self._waits = Backoff(_FIRST_WAIT, _LONGEST_WAIT)
        self._not_before = float("-inf")
        self._warned = False
        self.refused = False
        """Whether the refusal is final, so that only another state of the run can change it."""

    @property
    def due(self) -> bool:
        """Return whether to try now."""
        return not self.refused and self._ports.clock.monotonic() >= self._not_before

    async def fulfil(self, call: Callable[[], Awaitable[None]]) -> bool:
        """Retry `call` like `persist`. Warn once about another refusal, and return False."""
        try:
            return await persist(
                self._ports.clock, call, still_wanted=self._still_wanted, done_if=self._done_if
            )
        except Refused as refusal:
            if not self._warned:
                self._ports.events.emit(
                    event_types.Warning(message=f"{self._name} was refused: {refusal}")
                )
            self._warned = True
            self.refused = refusal.reason is not Refusal.MAY_PASS
            self._not_before = self._ports.clock.monotonic() + self._waits.next()
            return False

    async def insist(self, call: Callable[[], Awaitable[None]]) -> None:
        """Retry `call` like `fulfil`, and after temporary refusals too."""
        await self.fulfil(call)
        while not self.due and not self.refused and self._still_wanted():
            await self._ports.clock.sleep(self._not_before - self._ports.clock.monotonic())
            await self.fulfil(call)
