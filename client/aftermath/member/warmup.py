"""Warm-up: how a member comes to hold the model the run continues from.

Decided
- whatever arrives is checked level by level against the hashes on chain before it is used; a replica the member
  already has is kept only if it stands the same check, or those of its levels that do: nobody else may have them;
- the model comes from the peers or from the durable checkpoint, whichever the chain says; a level that no peer can
  give comes from the durable checkpoint, if that is the copy the chain vouches for; if no place of that checkpoint can
  be read, it comes from members that have it, checked by the same hashes: anyone of tier 0 may name a false place;
- a member that nothing can give the model says so on chain before the warm-up's time is over, so that those who have
  it do not wait for nothing;
- a level for which the chain vouches for nothing (its cooldown failed, or nobody has held it yet) is the durable
  checkpoint's, for everybody (`rules.contents`): what peers offer of it, or say of what they hold, decides nothing,
  since each member may be told something else, and replicas would part.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from aftermath.base.backoff import Backoff
from aftermath.base.run_access import advice_to_member
from aftermath.base.wait import first_of
from aftermath.coordinator.view import View
from aftermath.member.ports import Desync, Ports, Role, Workers
from aftermath.model.config import ModelConfigError
from aftermath.model.documents import CheckpointError, HubAway
from aftermath.model.levels import SchemaError
from aftermath.model.segments import SegmentError, level_hash, segment_bytes, write_segment
from aftermath.model.steps import stem_of_run, step_directory
from aftermath.p2p.transport import escaped
from aftermath.replica.memory import is_out_of_memory
from aftermath.replica.modelshare import LevelFetcher, ModelUnavailable, Offer, ask_offers
from aftermath.replica.origin import Origin
from aftermath.replica.replica import Replica
from aftermath.rules import bitmap, contents
from aftermath.rules.model import Checkpoint, Model
from aftermath.rules.run import STORED_ROUNDS, Run, steps_before
from aftermath.rules.state import CheckpointKind, ModelSource, RunState
from aftermath.watch import kinds

_RETRY, _LONGEST_RETRY = 1.0, 15.0  # seconds
_ANSWER = 5.0
_LEAST_TRIED = 15.0


class NoModel(Desync):
    """Nobody can give this member the model now: the others should begin without it."""


class WarmUp:
    """One member's warm-up into one epoch; `began` is the run and its model when this began."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        workers: Workers,
        origin: Origin,
        began: View,
        seat: int,
        parallel: int,
        kept: Path | None = None,
    ) -> None:
        """`kept`: the directory of this member's own checkpoints, if it writes any."""
        self._ports, self._role, self._workers = ports, role, workers
        self._origin, self._run, self._model = origin, began.run, began.model
        self._seat, self._parallel, self._kept = seat, parallel, kept
        self._weights: dict[str, Tensor] = {}
        self._lacking = set(role.levels)
        self._sought = frozenset(role.levels)  # without what is kept of an own replica
        self.kept = False
        """Whether what was obtained is the replica that this member had."""

    async def obtain(self, replica: Replica | None) -> Replica:
        """A replica of the model this epoch starts from. Raises Desync if warm-up ends before there is one."""
        if replica is not None:
            hashes = await self._workers.compute(replica.hashes)
            if all(hashes[level] == self._expected(level) for level in self._role.levels):
                self._ports.events.emit(kinds.Model(source="its own replica", step=self._run.trained_steps))
                self.kept = True
                return replica
            self._keep(replica, hashes)
        del replica
        source = await first_of(self._load(), self._give_up())
        if self._sought != set(self._role.levels):
            source = f"its own replica and {source}"
        self._ports.events.emit(kinds.Model(source=source, step=self._run.trained_steps))
        return await self._workers.compute(lambda: self._origin.replica(self._weights))

    async def _give_up(self) -> NoReturn:
        """Raise Desync once a replica would be of no use, although a source may still be delivering it, if slowly."""

        def too_late(now: Run) -> bool:
            ended = now.epoch != self._run.epoch or now.state is RunState.COOLDOWN
            return ended or now.current.height >= STORED_ROUNDS  # rounds to catch up with are no longer stored

        await self._ports.feed.until(too_late)
        raise Desync("the epoch went on before the model was here")

    async def _load(self) -> str:
        """Try until all levels are here; where they came from.

        Raises Desync if that fails and the warm-up is over, NoModel if it has failed for half of the warm-up's time.
        """
        pauses, clock = Backoff(_RETRY, _LONGEST_RETRY), self._ports.clock
        failing, lacking = float("inf"), len(self._lacking)
        said = ""
        while True:
            try:
                if self._run.model_source is ModelSource.PEERS:
                    return await self._from_peers()
                return await self._from_durable()
            except (ModelUnavailable, CheckpointError, ModelConfigError, SchemaError, SegmentError, OSError) as error:
                message = f"cannot get the model yet: {why_no_model(error, self._model)}"
                if message != said:
                    self._ports.events.emit(kinds.Warning(message=message, until="model"))
                said = message
            if warmup_over(self._run, self._ports.feed.run):
                raise Desync("warm-up ended before the model was here")
            if len(self._lacking) < lacking:
                failing, lacking = float("inf"), len(self._lacking)
            failing = min(failing, clock.monotonic())
            if clock.monotonic() >= failing + max(self._run.config.warmup_time / 2, _LEAST_TRIED):
                raise NoModel("no source has given the model for half of the warm-up's time")
            await first_of(self._ports.feed.after(self._ports.feed.run.seq), clock.sleep(pauses.next()))

    def _expected(self, level: int) -> bytes | None:
        """The hash of what the epoch begins with, if the chain has it."""
        return contents.expected(self._run, self._model, level)

    def _keep(self, replica: Replica, hashes: Mapping[int, bytes]) -> None:
        """Begin with the tensors of a replica that has some levels as the epoch begins with them."""
        right = {level for level in self._role.levels if hashes[level] == self._expected(level)}
        if right:
            self._weights = {name: tensor.detach() for name, tensor in replica.params.items()}
            self._lacking -= right
            self._sought = frozenset(self._lacking)

    # --- from peers ---------------------------------------------------------------------------------------------

    async def _offers(self, among: int) -> Mapping[int, list[Offer]]:
        """What those of the seats `among` that are here offer, this member apart, by level.

        Those of the run's step come first: others are right only if the level has not changed since.
        """
        members, step = self._ports.feed.members, self._run.step
        seats = bitmap.seats(among & self._run.current.roster & ~(1 << self._seat))
        peers = [members.seats[seat].p2p for seat in seats]
        found = await ask_offers(self._ports.transport, self._role.schema.state, peers, _ANSWER)
        return {level: sorted(offers, key=lambda offer: offer.step != step) for level, offers in found.items()}

    async def _from_peers(self) -> str:
        """Take the attested levels that peers offer and the rest from the durable checkpoint; from where, in words."""
        self._weights = self._weights or await self._workers.compute(self._origin.blank)
        known = contents.attested(self._run)
        if attested := {level: known[level] for level in self._lacking & known.keys()}:
            for reason in await self._fetch(attested, self._run.finishers):
                self._ports.events.emit(kinds.Warning(message=reason, until="model"))
        if not self._lacking:
            return "peers"
        first = "" if self._lacking == self._sought else "peers and "
        return first + await self._from_durable()

    async def _fetch(self, wanted: Mapping[int, bytes], among: int) -> list[str]:
        """Take the levels with these hashes from the seats `among`, as far as they have them; return what failed."""
        offers = await self._offers(among)
        remaining = self._run.state_started_at + self._run.config.warmup_time - self._ports.coordinator.now()
        given = self._ports.transport, self._ports.clock, self._role.schema.state, self._workers.decode
        fetcher = LevelFetcher(*given, parallel=self._parallel, deadline_s=float(max(10, remaining)))
        reasons = list[str]()
        for level in sorted(wanted, reverse=True):
            try:
                await fetcher.fetch(level, offers.get(level, ()), self._weights, wanted[level])
                self._lacking.discard(level)
            except ModelUnavailable as error:
                reasons.append(str(error))
        return reasons

    # --- from the durable checkpoint ----------------------------------------------------------------------------

    async def _from_durable(self) -> str:
        """Take the lacking levels from the first place that has the durable checkpoint, else from members that have it.

        Return from where, in words. ModelUnavailable if the chain vouches for something else; CheckpointError and
        others if there is no such place.
        """
        levels = set(self._lacking)
        try:
            durable = await self._durable(levels)
        except (ModelUnavailable, CheckpointError, ModelConfigError, SchemaError, SegmentError, OSError):
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
        wanted = {level: digest for level in levels if (digest := self._expected(level)) is not None}
        if len(wanted) == len(levels):  # else only the place that the chain names is the same for all
            self._weights = self._weights or await self._workers.compute(self._origin.blank)
            await self._fetch(wanted, among=-1)
        return not self._lacking

    async def _durable(self, levels: set[int]) -> dict[str, Tensor]:
        """The tier's weights from one of the places recorded for the step of the durable checkpoint.

        Try this member's own copy of the step first, then every place recorded for the step: a member may have named a
        false one. If a level has no hash to check a place by, try only the present place, which is the same for all
        members.
        """
        model, reasons = self._ports.feed.model, list[Exception]()
        own = self._own_copy(steps_before(model.checkpoint_step))
        same = [one.checkpoint for one in model.recorded if one.step == model.checkpoint_step]  # the present one first
        if any(self._expected(level) is None for level in levels):
            same, own = [model.checkpoint], []
        own = [place for place in own if place not in same]
        for place in dict.fromkeys(own + same):
            try:
                durable = await self._workers.compute(lambda place=place: self._origin.durable(place))  # type: ignore[misc]
                for level in sorted(levels):
                    await self._vouch(level, durable)
                return durable
            except (ModelUnavailable, CheckpointError, ModelConfigError, SchemaError, SegmentError, OSError) as error:
                reasons.append(error)
            except Exception as error:  # whatever is wrong with a place costs that place, not this member
                if is_out_of_memory(error):
                    raise
                why = f"{type(error).__name__}: {escaped(str(error))}"
                reasons.append(ModelUnavailable(f"the checkpoint {place.repo} cannot be read: {why}"))
        raise reasons[len(own)]  # what is wrong with the present place

    def _own_copy(self, step: int) -> list[Checkpoint]:
        """Return this member's own directory of a step, if it kept one. The place on chain may be false."""
        if self._kept is None:
            return []
        run = self._run
        place = step_directory(self._kept, stem_of_run(self._kept, run.run_id, run.identity), step)
        return [Checkpoint(CheckpointKind.LOCAL, str(place.absolute()), "")] if place.is_dir() else []

    def _copy(self, durable: dict[str, Tensor], levels: set[int]) -> None:
        for segment in (s for level in levels for s in self._role.schema.state.of_level(level)):
            write_segment(self._weights, segment, segment_bytes(durable, segment))

    async def _vouch(self, level: int, weights: dict[str, Tensor]) -> None:
        expected = self._expected(level)
        found = await self._workers.compute(lambda: level_hash(weights, self._role.schema.state, level))
        if expected is not None and found != expected:
            raise ModelUnavailable(f"level {level} of the durable checkpoint is not the one the members attested")


def warmup_over(started: Run, now: Run) -> bool:
    """Whether the warm-up that was seen in `started` is over; one that is tried again is another."""
    again = now.epoch_started_at != started.epoch_started_at
    return now.epoch != started.epoch or now.state is not RunState.WARMUP or again


def why_no_model(error: Exception, model: Model) -> str:
    """Return an error with the fix for a member: fixes for owners tell how to make a model."""
    checkpoint = model.checkpoint
    if isinstance(error, HubAway) and steps_before(model.checkpoint_step):
        fix = "A member named this place, so this member also asks others that have the checkpoint"
        return f"{error.message}\n{fix}; or check this machine's internet connection"
    if not isinstance(error, CheckpointError) or checkpoint.kind is not CheckpointKind.LOCAL:
        return str(error)
    return f"{error.message}\n{advice_to_member('model', checkpoint.repo)}"
