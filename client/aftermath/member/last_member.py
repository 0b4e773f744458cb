"""Save the model of the last member of an epoch when it is stopped, and resume from it.

The chain records checkpoints of attested models only. So a last member that is stopped in an epoch
keeps its seat. After a restart it waits for the epoch's deadline and attests the saved model. It
trains no round of that epoch again, because a second result counts as equivocation. A member that
is stopped between epochs records the attested model before it leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from aftermath.base.errors import AftermathError
from aftermath.base.rate_limit import Backoff
from aftermath.coordinator.ports import View
from aftermath.events import event_types
from aftermath.events.progress import levels_named, too_few
from aftermath.member.after_leaving import AfterLeaving, Departed
from aftermath.member.checkpoint_writer import CheckpointWriter
from aftermath.member.ports import Desync, Ports, Role, Workers
from aftermath.member.rounds.rounds import Rounds
from aftermath.member.stake import SAVE_SECONDS, SavedCopy, Stake, UnsavedSteps, has_full_peer
from aftermath.member.unfinished_epoch import (
    UnfinishedEpoch,
    read_unfinished,
    unfinished_path,
    write_unfinished,
)
from aftermath.member.unused_copies import protected_copy
from aftermath.replica.origin import Origin
from aftermath.replica.replica import Replica
from aftermath.rules import committee, contents
from aftermath.rules.contents import sole_levels, unsaved_steps
from aftermath.rules.deadlines import becomes_last_member, rounds_end
from aftermath.rules.departures import levels_lost, levels_lost_with
from aftermath.rules.members import Members
from aftermath.rules.model import Checkpoint, Model
from aftermath.rules.run import Run, steps_before
from aftermath.rules.state import CheckpointKind, MemberState, RunState

_FIRST_RETRY = 1.0
_LONGEST_RETRY = 15.0  # seconds
_CATCH_UP_SECONDS = SAVE_SECONDS / 2  # the rest is for the file and its record
_ATTEST_SECONDS = SAVE_SECONDS / 8
_RECORD_SECONDS = SAVE_SECONDS / 4
_LEAVES_LAST_SECONDS = 0.8  # Ctrl-C leaves within two seconds, and leaving itself takes the rest
_LEAVES_LAST_POLL = 0.2  # seconds


class LastMember:
    """Saves the model of a member that is stopped as the last holder, and resumes from it."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        workers: Workers,
        checkpoints: CheckpointWriter,
        origin: Origin,
    ) -> None:
        self._ports = ports
        self._role = role
        self._workers = workers
        self._checkpoints = checkpoints
        self._origin = origin
        self.stays = False
        """Whether the member keeps its seat after its process ends."""
        self._resumed: UnfinishedEpoch | None = None
        self._has_saved = False  # whether it saved when it was stopped
        self._copy: SavedCopy | None = None  # what it saved then, if the run does not use it
        self._attested_epoch: tuple[int, int] | None = None  # number and start of the epoch
        self._is_cut_off = False  # whether the coordinator did not answer then
        self.will_attest = False
        """Whether the member is about to attest the saved model of an epoch that it resumed."""
        self.unsaved = UnsavedSteps()
        self._after_leaving = AfterLeaving(
            ports, role, checkpoints, self.unsaved, self._has_attested, self._record
        )

    def stake(
        self, seat: int | None, replica: Replica | None, model: Model | None = None
    ) -> Stake | None:
        """Return what would be lost if this member left now, or None.

        `model`: a newer model account than the feed's.
        """
        run = self._ports.feed.run
        members = self._ports.feed.members
        model = model or self._ports.feed.model
        steps = self.unsaved.count(run, model)
        if seat is None or replica is None or steps <= 0:
            return None
        reachable = self._ports.transport.reachable()
        attested = self._has_attested(run)
        lost = levels_lost_with(run, members, seat, reachable, has_attested=attested)
        if not lost:
            return None
        is_finished = run.state is RunState.FINISHED
        others = contents.holders(run, members) & ~(1 << seat)
        sole = sole_levels(run, members, seat, reachable)
        levels = [one.level for one in lost]
        copied = 0
        if self._copy is not None:
            copied = self.unsaved.count(run, model, step=self._copy.step)
        return Stake(
            steps,
            levels,
            saves=self._checkpoints.directory is not None,
            # The model is attested and kept only if this member keeps its seat.
            goes_back=not self.stays and not is_finished,
            # Without an answer, the members of the last view may have left too.
            others_continue=others != 0 and not self._is_cut_off,
            checkpoint_step=steps_before(model.checkpoint_step),
            copy=self._copy,
            copied=copied,
            has_commands=self._ports.coordinator.has_tick,
            is_finished=is_finished,
            reason="" if set(levels) <= set(sole) else too_few(lost),
            is_lost_already=set(levels) <= {one.level for one in levels_lost(run, members)},
            is_pausing=run.pending_pause,
            has_full_peer=has_full_peer(self._ports.feed.view, self._ports.coordinator.wallet),
            saves_only_copy=self._saves_only_copy(run, others),
            is_between_epochs=not run.active,
        )

    def _saves_only_copy(self, run: Run, others: int) -> bool:
        """Return whether the run does not use what this member saves, because `others` stay."""
        if self._checkpoints.directory is None or not others or not run.active:
            return False
        every = (1 << run.levels) - 1
        return run.state.training or run.levels_attested != every

    # --- being stopped ----------------------------------------------------------------------------

    async def wait_until_last(self, seat: int) -> None:
        """Let members that stop at the same moment leave first. Wait at most 0.8 s.

        Only one member waits (see `becomes_last_member`). If it is the last one afterwards, `stake`
        says so.
        """
        run = self._ports.feed.run
        if (
            self._checkpoints.directory is None
            or not self._ports.coordinator.keeps_seats
            or self.unsaved_steps() <= 0
            or not becomes_last_member(
                run, self._ports.feed.members, seat, self._ports.transport.reachable()
            )
        ):
            return
        end = self._ports.clock.monotonic() + _LEAVES_LAST_SECONDS
        with contextlib.suppress(AftermathError, TimeoutError):
            async with asyncio.timeout(_LEAVES_LAST_SECONDS):
                while self._ports.clock.monotonic() < end:
                    await self._ports.clock.sleep(_LEAVES_LAST_POLL)
                    view = await self._ports.coordinator.view(fresh=True)
                    await self._ports.feed.put(view)
                    if _alone(view.members, seat):
                        return

    async def save(
        self,
        seat: int,
        replica: Replica,
        rounds: Rounds | None,
        retry: Callable[[bool], bool],
        *,
        step: int,
    ) -> None:
        """Save the model. `step`: trained steps in the replica, used if `rounds` is None.

        If the last step's results cannot be fetched, save the state before that step. After each
        try, call `retry(saved)`. After a failure, try again if it returns True. If the user ends
        these tries, try once more, because there may be space now.
        """
        pauses = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        try:
            while True:
                saved = await self._saved(seat, replica, rounds, step)
                if not retry(saved) or saved:
                    return
                await self._ports.clock.sleep(pauses.next())
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None:
                task.uncancel()  # see `Member.live`
            retry(await self._saved(seat, replica, rounds, step))
            raise

    async def _saved(self, seat: int, replica: Replica, rounds: Rounds | None, step: int) -> bool:
        """Try to save the model. Return False after a warning if that fails."""
        try:
            async with asyncio.timeout(SAVE_SECONDS):
                return await self._save(seat, replica, rounds, step)
        except (AftermathError, OSError, TimeoutError) as error:
            self._warn(f"the model was not saved: {error or 'it took too long'}")
            return False

    async def _save(self, seat: int, replica: Replica, rounds: Rounds | None, step: int) -> bool:
        if rounds is not None:
            await self._finish_attestation(rounds)
        view = await self._newest_view()
        self._is_cut_off = view is None
        view = view or self._ports.feed.view
        run = view.run
        directory = self._checkpoints.directory
        in_rounds = False
        if rounds is not None:
            await rounds.finish_apply()
            in_rounds = await self._caught_up(rounds, run) and rounds.are_of(run)
            step = rounds.step
        model_run = replace(run, step=step + 1)
        checkpoint = await self._checkpoints.save_now(model_run, replica)
        if checkpoint is None or directory is None:
            return False
        self.stays = (
            in_rounds
            # Without an answer, this member cannot leave either. `stake` found no other member.
            and (self._is_cut_off or _alone(view.members, seat))
            and self._ports.coordinator.keeps_seats
            and committee.attests_alone(run, view.members, seat)
        )
        if self.stays:
            unfinished = UnfinishedEpoch(
                run.epoch, run.epoch_started_at, step, str(checkpoint.absolute())
            )
            write_unfinished(self._unfinished_path(directory, run), unfinished)
        else:
            await self._record(model_run, replica, checkpoint)
        self._has_saved = True
        continues = self.stays or unsaved_steps(model_run, self._ports.feed.model) == 0
        if not continues:
            self._copy = SavedCopy(checkpoint, step)
            self._protected(checkpoint)
        self._ports.events.emit(
            event_types.Stopped(step=step, path=str(checkpoint), continues=continues)
        )
        return True

    async def _record(self, run: Run, replica: Replica, checkpoint: Path) -> None:
        """Record a saved model if all its levels are attested, and read the run again."""
        hashes = await self._workers.compute(replica.hashes)
        try:
            async with asyncio.timeout(_RECORD_SECONDS):
                # The feed has stopped, but `stake` must see checkpoints that were recorded since.
                await self._ports.feed.put(await self._ports.coordinator.view(fresh=True))
                if contents.attested(self._ports.feed.run) == hashes:
                    await self._checkpoints.record_now(run, hashes, checkpoint)
                    await self._ports.feed.put(await self._ports.coordinator.view(fresh=True))
        except (AftermathError, TimeoutError) as error:
            why = str(error).partition("\n")[0] or f"no answer for {_RECORD_SECONDS:.0f} s"
            self._warn(
                f"cannot record the saved model on {self._ports.coordinator.display_name}: {why}"
            )

    async def _newest_view(self) -> View | None:
        """Return the coordinator's current view, or None if reading it fails."""
        with contextlib.suppress(AftermathError):
            return await self._ports.coordinator.view(fresh=True)
        return None

    async def _caught_up(self, rounds: Rounds, run: Run) -> bool:
        """Apply all decided rounds. Warn and return False if a round's results cannot be fetched.

        The replica then has the state before that round.
        """
        try:
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                await rounds.catch_up(run)
        except (AftermathError, Desync, TimeoutError) as error:
            await rounds.finish_apply()
            why = str(error).partition("\n")[0] or f"no answer for {_CATCH_UP_SECONDS:.0f} s"
            self._warn(
                f"cannot fetch the last results ({why}): this member saves step {rounds.step}"
            )
            return False
        return True

    async def _finish_attestation(self, rounds: Rounds) -> None:
        """Settle an attestation that was in flight when this member was stopped.

        Wait at most `_ATTEST_SECONDS` for the coordinator's answer. If it counted the attestation
        after `_newest_view`, the epoch would end with one more step than the saved model has.
        """
        with contextlib.suppress(AftermathError, TimeoutError):
            async with asyncio.timeout(_ATTEST_SECONDS):
                await rounds.finish_attestation()

    def unsaved_steps(self) -> int:
        """Return how many trained steps of the replica are not in the newest checkpoint."""
        return self.unsaved.count(self._ports.feed.run, self._ports.feed.model)

    async def loss_after_leaving(
        self,
        replica: Replica,
        rounds: Rounds | None,
        lost: Stake | None,
        *,
        step: int,
        seconds: float,
    ) -> Stake | None:
        """Return what the run loses after this member has left it (see `AfterLeaving`).

        `lost`: what this member knew to be lost. `step`: see `save`. `seconds`: how long it watches
        the run.
        """
        if self._has_saved and self._copy is None:
            return lost  # the run continues from what it saved
        departed = Departed(replica, rounds, step, lost, self._copy)
        return await self._after_leaving.loss(departed, seconds=seconds)

    # --- falling out of an epoch ------------------------------------------------------------------

    async def keep_copy(self, seat: int, replica: Replica, step: int) -> None:
        """Save this member's model, after `step` steps, when it falls out of its epoch.

        Do nothing if another member has all of the model. The chain cannot name the copy: nobody
        attests it, and the run continues from older levels.
        """
        view = self._ports.feed.view
        run = view.run
        everyone = {seat_entry.p2p for seat_entry in view.members.seats}
        levels = sole_levels(run, view.members, seat, everyone)
        if (
            self._checkpoints.directory is None
            or not levels
            or self.unsaved.count(run, view.model, step=step) <= 0
        ):
            return
        checkpoint = await self._checkpoints.save_now(replace(run, step=step + 1), replica)
        if checkpoint is not None:
            self._warn(
                f"this member alone had {levels_named(levels)} of the model, and fell out at step "
                f"{step}: the run continues "
                f"without that training\n{self._protected(checkpoint)}"
            )

    def _protected(self, copy: Path) -> str:
        """Protect a copy that the run does not use, and return sentences about it."""
        return protected_copy(copy, has_commands=self._ports.coordinator.has_tick)

    # --- coming back ------------------------------------------------------------------------------

    def find_unfinished(self) -> UnfinishedEpoch | None:
        """Return the unfinished epoch that this member saved, if the run is still in it.

        Remove the file of an older one.
        """
        run = self._ports.feed.run
        directory = self._checkpoints.directory
        if directory is None:
            return None
        path = self._unfinished_path(directory, run)
        unfinished = read_unfinished(path)
        if unfinished is None or unfinished.matches(run):
            return unfinished
        path.unlink(missing_ok=True)
        self._warn(
            "the epoch ended without this member, and the run continues without its training up to "
            f"step {unfinished.step}: {unfinished.directory} is now only a copy of the model\n"
            f"{self._protected(Path(unfinished.directory))}"
        )
        return None

    async def resume(self, unfinished: UnfinishedEpoch) -> tuple[Replica, Run]:
        """Load the saved model and wait until the epoch's rounds are over.

        Return the replica and the run at that point. The file stays until `forget_unfinished`, so
        that a member that is stopped meanwhile can resume again. Raises Desync if the model is
        damaged, or not the one that the epoch ended with.
        """
        self._resumed = unfinished
        self.will_attest = True
        checkpoint = Checkpoint(CheckpointKind.LOCAL, unfinished.directory, "")
        try:
            weights = await self._workers.compute(lambda: self._origin.durable(checkpoint))
        except AftermathError as error:
            raise Desync(f"{unfinished.directory} cannot be read: {error.message}") from error
        replica = await self._workers.compute(lambda: self._origin.replica(weights))
        self._ports.events.emit(
            event_types.ModelReady(source=unfinished.directory, step=unfinished.step)
        )
        self._report_wait()
        ended_run = await self._ports.feed.until(
            lambda run: not run.state.training or not unfinished.matches(run)
        )
        if not unfinished.matches(ended_run) or ended_run.trained_steps != unfinished.step:
            self._protected(Path(unfinished.directory))
            raise Desync(
                f"the epoch did not end with the model in {unfinished.directory}, which is now only a copy"
            )
        return replica, ended_run

    def keeps_seat(self) -> bool:
        """Keep this member's seat if the epoch that it resumed has not ended.

        Return whether the member keeps it. The next start then resumes again.
        """
        resumed = self._resumed
        if resumed is None or not resumed.matches(self._ports.feed.run):
            return False
        self.stays = True
        self._ports.events.emit(
            event_types.Stopped(step=resumed.step, path=resumed.directory, continues=True)
        )
        return True

    def forget_unfinished(self) -> None:
        """Remove the file of the resumed epoch, because it is over or its steps are lost."""
        assert self._checkpoints.directory is not None, "the file was read there"
        self._unfinished_path(self._checkpoints.directory, self._ports.feed.run).unlink(
            missing_ok=True
        )
        self._resumed = None
        self.will_attest = False

    def _unfinished_path(self, directory: Path, run: Run) -> Path:
        return unfinished_path(directory, run, self._ports.coordinator.wallet)

    def attested(self) -> None:
        """Record that the member has attested the model, or has nothing to attest."""
        run = self._ports.feed.run
        if run.state is RunState.COOLDOWN:
            self._attested_epoch = run.epoch, run.epoch_started_at
        self.will_attest = False

    def _has_attested(self, run: Run) -> bool:
        return self._attested_epoch == (run.epoch, run.epoch_started_at)

    def _report_wait(self) -> None:
        """Report that this member waits for the end of an epoch that makes no more steps."""
        run = self._ports.feed.run
        if not run.state.training:
            return
        now = self._ports.coordinator.now()
        ends_in = round(rounds_end(run, int(now)) - now)
        self._ports.events.emit(event_types.Waiting(epoch=run.epoch + 1, ends_in=ends_in))

    def _warn(self, message: str, until: str | None = None) -> None:
        self._ports.events.emit(event_types.Warning(message=message, until=until))


def _alone(members: Members, seat: int) -> bool:
    """Return whether no other member is in the epoch, as the chain sees it."""
    return members.mask(MemberState.HEALTHY) == 1 << seat
