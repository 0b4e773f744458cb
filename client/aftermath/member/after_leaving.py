"""Find out what a run loses after this member has left it, and save a copy if one is needed.

Members that stop in the same second leave one after another, so the first ones still see the others
in the epoch. So each member reads the run again until its time for leaving is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from aftermath.base.errors import AftermathError
from aftermath.coordinator.ports import View
from aftermath.events import event_types
from aftermath.events.progress import too_few
from aftermath.member.checkpoint_writer import CheckpointWriter
from aftermath.member.ports import Ports, Role
from aftermath.member.rounds.rounds import Rounds
from aftermath.member.stake import SavedCopy, Stake, UnsavedSteps, has_full_peer
from aftermath.member.unused_copies import protected_copy
from aftermath.replica.replica import Replica
from aftermath.rules import bitmap, departures
from aftermath.rules.departures import LostLevel, levels_lost
from aftermath.rules.run import Run, steps_before
from aftermath.rules.state import RunState

_READ_SECONDS = 3.0
_PAUSE = 0.2  # seconds between two reads of the run
_SAFE_HOLDERS = 2  # one other holder may have been killed, which the chain notices later


@dataclass(frozen=True)
class Departed:
    """A member that has left: its replica and what it knew when it left."""

    replica: Replica
    rounds: Rounds | None
    step: int
    """Trained steps in the replica, used if `rounds` is None."""
    lost: Stake | None
    """What the member knew to be lost before it left."""
    copy: SavedCopy | None
    """The copy that it saved before it left, if the run does not use it."""


class AfterLeaving:
    """Watches a run for a short time after this member has left it."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        checkpoints: CheckpointWriter,
        unsaved: UnsavedSteps,
        has_attested: Callable[[Run], bool],
    ) -> None:
        """`has_attested`: whether this member has attested the model in the run's cooldown."""
        self._ports = ports
        self._role = role
        self._checkpoints = checkpoints
        self._unsaved = unsaved
        self._has_attested = has_attested
        self._copy: SavedCopy | None = None
        self._has_tried = False  # whether it tried to save a copy

    async def loss(self, departed: Departed, *, seconds: float) -> Stake | None:
        """Return what the run loses, as far as this shows within `seconds`.

        Read the run at least once, and again after a copy was saved. Save a copy if the run loses
        levels of this member, or if at most one member stays that has them all.
        """
        clock = self._ports.clock
        end = clock.monotonic() + seconds
        lost = departed.lost
        self._copy = departed.copy
        self._has_tried = departed.copy is not None
        while (view := await self._view()) is not None:
            had_tried = self._has_tried
            lost = await self._judge(view, departed, lost)
            remaining = end - clock.monotonic()
            has_just_saved = self._has_tried and not had_tried  # the save may have taken long
            if _nothing_left_to_lose(view, lost) or (remaining <= 0 and not has_just_saved):
                break
            await clock.sleep(min(_PAUSE, max(0.0, remaining)))
        if lost is not None and self._copy is not None:
            protected_copy(self._copy.path, has_commands=self._ports.coordinator.has_tick)
        return lost

    async def _view(self) -> View | None:
        """Return the current view without this member, or None if its epoch is over."""
        try:
            async with asyncio.timeout(_READ_SECONDS):
                view = await self._ports.coordinator.view(fresh=True)
        except (AftermathError, TimeoutError):
            return None
        run = view.run
        before = self._ports.feed.run
        same = (run.epoch, run.epoch_started_at) == (before.epoch, before.epoch_started_at)
        if not same or not (run.state.training or run.state is RunState.COOLDOWN):
            return None
        seat = view.members.find(self._ports.coordinator.wallet)
        if seat is not None and bitmap.contains(view.members.healthy, seat):
            # Its `leave_run` did not arrive. The others will drop it.
            return replace(view, members=departures.left(run, view.members, 1 << seat))
        return view

    async def _judge(self, view: View, departed: Departed, lost: Stake | None) -> Stake | None:
        """Return what is lost according to this view. Save a copy if one is needed."""
        run = view.run
        members = view.members
        step = departed.step
        if departed.rounds is not None:
            await departed.rounds.finish_apply()
            step = departed.rounds.step
        reached = max(step, departures.reached_steps(run))
        steps = self._unsaved.count(run, view.model, step=reached)
        if steps <= 0:
            return lost
        seat = members.find(self._ports.coordinator.wallet)
        silent = 0 if seat is None or self._has_attested(run) else 1 << seat
        levels = levels_lost(run, members, silent=silent)
        is_lost = any(one.level >= self._role.tier for one in levels)
        few_stay = departures.full_holders(members, self._role.tier) < _SAFE_HOLDERS
        if is_lost or (few_stay and not self._is_attested(run)):
            await self._save_copy(departed.replica, run, step)
        copied = (
            0 if self._copy is None else self._unsaved.count(run, view.model, step=self._copy.step)
        )
        if is_lost:
            lost = self._stake(view, levels)
        return lost and replace(lost, steps=steps, copy=self._copy, copied=copied)

    def _stake(self, view: View, levels: list[LostLevel]) -> Stake:
        return Stake(
            steps=0,  # the caller counts them
            levels=[one.level for one in levels],
            saves=self._checkpoints.directory is not None,
            goes_back=True,
            others_continue=view.members.healthy != 0,
            checkpoint_step=steps_before(view.model.checkpoint_step),
            has_commands=self._ports.coordinator.has_tick,
            reason=too_few(levels) if any(one.left for one in levels) else "",
            is_lost_already=True,
            is_pausing=view.run.pending_pause,
            has_full_peer=has_full_peer(view, self._ports.coordinator.wallet),
        )

    def _is_attested(self, run: Run) -> bool:
        """Return whether all levels of this member are attested in the cooldown."""
        attested = [bitmap.contains(run.levels_attested, level) for level in self._role.levels]
        return run.state is RunState.COOLDOWN and all(attested)

    async def _save_copy(self, replica: Replica, run: Run, step: int) -> None:
        """Save a copy if this member has a directory. A failure is a warning, and is final."""
        if self._checkpoints.directory is None or self._has_tried:
            return
        self._has_tried = True
        path = await self._checkpoints.save_now(replace(run, step=step + 1), replica)
        if path is None:
            return
        self._copy = SavedCopy(path, step)
        self._ports.events.emit(event_types.Stopped(step=step, path=str(path), continues=False))


def _nothing_left_to_lose(view: View, lost: Stake | None) -> bool:
    """Return whether further departures cannot add to the loss."""
    return not view.members.healthy or (lost is not None and len(lost.levels) == view.run.levels)
