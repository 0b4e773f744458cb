"""`tick`: advance a run by hand, once or again and again, while a deadline runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.base.text import counted
from aftermath.cli.command import command
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import Result, note

if TYPE_CHECKING:
    from aftermath.events.status import Standing


@command("tick", example="aftermath-solana tick --run-id demo --ms-interval 1000 --count 10")
async def tick(
    options: SigningOptions,
    run_id: RunId,
    ms_interval: Annotated[int, typer.Option(min=1, help="Milliseconds between two ticks.")] = 1000,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many ticks. By default, no limit.")] = None,
) -> Result:
    """Advance a run whose deadline has passed.

    Members tick by themselves. A manual tick helps a run without active members. A tick that changes nothing costs
    nothing. The command ends, and says what the run waits for, when no deadline runs: the run is new, paused or
    finished, or waits for members. Only its owner or a member can move it then.
    """
    import asyncio

    from aftermath.cli.connection import sign_in
    from aftermath.coordinator.errors import Refused
    from aftermath.events.progress import in_words
    from aftermath.events.status import line
    from aftermath.ui.web.follower import RunFollower

    tried = 0
    landed: list[str] = []
    told = False
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
                if found.deadline is None:  # a member that joins ticks by itself, so nobody needs this command then
                    note(f"no tick can change run {run_id} now: {line(found)}")
                    break
                if not told:  # once, not in each round
                    note(not_due(found))
                told = True
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
    """Return why a tick has changed nothing while a deadline runs, as a sentence."""
    from aftermath.events.progress import span
    from aftermath.events.status import line

    left = found.deadline or 0
    return f"nothing is due {f'for {span(left)}' if left > 0 else 'yet'}: {line(found)}"
