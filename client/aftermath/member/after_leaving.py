"""Find out what a run loses after this member has left it, and save a copy if one is needed.

Members that stop in the same second leave one after another, so the first ones still see the
others. So each member reads the run again until its time for leaving is over. Outside an epoch the
chain does not show who leaves, so they also ask each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from aftermath.base.errors import AftermathError
from aftermath.coordinator.ports import View
from aftermath.events import event_types
from aftermath.events.progress import too_few
from aftermath.member.checkpoint_writer import CheckpointWriter
from aftermath.member.ports import Ports, Role
from aftermath.member.rounds.rounds import Rounds
from aftermath.member.stake import SavedCopy, Stake, UnsavedSteps, has_full_peer
from aftermath.member.unused_copies import protected_copy
from aftermath.p2p.transport import Transport, TransportError
from aftermath.replica.replica import Replica
from aftermath.rules import bitmap, contents, departures
from aftermath.rules.departures import LostLevel, levels_lost
from aftermath.rules.run import Run, steps_before
from aftermath.rules.state import RunState

_READ_SECONDS = 3.0
_PAUSE = 0.2  # seconds between two reads of the run
_SAFE_HOLDERS = 2  # one other holder may have been killed, which the chain notices later
_TOPIC = "leaving"  # a member answers it once it has left the run
_LEAVES = b"\x00"
_SAVES = b"\x01"  # it leaves, and can save a checkpoint
_ANSWER_SECONDS = 0.5
# The states in which members hold the model of the last epoch.
_BETWEEN = (RunState.WAITING_FOR_MEMBERS, RunState.WARMUP, RunState.PAUSED)


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
        record: Callable[[Run, Replica, Path], Awaitable[None]],
    ) -> None:
        """`has_attested`: whether this member has attested the model in the run's cooldown.

        `record` records a saved model on chain if all its levels are attested.
        """
        self._ports = ports
        self._role = role
        self._checkpoints = checkpoints
        self._unsaved = unsaved
        self._has_attested = has_attested
        self._record = record
        self._peers = _LeavingPeers(ports.transport)
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
        self._peers.answer(saves=self._checkpoints.directory is not None)
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
        """Return the current view without this member, or None if the run has moved on.

        The view is of the same epoch, or of the same time between two epochs.
        """
        try:
            async with asyncio.timeout(_READ_SECONDS):
                view = await self._ports.coordinator.view(fresh=True)
        except (AftermathError, TimeoutError):
            return None
        run = view.run
        before = self._ports.feed.run
        same = (run.epoch, run.epoch_started_at) == (before.epoch, before.epoch_started_at)
        if not same or not (run.active or run.state in _BETWEEN):
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
            return lost if run.active else None  # a checkpoint was recorded meanwhile
        if run.state in _BETWEEN:
            return await self._judge_between(view, departed, lost, step=step, steps=steps)
        seat = members.find(self._ports.coordinator.wallet)
        silent = 0 if seat is None or self._has_attested(run) else 1 << seat
        levels = levels_lost(run, members, silent=silent)
        is_lost = any(one.level >= self._role.tier for one in levels)
        few_stay = departures.full_holders(members, self._role.tier) < _SAFE_HOLDERS
        if is_lost or (few_stay and not self._is_attested(run)):
            await self._save_copy(departed.replica, run, step)
        if is_lost:
            lost = self._stake(view, levels, others_continue=members.healthy != 0)
        return self._counted(view, lost, steps)

    async def _judge_between(
        self, view: View, departed: Departed, lost: Stake | None, *, step: int, steps: int
    ) -> Stake | None:
        """Return what is lost if no member stays that finished the last epoch with these levels."""
        run = view.run
        members = view.members
        seat = members.find(self._ports.coordinator.wallet)
        if seat is None:
            return lost
        others = bitmap.seats(contents.holders(run, members) & ~(1 << seat))
        staying = await self._peers.staying(
            (members.seats[other].p2p for other in others),
            # Two members that can save must not both rely on the other one.
            with_savers=self._checkpoints.directory is None,
        )
        levels = contents.sole_levels(run, members, seat, staying)
        if levels:
            await self._save_copy(departed.replica, run, step)
            if contents.unsaved_steps(run, self._ports.feed.model) == 0:
                return None  # this member recorded its checkpoint
            lost_levels = [LostLevel(level, 0, 0) for level in levels]
            lost = self._stake(view, lost_levels, others_continue=bool(staying))
        return self._counted(view, lost, steps)

    def _counted(self, view: View, lost: Stake | None, steps: int) -> Stake | None:
        """Return a loss with its number of steps and with the copy of them."""
        copied = 0
        if self._copy is not None:
            copied = self._unsaved.count(view.run, view.model, step=self._copy.step)
        return lost and replace(lost, steps=steps, copy=self._copy, copied=copied)

    def _stake(self, view: View, levels: list[LostLevel], *, others_continue: bool) -> Stake:
        return Stake(
            steps=0,  # see `_counted`
            levels=[one.level for one in levels],
            saves=self._checkpoints.directory is not None,
            goes_back=True,
            others_continue=others_continue,
            checkpoint_step=steps_before(view.model.checkpoint_step),
            has_commands=self._ports.coordinator.has_tick,
            reason=too_few(levels) if any(one.left for one in levels) else "",
            is_lost_already=True,
            is_pausing=view.run.pending_pause,
            has_full_peer=has_full_peer(view, self._ports.coordinator.wallet),
            is_between_epochs=not view.run.active,
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
        model_run = replace(run, step=step + 1)
        path = await self._checkpoints.save_now(model_run, replica)
        if path is None:
            return
        continues = False
        if run.state in _BETWEEN:
            await self._record(model_run, replica, path)
            continues = contents.unsaved_steps(model_run, self._ports.feed.model) == 0
        if not continues:
            self._copy = SavedCopy(path, step)
        self._ports.events.emit(event_types.Stopped(step=step, path=str(path), continues=continues))


class _LeavingPeers:
    """Tells other members that this one leaves, and asks them whether they do too."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def answer(self, *, saves: bool) -> None:
        """Answer from now on that this member leaves, and whether it can save a checkpoint."""

        async def answer(peer: bytes, body: bytes) -> bytes:
            del peer, body
            return _SAVES if saves else _LEAVES

        self._transport.handle(_TOPIC, answer)

    async def staying(self, peers: Iterable[bytes], *, with_savers: bool) -> frozenset[bytes]:
        """Return those of the peers that are connected and do not leave the run.

        `with_savers`: also those that leave and can save a checkpoint first.
        """
        asked = sorted(self._transport.reachable() & frozenset(peers))
        answers = await asyncio.gather(*(self._ask(peer) for peer in asked))
        without = (_LEAVES,) if with_savers else (_LEAVES, _SAVES)
        answered = zip(asked, answers, strict=True)
        return frozenset(peer for peer, answer in answered if answer not in without)

    async def _ask(self, peer: bytes) -> bytes:
        """Return a peer's answer. It is empty if the peer stays."""
        try:
            return await self._transport.request(
                peer, _TOPIC, b"", max_reply=1, deadline_s=_ANSWER_SECONDS
            )
        except TransportError:
            return b""


def _nothing_left_to_lose(view: View, lost: Stake | None) -> bool:
    """Return whether further departures cannot add to the loss."""
    if lost is not None and len(lost.levels) == view.run.levels:
        return True
    return view.run.active and not view.members.healthy
