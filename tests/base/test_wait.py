"""Test that cancelled tasks are awaited and none is left running."""

from __future__ import annotations

import asyncio

from aftermath.base.concurrency import cancel


async def test_cancelled_tasks_are_awaited_however_they_end() -> None:
    """One task takes time to clean up, one raises, and one has ended before.

    None delays the others.
    """
    cleaned = []
    begun = asyncio.Event()

    async def tidy() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("not now") from None

    async def quick() -> int:
        return 7

    tasks = {asyncio.ensure_future(one) for one in (tidy(), stubborn())}
    for task in tasks:
        task.add_done_callback(tasks.discard)  # as their owners do
    quick_task = asyncio.ensure_future(quick())
    await begun.wait()
    under_way = list(tasks)
    await cancel([*tasks, quick_task])
    assert cleaned == [True]
    assert all(task.done() for task in under_way)
    assert isinstance(
        next(task for task in under_way if not task.cancelled()).exception(), RuntimeError
    )
    assert quick_task.result() == 7
    await cancel(tasks)
    assert not tasks
