"""Calls to the chain that must get through: tried again while the run still wants them.

Choices: an unreachable RPC is waited for, with a back-off that doubles up to a few seconds, for as long as the call
still makes sense; a refusal by the program is final, and the caller says which refusals mean "already done".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aftermath.run.errors import ChainRefused, ChainUnavailable
from aftermath.train.ports import Clock

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 4.0


async def persist(
    clock: Clock,
    call: Callable[[], Awaitable[None]],
    *,
    wanted: Callable[[], bool],
    done_if: frozenset[str] = frozenset(),
) -> bool:
    """Make `call` until it succeeds; False if it is no longer `wanted` or is refused with a name in `done_if`.

    Raises ChainRefused for any other refusal.
    """
    pause = _FIRST_PAUSE
    while wanted():
        try:
            await call()
            return True
        except ChainRefused as refused:
            if refused.name in done_if:
                return False
            raise
        except ChainUnavailable:
            await clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    return False
