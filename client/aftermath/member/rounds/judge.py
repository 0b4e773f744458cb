"""Judge another member's result: fetch what it committed to, replay its share, and compare.

It convicts nobody. It abstains if it could not fetch the private state, because an unreachable
member may be honest.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from safetensors import SafetensorError
from torch import Tensor

from aftermath.audit.claim import Claim, ProvenBlocks, known_state
from aftermath.audit.replay import AuditedShare
from aftermath.audit.replay_devices import why_no_replay
from aftermath.audit.share_audit import Attempt, Judgement, ShareAudit
from aftermath.audit.start_weights import StartWeights
from aftermath.base.concurrency import both
from aftermath.base.rate_limit import Backoff
from aftermath.data.source import SourceUnavailable
from aftermath.events import event_types
from aftermath.member.local_options import LocalOptions
from aftermath.member.payloads import Candidate
from aftermath.member.ports import Ports, Role, Workers
from aftermath.member.round_plan import RoundPlan
from aftermath.member.rounds.epoch import CarriedOver, Epoch
from aftermath.member.rounds.evidence_fetch import FIRST_PAUSE, LONGEST_PAUSE, EvidenceFetch
from aftermath.member.rounds.spare_time import SpareTime
from aftermath.optim.engine import state_like
from aftermath.replica.memory import is_out_of_memory
from aftermath.rules.announcements import Commitment, PassSettings
from aftermath.rules.audits import judging_window
from aftermath.rules.seal import masked

Key = tuple[int, int]
"""Height of a result's round, and seat of its member."""


@dataclass(frozen=True)
class AuditedResult:
    """A recorded result and the round in which it was trained."""

    plan: RoundPlan
    candidate: Candidate

    @property
    def commitment(self) -> Commitment:
        """Return the member's commitment."""
        return self.candidate.commitment

    @property
    def key(self) -> Key:
        """Return the result's round and seat."""
        return self.commitment.height, self.commitment.seat

    @cached_property
    def payloads(self) -> Mapping[int, bytes] | None:
        """Return the unmasked payload of every level, or None if one is missing."""
        found = self.candidate.payloads
        if not self.candidate.key or self.commitment.levels.keys() - found.keys():
            return None
        return {
            level: masked(found[level], self.candidate.key, level)
            for level in self.commitment.levels
        }


class Judge:
    """Judges results of one epoch for one member."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        workers: Workers,
        carried: CarriedOver,
        epoch: Epoch,
        options: LocalOptions,
    ) -> None:
        self._ports = ports
        self._role = role
        self._compute = workers.compute
        self._read = workers.read
        self._prepare = workers.decode
        self._data = carried.data
        self._epoch = epoch
        self._weights = StartWeights(options.audit_dir, judging_window(epoch.rules) + 1)
        self._dummy = bool(options.share_delay)  # then members send noise instead of training
        self._passes: dict[int, PassSettings] = {}
        """Passes of each member's last result, by seat."""
        self._device = epoch.start.replica.device
        self._turn = asyncio.Lock()
        self.spare_time = SpareTime(workers.audit, pauses=self._device.type == "cpu")
        self._fetch = EvidenceFetch(ports, role.schema, workers, options.audit_dir)

    # --- weights at the start of rounds

    def note(self, commitment: Commitment) -> None:
        """Remember the passes of a member's last result."""
        self._passes[commitment.seat] = commitment.passes

    def may_judge(self, seat: int) -> bool:
        """Return whether this device may be able to judge a member's next result."""
        passes = self._passes.get(seat)
        return passes is None or not self._why_not(passes)

    def _why_not(self, passes: PassSettings) -> str | None:
        """Return why this device cannot judge a share with these passes, or None."""
        compiles = self._epoch.start.replica.passes.arithmetic.compiled
        return why_no_replay(passes, self._role.schema, self._device, compiles=compiles)

    async def keep_weights(self, height: int) -> None:
        """Copy the weights that a round is trained from."""
        params = self._epoch.start.replica.params
        try:
            await self._compute(lambda: self._weights.keep(height, params))
        except Exception as error:
            if not (is_out_of_memory(error) or isinstance(error, OSError | SafetensorError)):
                raise
            message = (
                f"cannot audit round {height}, because its starting weights could not be stored: "
                f"{error}. Free memory or disk space"
            )
            self._ports.events.emit(event_types.Warning(message=message, until="trained"))

    def retain_weights(self, heights: Collection[int]) -> None:
        """Drop the weights of all other rounds."""
        self._weights.retain(heights)

    # --- judging

    def trouble(self, result: AuditedResult) -> str:
        """Return why the state of a result was not fetched yet, or an empty string."""
        return self._fetch.trouble(result.commitment)

    async def probe(self, result: AuditedResult, seed: int) -> None:
        """Fetch the drawn blocks of the residual after a share. Retry until cancelled.

        For `seed` see `judge`.
        """
        await self._fetch.probe(result.commitment, seed)

    async def judge(
        self, result: AuditedResult, seed: int, lender: bytes | None = None
    ) -> Judgement:
        """Return this member's verdict. Slow: it fetches the private state until cancelled.

        Results are fetched concurrently, into files, so a slow member delays no other judgement.
        Only one result at a time is judged, because its two states may need much memory.

        `seed` is that of the draw among the round's results. `lender` is the p2p key of the
        auditor, which lends the state's blocks to the jury.
        """
        commitment = result.commitment
        shapes = self._role.schema.state.config.parameter_shapes(commitment.tier)
        shared = self._weights.of(commitment.height, shapes)
        payloads = result.payloads
        if why := self._why_not(commitment.passes):
            return Judgement(None, why)
        if shared is None:
            return Judgement(None, "this member does not have the starting weights of that round")
        if payloads is None:
            return Judgement(None, "this member does not have all payloads of the result")
        try:
            evidence, sequences = await both(
                self._fetch.evidence(commitment, seed, lender), self._sequences(result)
            )
            async with self._turn:
                return await self._compare(result, shared, payloads, evidence, sequences)
        except OSError as error:
            return Judgement(
                None, f"this member cannot store or read what the replay needs: {error}"
            )

    async def _compare(
        self,
        result: AuditedResult,
        shared: Mapping[str, Tensor],
        payloads: Mapping[int, bytes],
        evidence: ProvenBlocks,
        sequences: Tensor,
    ) -> Judgement:
        """Replay a result's share, and compare. A mismatch has the evidence."""
        commitment = result.commitment
        schema = self._role.schema
        before: Mapping[str, Tensor] = {}
        if evidence.before:
            like = await self._prepare(lambda: state_like(schema, commitment.tier))
            before = await self._prepare(lambda: known_state(like, evidence.before).tensors)
        claim = Claim(payloads, commitment.private.after, evidence.after)
        share = self._share(result, shared, before, sequences)
        audit = ShareAudit(
            share, claim, commitment.passes, self._device, self._epoch.start.replica.at_once
        )
        first = await self.spare_time.run(audit.attempt)
        if isinstance(first, Judgement):
            return first
        if not first.is_mismatch:
            return first.judgement
        judgement = first.judgement
        for repetition in range(1, audit.repeats + 1):
            again = await self.spare_time.run(partial(audit.attempt, repetition=repetition))
            if isinstance(again, Judgement):
                return again
            judgement = await self.spare_time.run(partial(_conclude, audit, first, again))
            if judgement.verdict is None:
                break
        return replace(judgement, evidence=evidence)

    def _share(
        self,
        result: AuditedResult,
        shared: Mapping[str, Tensor],
        before: Mapping[str, Tensor],
        sequences: Tensor,
    ) -> AuditedShare:
        commitment = result.commitment
        last = (commitment.epoch, commitment.height - 1)
        start = result.plan.ranges(commitment.seat)[0].start
        return AuditedShare(
            schema=self._role.schema,
            config=self._role.schema.state.config,
            tier=commitment.tier,
            shared=shared,
            before=before,
            sequences=sequences,
            lr=self._epoch.learning_rate(commitment.step),
            ahead_lr=self._epoch.learning_rate(commitment.step - 1),
            peak_lr=self._epoch.start.model.lr_schedule.peak,
            travelling=bool(self._epoch.rules.overlap) and commitment.private.since == last,
            dummy_seed=start if self._dummy else None,
        )

    async def _sequences(self, result: AuditedResult) -> Tensor:
        """Read the sequences of a share. Retry while their source is not available."""
        indices = [index for span in result.plan.ranges(result.commitment.seat) for index in span]
        pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                return torch.from_numpy(await self._read(lambda: self._data.read(indices)))
            except SourceUnavailable:
                await self._ports.clock.sleep(pauses.next())


def _conclude(
    audit: ShareAudit, first: Attempt, again: Attempt, cancelled: threading.Event
) -> Judgement:
    return audit.conclude(first, again)
