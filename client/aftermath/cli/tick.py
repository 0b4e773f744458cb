"""`tick`: advance a run by hand, once or again and again.

Decided: without --count it goes on where nothing is due either, since it may be what keeps a run going that is resumed
or joined only later. With --count it ends at once where only the run's owner can move it. What a run waits for is said
once, and again when that is another state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.base.counted import counted
from aftermath.cli.command import command
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import Result, note

if TYPE_CHECKING:
    from aftermath.watch.standing import Standing


@command("tick", example="aftermath-solana tick --run-id demo --ms-interval 1000 --count 10")
async def tick(
    options: SigningOptions,
    run_id: RunId,
    ms_interval: Annotated[int, typer.Option(min=1, help="Milliseconds between two ticks.")] = 1000,
    count: Annotated[int | None, typer.Option(min=1, help="How many ticks to try; without it, until Ctrl-C.")] = None,
) -> Result:
    """Advance a run whose deadline has passed.

    Members do this by themselves; a tick by hand helps a run that nobody attends. Nothing is paid for a tick that
    changes nothing. What the run waits for where nothing is due is said once; without --count the ticks go on all the
    same, until something is. With it they end where only the run's owner can move the run: if it is new, paused or
    finished.
    """
    import asyncio

    from aftermath.cli.connection import sign_in
    from aftermath.coordinator.errors import Refused
    from aftermath.observe.following import RunFollower
    from aftermath.watch.phase import in_words

    tried, landed, last = 0, [], ""
    async with sign_in(options) as chain:
        await chain.coordinator.run(run_id)  # says so if there is no such run
        follower = RunFollower(chain.coordinator, run_id)
        if count is None:
            note(f"ticking run {run_id} every {ms_interval} ms until Ctrl-C")
        while count is None or tried < count:
            if tried:
                await asyncio.sleep(ms_interval / 1000)
            tried += 1
            try:
                landed.append(str(await chain.coordinator.tick(run_id)))
            except Refused as error:
                if error.name != "NothingToTick":
                    raise
                found = await follower.now()
                if (waits := _waits(found)) != last:
                    note(not_due(found))
                last = waits
                if count is not None and found.state.halted:
                    break
                continue
            note(f"tick {tried}: {in_words((await chain.coordinator.run(run_id)).state)}")
        run = await chain.coordinator.run(run_id)
    state = run.state.name.lower()
    data = {
        "run_id": run_id,
        "tried": tried,
        "signatures": landed,
        "state": state,
        "epoch": run.epoch,
        "step": run.trained_steps,
    }
    return Result(
        data, f"{len(landed)} of {counted(tried, 'tick')} changed run {run_id}, which is now {in_words(run.state)}"
    )


def not_due(found: Standing) -> str:
    """Why a tick has changed nothing, as a sentence."""
    from aftermath.watch.progress import span
    from aftermath.watch.standing_words import line

    when = "while no time runs" if found.deadline is None else "yet"
    if found.deadline is not None and found.deadline > 0:
        when = f"for {span(found.deadline)}"
    return f"nothing is due {when}: {line(found)}"


def _waits(found: Standing) -> str:
    """What tells one wait of a run from another; while time runs, a keeper has nothing to say of each round."""
    return f"{found.state.name} {found.epoch}" if found.deadline is None else "time"
