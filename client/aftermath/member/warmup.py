"""Warm-up: a member obtains the model that the epoch starts from.

It comes from its own replica, from peers or from the durable checkpoint, as the chain says. Every
level is checked against its hash on chain before use. If no recorded location can be read, members
that have the checkpoint send it. A level without a hash is read from the checkpoint only
(`rules.contents`): peers could send different levels, and replicas would diverge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from aftermath.base.allowed_locations import advice_to_member
from aftermath.base.concurrency import first_of
from aftermath.base.errors import SchemaError
from aftermath.base.rate_limit import Backoff
from aftermath.coordinator.ports import View
from aftermath.events import event_types
from aftermath.member.ports import Desync, Ports, Role, Workers
from aftermath.model.config import ModelConfigError
from aftermath.model.json_documents import CheckpointError, HubAway
from aftermath.model.levels import MomentumSegment
from aftermath.model.saved_checkpoints import stem_of_run, step_directory
from aftermath.model.segments import (
    SegmentError,
    level_hash,
    segment_bytes,
    view,
    write_segment,
)
from aftermath.p2p.transport import escaped
from aftermath.replica.memory import is_out_of_memory
from aftermath.replica.model_sharing import LevelFetcher, ModelUnavailable, Offer, ask_offers
from aftermath.replica.origin import Origin
from aftermath.replica.replica import Replica
from aftermath.rules import bitmap, contents
from aftermath.rules.model import Checkpoint, Model
from aftermath.rules.run import STORED_ROUNDS, Run, steps_before
from aftermath.rules.state import CheckpointKind, ModelSource, RunState

_RETRY = 1.0  # seconds
_LONGEST_RETRY = 15.0
_ANSWER = 5.0
_LEAST_TRIED = 15.0


class NoModel(Desync):
    """This member cannot obtain the model now. It leaves, so that the others can begin."""


class WarmUp:
    """One member's warm-up into one epoch. `start`: the run and its model at the start."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        workers: Workers,
        origin: Origin,
        start: View,
        seat: int,
        parallel: int,
        checkpoint_dir: Path | None = None,
    ) -> None:
        """`checkpoint_dir`: the directory of this member's own checkpoints, if it writes any."""
        self._ports = ports
        self._role = role
        self._workers = workers
        self._origin = origin
        self._run = start.run
        self._model = start.model
        self._seat = seat
        self._parallel = parallel
        self._checkpoint_dir = checkpoint_dir
        self._weights: dict[str, Tensor] = {}
        self._missing = set(role.levels)
        self._first_missing = frozenset(
            role.levels
        )  # without the levels of this member's own replica
        self._durable_step: int | None = None  # of the checkpoint that levels came from
        self.used_own_replica = False
        """Whether the obtained model is this member's own replica."""

    async def keeps(self, replica: Replica) -> bool:
        """Return whether this member's own replica is the epoch's initial model.

        If not, `obtain` begins with the levels that are.
        """
        hashes = await self._workers.compute(replica.hashes)
        self.used_own_replica = all(
            hashes[level] == self._expected(level) for level in self._role.levels
        )
        if self.used_own_replica:
            self._report_ready("its own replica")
        else:
            # Keep the levels that pass the check, because this member may be their only holder.
            self._reuse_levels(replica, hashes)
        return self.used_own_replica

    async def obtain(self) -> Replica:
        """Load the epoch's initial model and return a replica of it.

        Raises Desync if warm-up ends first.
        """
        source = await first_of(self._load(), self._give_up())
        if self._first_missing != set(self._role.levels):
            source = f"its own replica and {source}"
        self._report_ready(source)
        return await self._workers.compute(lambda: self._origin.replica(self._weights))

    def _report_ready(self, source: str) -> None:
        self._ports.events.emit(
            event_types.ModelReady(
                source=source,
                step=self._run.trained_steps,
                checkpoint_step=self._durable_step,
                lost_levels=tuple(contents.lost_levels(self._run)),
                lost_to=steps_before(self._model.checkpoint_step),
            )
        )

    async def _give_up(self) -> NoReturn:
        """Raise Desync once a replica comes too late, even if a slow source still delivers."""

        def too_late(now: Run) -> bool:
            is_over = now.epoch != self._run.epoch or now.state is RunState.COOLDOWN
            # Later, the chain no longer stores the first rounds.
            return is_over or now.current.height >= STORED_ROUNDS

        await self._ports.feed.until(too_late)
        raise Desync("the epoch continued before the model arrived")

    async def _load(self) -> str:
        """Retry until all levels are loaded. Return their source.

        Raises Desync if that fails and the warm-up is over, NoModel if it has failed for half of
        the warm-up.
        """
        pauses = Backoff(_RETRY, _LONGEST_RETRY)
        clock = self._ports.clock
        failing = float("inf")
        missing = len(self._missing)
        last_message = ""
        while True:
            self._durable_step = None
            try:
                if self._run.model_source is ModelSource.PEERS:
                    return await self._from_peers()
                return await self._from_durable()
            except (
                ModelUnavailable,
                CheckpointError,
                ModelConfigError,
                SchemaError,
                SegmentError,
                OSError,
            ) as error:
                message = f"cannot get the model yet: {why_no_model(error, self._model)}"
                if message != last_message:
                    self._ports.events.emit(event_types.Warning(message=message, until="model"))
                last_message = message
            if warmup_over(self._run, self._ports.feed.run):
                raise Desync("warm-up ended before this member had the model")
            if len(self._missing) < missing:
                failing = float("inf")
                missing = len(self._missing)
            failing = min(failing, clock.monotonic())
            # Leaving on chain before the warm-up is over saves the other members' time.
            if clock.monotonic() >= failing + max(self._run.config.warmup_time / 2, _LEAST_TRIED):
                raise NoModel("no source has delivered the model for half of the warm-up's time")
            await first_of(
                self._ports.feed.after(self._ports.feed.run.seq), clock.sleep(pauses.next())
            )

    def _expected(self, level: int) -> bytes | None:
        """Return the hash of a level's contents at the epoch's start, if the chain has it."""
        return contents.expected(self._run, self._model, level)

    def _reuse_levels(self, replica: Replica, hashes: Mapping[int, bytes]) -> None:
        """Begin with the levels of a replica that match the epoch's start."""
        matching = {level for level in self._role.levels if hashes[level] == self._expected(level)}
        if matching:
            self._weights = {name: tensor.detach() for name, tensor in replica.shared.items()}
            self._missing -= matching
            self._first_missing = frozenset(self._missing)

    # --- from peers -------------------------------------------------------------------------------

    async def _offers(self, among: int) -> Mapping[int, list[Offer]]:
        """Return by level what the present seats of `among` offer.

        Offers of the run's step come first. An older offer is right only if its level is unchanged.
        """
        members = self._ports.feed.members
        step = self._run.step
        seats = bitmap.seats(among & self._run.current.roster & ~(1 << self._seat))
        peers = [members.seats[seat].p2p for seat in seats]
        offers_by_level = await ask_offers(
            self._ports.transport, self._role.schema.shared, peers, _ANSWER
        )
        return {
            level: sorted(offers, key=lambda offer: offer.step != step)
            for level, offers in offers_by_level.items()
        }

    async def _from_peers(self) -> str:
        """Fetch attested levels from peers and the rest from the checkpoint. Return the source."""
        self._weights = self._weights or await self._workers.compute(self._origin.blank)
        attested_hashes = contents.attested(self._run)
        reasons = list[str]()
        if attested := {
            level: attested_hashes[level] for level in self._missing & attested_hashes.keys()
        }:
            reasons = await self._fetch(attested, self._run.finishers)
        # These failures are harmless if this member has its own checkpoint.
        own_copies = self._own_copy(steps_before(self._ports.feed.model.checkpoint_step))
        if not own_copies:
            self._warn(reasons)
        if not self._missing:
            return "peers"
        first = "" if self._missing == self._first_missing else "peers and "
        try:
            return first + await self._from_durable()
        except Exception:
            if own_copies:
                self._warn(reasons)
            raise

    def _warn(self, reasons: Sequence[str]) -> None:
        for reason in reasons:
            self._ports.events.emit(event_types.Warning(message=reason, until="model"))

    async def _fetch(self, hashes: Mapping[int, bytes], among: int) -> list[str]:
        """Fetch the levels with these hashes from the seats `among`; return what failed."""
        offers = await self._offers(among)
        remaining = (
            self._run.state_started_at
            + self._run.config.warmup_time
            - self._ports.coordinator.now()
        )
        fetcher = LevelFetcher(
            self._ports.transport,
            self._ports.clock,
            self._role.schema.shared,
            self._workers.decode,
            parallel=self._parallel,
            deadline_s=float(max(10, remaining)),
        )
        reasons = list[str]()
        for level in sorted(hashes, reverse=True):
            try:
                await fetcher.fetch(level, offers.get(level, ()), self._weights, hashes[level])
                self._missing.discard(level)
            except ModelUnavailable as error:
                reasons.append(str(error))
        return reasons

    # --- from the durable checkpoint --------------------------------------------------------------

    async def _from_durable(self) -> str:
        """Load missing levels from a recorded checkpoint, or from members that have it.

        Return the source in words. Raises ModelUnavailable if the hashes differ from the chain's,
        and CheckpointError and others if no location can be read.
        """
        levels = set(self._missing)
        self._durable_step = steps_before(self._ports.feed.model.checkpoint_step)
        try:
            durable = await self._durable(levels)
        except (
            ModelUnavailable,
            CheckpointError,
            ModelConfigError,
            SchemaError,
            SegmentError,
            OSError,
        ):
            if not await self._from_members(levels):
                raise
            return "members that have the checkpoint"
        if levels == set(self._role.levels):
            self._weights = durable
        else:
            await self._workers.compute(lambda: self._copy(durable, levels))
        return "the checkpoint"

    async def _from_members(self, levels: set[int]) -> bool:
        """Take levels of the durable checkpoint from members; return whether all are here."""
        hashes = {
            level: digest for level in levels if (digest := self._expected(level)) is not None
        }
        if len(hashes) == len(
            levels
        ):  # otherwise only the location on chain is the same for all members
            self._weights = self._weights or await self._workers.compute(self._origin.blank)
            await self._fetch(hashes, among=-1)
        return not self._missing

    async def _durable(self, levels: set[int]) -> dict[str, Tensor]:
        """Return the tier's weights from a location recorded for the durable checkpoint's step.

        Try this member's own copy, then every recorded location, because some may be wrong. If a
        level has no hash on chain, use only the current location: it is the same for all members.
        """
        model = self._ports.feed.model
        reasons = list[Exception]()
        own_copies = self._own_copy(steps_before(model.checkpoint_step))
        # The current location comes first.
        locations = [
            recorded.checkpoint
            for recorded in model.recorded
            if recorded.step == model.checkpoint_step
        ]
        hashed = {level for level in levels if self._expected(level) is not None}
        if hashed != levels:
            locations = [model.checkpoint]
            own_copies = []
        own_copies = [checkpoint for checkpoint in own_copies if checkpoint not in locations]
        for checkpoint in dict.fromkeys(own_copies + locations):
            try:
                read = partial(self._origin.durable, checkpoint, momentum=bool(hashed))
                durable = await self._workers.compute(read)
                self._reset_momentum(durable, levels - hashed)
                for level in sorted(levels):
                    await self._check_level(level, durable)
                return durable
            except (
                ModelUnavailable,
                CheckpointError,
                ModelConfigError,
                SchemaError,
                SegmentError,
                OSError,
            ) as error:
                reasons.append(error)
            except Exception as error:  # an invalid location must not end this member
                if is_out_of_memory(error):
                    raise
                why = f"{type(error).__name__}: {escaped(str(error))}"
                reasons.append(
                    ModelUnavailable(f"the checkpoint {checkpoint.repo} cannot be read: {why}")
                )
        raise reasons[len(own_copies)]  # the error of the current location

    def _own_copy(self, step: int) -> list[Checkpoint]:
        """Return this member's own checkpoint of a step, if it has one."""
        if self._checkpoint_dir is None:
            return []
        run = self._run
        directory = step_directory(
            self._checkpoint_dir, stem_of_run(self._checkpoint_dir, run.run_id, run.identity), step
        )
        return (
            [Checkpoint(CheckpointKind.LOCAL, str(directory.absolute()), "")]
            if directory.is_dir()
            else []
        )

    def _reset_momentum(self, durable: Mapping[str, Tensor], levels: set[int]) -> None:
        """Zero the outer momentum of levels that have no hash on chain.

        Without a hash, no member can check the momentum in the file, and other members may lack the
        file. A level with a hash must match the momentum that members attested.
        """
        for segment in (s for level in levels for s in self._role.schema.shared.of_level(level)):
            if isinstance(segment, MomentumSegment):
                view(durable, segment).zero_()

    def _copy(self, durable: dict[str, Tensor], levels: set[int]) -> None:
        for segment in (s for level in levels for s in self._role.schema.shared.of_level(level)):
            write_segment(self._weights, segment, segment_bytes(durable, segment))

    async def _check_level(self, level: int, weights: dict[str, Tensor]) -> None:
        expected = self._expected(level)
        digest = await self._workers.compute(
            lambda: level_hash(weights, self._role.schema.shared, level)
        )
        if expected is not None and digest != expected:
            raise ModelUnavailable(
                f"level {level} of the durable checkpoint is not the one that members attested"
            )


def warmup_over(started: Run, now: Run) -> bool:
    """Return whether the warm-up seen in `started` is over. A retry is another warm-up."""
    again = now.epoch_started_at != started.epoch_started_at
    return now.epoch != started.epoch or now.state is not RunState.WARMUP or again


def why_no_model(error: Exception, model: Model) -> str:
    """Return the error with a fix for members. The original fix is for owners."""
    checkpoint = model.checkpoint
    if isinstance(error, HubAway) and steps_before(model.checkpoint_step):
        fix = "Check this machine's internet connection. Meanwhile this member asks others that have the checkpoint"
        return f"{error.message}\n{fix}"
    if not isinstance(error, CheckpointError) or checkpoint.kind is not CheckpointKind.LOCAL:
        return str(error)
    saved = steps_before(model.checkpoint_step) > 0
    fix = advice_to_member("model", checkpoint.repo, saved_by_member=saved)
    return f"{error.message}\n{fix}"
