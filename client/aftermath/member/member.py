"""One member's life in a run: wait, join, warm up, train, cool down, until the run is finished.

The run's state on chain is the only clock. Each state has one task, and no sequence of states is
fatal. A member that falls out of an epoch reports that on chain and joins the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aftermath.base.concurrency import cancel, first_of
from aftermath.base.errors import AftermathError
from aftermath.coordinator.ports import Coordinator, View
from aftermath.data.source import Source
from aftermath.events import event_types
from aftermath.member.announced_results import Results
from aftermath.member.checkpoint_writer import Archive, CheckpointWriter
from aftermath.member.cooldown import Cooldown
from aftermath.member.finished_run import FinishedRun
from aftermath.member.gossip import GossipListener
from aftermath.member.joining import Joining
from aftermath.member.last_member import LastMember
from aftermath.member.local_options import LocalOptions
from aftermath.member.ports import Desync, Ports, Role, Workers
from aftermath.member.private_state import PrivateState
from aftermath.member.readiness import Readiness, announce_ready, whole_from_peers
from aftermath.member.reveal import Reveals
from aftermath.member.rounds.collect import LINGER
from aftermath.member.rounds.epoch import CarriedOver, Divergence, EpochStart
from aftermath.member.rounds.rounds import Rounds
from aftermath.member.saved_results import GradientFiles
from aftermath.member.seat_requests import SeatRequests
from aftermath.member.signed_results import SignedResults
from aftermath.member.stake import ModelLost, Stake, find_loss
from aftermath.member.state_roots import OwnState
from aftermath.member.status_events import StatusEvents, require_unchanged
from aftermath.member.ticker import Ticker
from aftermath.member.unfinished_epoch import UnfinishedEpoch
from aftermath.member.warmup import NoModel, WarmUp
from aftermath.replica.model_sharing import ModelShare, snapshot
from aftermath.replica.origin import Origin
from aftermath.replica.replica import Replica
from aftermath.rules import bitmap, contents
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, RunState


class Member:
    """Drives one member."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        workers: Workers,
        data: Source,
        origin: Origin,
        archive: Archive,
        local_options: LocalOptions,
        *,
        weight: int,
        parallel: int,
    ) -> None:
        self._ports = ports
        self._role = role
        self._workers = workers
        self._options = local_options
        self._first = ports.feed.model  # the model account from which data and model were built
        self._origin = origin
        self._parallel = parallel
        self._checkpoints = CheckpointWriter(ports, role, workers, archive)
        self._gradients = GradientFiles(
            ports.events, workers.write, role.schema, local_options.gradients_dir
        )
        self._own_state = OwnState(ports, workers.state, local_options.audit_dir)
        self._private = PrivateState(
            ports, role, workers, self._own_state, local_options.optimizer_state_dir
        )
        self._share = ModelShare(ports.transport)
        signed = SignedResults(local_options.signed_dir, ports.transport.node_id)
        self._results = Results(ports, role, workers.decode, signed, local_options.downloads)
        self._reveals = Reveals(ports, role, self._results, self._own_state)
        self._carried = CarriedOver(
            data,
            self._results,
            share=self._share,
            gradients=self._gradients,
            own_state=self._own_state,
            reveals=self._reveals,
            divergence=Divergence(),
        )
        self._readiness = Readiness()
        self._requests = SeatRequests(ports, role)
        self._joining = Joining(ports, role, self._requests, self._first, weight)
        self._gossip = GossipListener(ports, role, self._readiness, self._results)
        self._status_events = StatusEvents(ports.events)
        self._last = LastMember(ports, role, workers, self._checkpoints, origin)
        self._finished = FinishedRun(
            ports, workers, self._checkpoints, confirms=local_options.confirms_loss
        )
        self._replica: Replica | None = None
        self._start_step = 0  # trained steps in the replica when this member obtained it
        self._rounds: Rounds | None = None
        self._stops: Callable[[bool], bool] | None = None
        self._saving: Callable[[Stake], None] = lambda stake: None
        self._ended_run: Run | None = (
            None  # the newest epoch that this member completed, as it ended
        )

    async def live(self) -> None:
        """Take part until the run is finished. Cancel it to stop earlier (see `leave`)."""
        try:
            await self._take_part()
        except asyncio.CancelledError:
            if self._stops is not None:
                # Before Python 3.11.4, no timeout expires in a task that is being cancelled.
                if (task := asyncio.current_task()) is not None:
                    task.uncancel()
                if self.seat is not None and self._replica is not None:
                    await self._last.wait_until_last(self.seat)
                await self._save_stake(self._stops)
            raise
        finally:
            await self._reveals.leave()
            await self._checkpoints.close()
            await self._gradients.close()
            await self._private.close()
            self._own_state.withdraw()
            self._results.close()
            self._share.withdraw()

    async def _take_part(self) -> None:
        """Take part until the run is finished. If an error ends it, first save unsaved training."""
        try:
            await first_of(
                self._epochs(),
                self._ports.feed.follow(self._ports.coordinator),
                self._ports.stall_detector.watch(),
                Ticker(
                    self._ports.coordinator,
                    self._ports.feed,
                    self._ports.clock,
                    self._ports.stall_detector,
                    report_wait=self._status_events.last_member_wait,
                    will_attest=lambda: self._last.will_attest,
                ).run(),
                self._reveals.live(),
                self._gossip.listen(),
                self._gossip.follow_members(),
                self._watch_levels(),
            )
        except ModelLost:  # nothing is left to save
            raise
        except AftermathError:
            await self._save_or_warn()
            raise

    async def _watch_levels(self) -> None:
        """Warn when too few holders of a level are left in the epoch, until cancelled."""
        saves = self._checkpoints.directory is not None
        while True:
            view = self._ports.feed.view
            if self._replica is not None:
                self._status_events.levels_going_back(view, saves=saves)
            await self._ports.feed.after(view.run.seq)

    @property
    def coordinator(self) -> Coordinator:
        """Return the coordinator of the run."""
        return self._ports.coordinator

    @property
    def seat(self) -> int | None:
        """Return this member's seat, or None."""
        return self._joining.seat

    def stake(self) -> Stake | None:
        """Return what would be lost if this member left now, or None."""
        return self._last.stake(self.seat, self._replica)

    def stops(
        self,
        retry: Callable[[bool], bool] = lambda saved: False,
        saving: Callable[[Stake], None] = lambda stake: None,
    ) -> None:
        """Make `live` save unsaved training when it is cancelled: the user stops this member.

        `retry`: see `LastMember.save`. `saving` is called before a save with what would be lost.
        """
        self._stops = retry
        self._saving = saving

    async def _save_stake(self, retry: Callable[[bool], bool]) -> None:
        """Save what would be lost, if there is anything."""
        stake = self.stake()
        at_risk = stake is not None or self._replica is None
        if at_risk and self._last.keeps_seat():
            retry(True)
            return
        if stake is None or self._replica is None or self.seat is None:
            retry(True)
        elif stake.saves:
            self._saving(stake)
            await self._last.save(
                self.seat, self._replica, self._rounds, retry, step=self._start_step
            )

    async def _save_or_warn(self) -> None:
        """Save what would be lost with this member, or warn of what is lost."""
        stake = self.stake()
        saves: list[bool] = []

        def tried(saved: bool) -> bool:
            saves.append(saved)
            return False

        await self._save_stake(tried)
        if stake is not None and True not in saves:
            self._ports.events.emit(event_types.Warning(message=str(stake.lost())))

    async def leave(self) -> None:
        """Leave the run on chain, unless this member keeps its seat to continue from its saved
        model.
        """
        if self._last.stays:
            return
        if (self.seat is not None or self._requests.has_sent_join) and await self._requests.leave():
            self._ports.events.emit(
                event_types.Left(finished=self._ports.feed.run.state is RunState.FINISHED)
            )

    @property
    def has_unsaved_steps(self) -> bool:
        """Return whether the replica has trained steps that are in no checkpoint."""
        return self._replica is not None and self._last.unsaved_steps() > 0

    async def loss_after_leaving(self, lost: Stake | None, *, seconds: float) -> Stake | None:
        """Return what the run loses after this member left. Save a copy if few members stay.

        `lost`: what it knew to be lost before. `seconds`: how long to watch the run.
        """
        if self._replica is None or self._last.stays:
            return lost
        return await self._last.loss_after_leaving(
            self._replica, self._rounds, lost, step=self._start_step, seconds=seconds
        )

    # --- epochs -----------------------------------------------------------------------------------

    async def _epochs(self) -> None:
        while True:
            view = self._ports.feed.view
            run = view.run
            members = view.members
            self._status_events.rewinding(run)
            self._status_events.state(run)
            self._status_events.lost_before(run, view.model)
            if run.state is RunState.FINISHED:
                await self._finish(run)
                return
            if (
                not self._checkpoints.keeps
            ):  # a member that saves reports its own failures, and its uploads may take long
                self._status_events.never_saved(run, view.model)
            unfinished = self._last.find_unfinished() if self._replica is None else None
            if unfinished is not None or self._takes_part(view):
                try:
                    await (
                        self._watched_epoch(view)
                        if unfinished is None
                        else self._resume(unfinished, view)
                    )
                except Desync as reason:
                    ejection = self._joining.ejection()
                    step = None if self._rounds is None else self._rounds.step
                    why = self._requests.second_process(self.seat, step) or reason
                    if ejection is None:
                        self._ports.events.emit(
                            event_types.Warning(
                                message=f"fell out of this epoch: {why}; this member joins the next one",
                                until="trained",
                            )
                        )
                    await self._keep_copy()
                    self._forget_replica()
                    if ejection is not None:
                        raise ejection from reason
                    if isinstance(reason, NoModel):
                        await self._joining.leave_epoch_now()
                    await self._joining.join(self._ports.feed.run, has_replica=False)
            else:
                self._status_events.halt(run)
                self._status_events.unreadable(run, view.model)
                if self.seat is not None and members.seats[self.seat].pending:
                    has_commands = self._ports.coordinator.has_tick
                    self._status_events.holder_wait(view, has_commands=has_commands)
                await self._joining.join_if_needed(
                    run,
                    members,
                    has_replica=self._replica is not None,
                    leave_epoch=self._forget_replica,
                )
                if (
                    self.seat is not None
                    and self._replica is None
                    and self._status_events.waiting(run, members)
                ):
                    return
                await self._ports.feed.after(run.seq)

    async def _finish(self, run: Run) -> None:
        """Report that the run is finished, and wait until its model is saved. Raises ModelLost."""
        self._status_events.finished(
            run, await self._finished.newest_model(), self._checkpoints.directory
        )
        await self._ports.clock.sleep(LINGER if self._replica is not None else 0.0)
        replica = (
            self._replica
            if self._ended_run is not None and self._ended_run.step == run.step
            else None
        )
        if self._ended_run is not None and replica is not None and self._checkpoints.keeps:
            await self._finished.hold(self._ended_run, replica)
        await self._checkpoints.settle()
        await self._gradients.settle()
        await self._private.settle()
        model = await self._finished.newest_model()  # an upload may have ended since
        if self._checkpoints.saved_step != run.trained_steps:
            self._raise_loss(View(run, self._ports.feed.members, model), replica)
        self._status_events.never_saved(run, model)

    def _raise_loss(self, view: View, replica: Replica | None) -> None:
        """Raise ModelLost if the model is lost with this member, or was lost before its restart."""
        if (stake := self._last.stake(self.seat, replica, view.model)) is not None:
            raise stake.lost()
        wallet = self._ports.coordinator.wallet
        if (
            replica is None
            and (lost := find_loss(view, wallet, self._checkpoints.directory)) is not None
        ):
            raise lost

    def _takes_part(self, view: View) -> bool:
        """Return whether this member can begin an epoch: in warm-up, or a little later with a
        replica.
        """
        run = view.run
        members = view.members
        me = self._joining.find_seat(members)
        if me is None or self.seat is None or not bitmap.contains(run.current.roster, self.seat):
            return False
        early = run.state.training and run.current.height <= 1 and self._replica is not None
        return (
            (run.state is RunState.WARMUP or early)
            and me.state is MemberState.HEALTHY
            and self._joining.is_current(me)
        )

    async def _watched_epoch(self, view: View) -> None:
        """Live through one epoch. Warn if another process signs up with this wallet meanwhile."""
        assert self.seat is not None
        watching = asyncio.ensure_future(self._requests.watch_for_second_process(self.seat))
        try:
            await self._epoch(view)
        finally:
            await cancel([watching])

    async def _epoch(self, view: View) -> None:
        """Take part in one epoch, from warm-up to the end of cooldown."""
        assert self.seat is not None
        run = view.run
        model = view.model
        require_unchanged(self._first, model)
        self._results.begin(run.epoch, starts_empty=run.starts_empty)
        self._readiness.forget_before(run.epoch)
        self._status_events.lost(
            view,
            self._checkpoints.directory,
            has_commands=self._ports.coordinator.has_tick,
            has_model=self._replica is not None,
        )
        warm = WarmUp(
            self._ports,
            self._role,
            workers=self._workers,
            origin=self._origin,
            start=view,
            seat=self.seat,
            parallel=self._parallel,
            checkpoint_dir=self._checkpoints.directory,
        )
        self._own_state.withdraw()  # free an outdated replica before there is another
        # A member that is stopped during this check saves its replica like before the epoch.
        keeps = self._replica is not None and await warm.keeps(self._replica)
        self._rounds = None
        if self._replica is None or not keeps:
            self._replica = None  # free its memory before there is another
            self._replica = await warm.obtain()
        replica = self._replica
        self._start_step = run.trained_steps
        self._last.unsaved.begins(run, model)
        self._joining.obtained_model()
        await self._offer_durable(view, replica, own_replica=warm.used_own_replica)
        if run.starts_empty or not warm.used_own_replica:
            self._own_state.begin(None)
        if run.starts_empty:
            await self._workers.compute(replica.optimizer.reset)
        elif not warm.used_own_replica:
            await self._private.restore(replica, run.epoch)
        await announce_ready(self._ports, self._role, self._readiness, run, self.seat)
        start = EpochStart(run, model, replica, self.seat, self._joining.weight)
        rounds = self._rounds = Rounds(
            self._ports, self._role, self._workers, self._options, self._carried, start
        )
        try:
            await self._live_and_cool_down(rounds, replica)
        finally:
            await rounds.stop_audits()

    async def _live_and_cool_down(self, rounds: Rounds, replica: Replica) -> None:
        try:
            ended_run = await rounds.live()
        finally:
            # even if this member fell out because it was slow
            self._joining.weight = rounds.time.weight
        if ended_run is not None:
            await self._cool_down(ended_run, replica)

    async def _offer_durable(self, view: View, replica: Replica, *, own_replica: bool) -> None:
        """Serve the epoch's model to members that cannot read the checkpoint's location.

        Only for an epoch that starts from the durable checkpoint.
        """
        hashes = [contents.expected(view.run, view.model, level) for level in self._role.levels]
        if (
            whole_from_peers(view.run)
            or None in hashes
            or (own_replica and self._share.manifest is not None)
        ):
            return
        shared = self._role.schema.shared
        tier = self._role.tier
        self._share.offer(
            await self._workers.compute(
                lambda: snapshot(replica.shared, shared, tier, view.run.step)
            )
        )

    async def _resume(self, unfinished: UnfinishedEpoch, view: View) -> None:
        """End the epoch in which this member was stopped as the last one. Raises Desync."""
        me = self._joining.find_seat(view.members)
        try:
            if (
                me is None
                or me.state is not MemberState.HEALTHY
                or not self._joining.is_current(me)
            ):
                raise Desync("this member no longer has its seat in the unfinished epoch")
            self._replica, ended_run = await self._last.resume(unfinished)
            self._start_step = unfinished.step
            await self._cool_down(ended_run, self._replica)
        except Desync:
            self._last.forget_unfinished()
            raise
        self._last.forget_unfinished()

    async def _cool_down(self, ended_run: Run, replica: Replica) -> None:
        """Join the next epoch, then attest and save the model of this one."""
        assert self.seat is not None
        self._requests.completed()
        self._ended_run = ended_run
        if not ended_run.pending_pause and ended_run.trained_steps < ended_run.config.total_steps:
            await self._joining.join(ended_run, has_replica=True)
        cooldown = Cooldown(
            self._ports,
            self._role,
            compute=self._workers.compute,
            share=self._share,
            replica=replica,
            checkpoints=self._checkpoints,
            private=self._private,
            seat=self.seat,
            attested=self._last.attested,
        )
        await cooldown.live(ended_run)

    async def _keep_copy(self) -> None:
        """Save the replica of an epoch that this member fell out of."""
        if self._rounds is not None and self._replica is not None and self.seat is not None:
            await self._last.keep_copy(self.seat, self._replica, self._rounds.step)

    def _forget_replica(self) -> None:
        self._replica = None
        self._own_state.begin(None)
        self._share.withdraw()
