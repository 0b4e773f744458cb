"""Calls to the chain that must get through: tried again while the run still wants them.

Choices: an unreachable RPC is waited for, with a back-off that doubles up to a few seconds, for as long as the call
still makes sense; a refusal by the program is final, and the caller says which refusals mean "already done". A refused
duty is a warning: it costs this member's vote, not its life.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aftermath.base.backoff import Backoff
from aftermath.coordinator.errors import SETTLED, Refusal, Refused, Unavailable
from aftermath.coordinator.ports import Clock
from aftermath.member.ports import Ports
from aftermath.watch import kinds

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 4.0
_FIRST_WAIT, _LONGEST_WAIT = 5.0, 60.0  # seconds until a duty is tried again that was refused, though not for good


async def persist(
    clock: Clock,
    call: Callable[[], Awaitable[None]],
    *,
    wanted: Callable[[], bool],
    done_if: frozenset[Refusal] = frozenset(),
) -> bool:
    """Make `call` until it succeeds; False if it is no longer `wanted` or is refused for a reason in `done_if`.

    Raises Refused for any other refusal.
    """
    pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while wanted():
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
    """What a member owes the run while it is `wanted`. Refusals in `done_if` say that it is done, or not its turn."""

    def __init__(
        self, ports: Ports, name: str, *, wanted: Callable[[], bool], done_if: frozenset[Refusal] = SETTLED
    ) -> None:
        self._ports, self._name = ports, name
        self._wanted, self._done_if = wanted, done_if
        self._waits, self._not_before = Backoff(_FIRST_WAIT, _LONGEST_WAIT), float("-inf")
        self._warned = False
        self.refused = False
        """For good: nothing but another state of the run can change it."""

    @property
    def due(self) -> bool:
        """Whether it is worth a try now."""
        return not self.refused and self._ports.clock.monotonic() >= self._not_before

    async def fulfil(self, call: Callable[[], Awaitable[None]]) -> bool:
        """`persist`; any other refusal is a warning that names the duty, said once, and False."""
        try:
            return await persist(self._ports.clock, call, wanted=self._wanted, done_if=self._done_if)
        except Refused as refusal:
            if not self._warned:
                self._ports.events.emit(kinds.Warning(message=f"{self._name} was refused: {refusal}"))
            self._warned = True
            self.refused = refusal.reason is not Refusal.MAY_PASS
            self._not_before = self._ports.clock.monotonic() + self._waits.next()
            return False
