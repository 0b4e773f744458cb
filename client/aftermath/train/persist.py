"""Calls to the chain that must get through: tried again while the run still wants them.

Choices: an unreachable RPC is waited for, with a back-off that doubles up to a few seconds, for as long as the call
still makes sense; a refusal by the program is final, and the caller says which refusals mean "already done". A refused
duty is a warning: it costs this member's vote, not its life.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aftermath.run.errors import ChainRefused, ChainUnavailable
from aftermath.train.context import Context
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


async def fulfil(
    context: Context,
    duty: str,
    call: Callable[[], Awaitable[None]],
    *,
    wanted: Callable[[], bool],
    done_if: frozenset[str],
) -> bool:
    """`persist` for what a member owes the run: any other refusal is a warning that names the duty, and False."""
    try:
        return await persist(context.clock, call, wanted=wanted, done_if=done_if)
    except ChainRefused as refused:
        context.events.emit("warning", message=f"{duty} was refused: {refused}")
        return False
