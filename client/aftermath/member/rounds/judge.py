"""Judge another member's result: fetch what it committed to, replay its share, and compare.

It convicts nobody. It never judges a result whose private state it could not fetch: an unreachable
member is not a dishonest one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from aftermath.audit.claim import (
    RESIDUAL,
    Claim,
    blocks_to_fetch,
    claim_of,
    drawn_residual_blocks,
    known_state,
    start_blocks,
)
from aftermath.audit.comparison import AuditVerdict, Comparison, compare
from aftermath.audit.judges import why_not_judge
from aftermath.audit.replay import AuditedShare, NoResult, Replay, replay
from aftermath.audit.start_weights import StartWeights
from aftermath.base.concurrency import both, first_of
from aftermath.base.rate_limit import Backoff
from aftermath.data.source import SourceUnavailable
from aftermath.member.payloads import Candidate
from aftermath.member.ports import Ports, Role, Workers
from aftermath.member.round_plan import RoundPlan
from aftermath.member.rounds.epoch import CarriedOver, Epoch
from aftermath.member.rounds.spare_time import SpareTime
from aftermath.optim.engine import outline_of, state_like
from aftermath.optim.interfaces import BadState
from aftermath.optim.state_merkle import StateOutline
from aftermath.p2p.transport import TransportError
from aftermath.replica.memory import free_bytes, is_out_of_memory
from aftermath.replica.pass_size import OutOfMemory
from aftermath.replica.replica import Cancelled
from aftermath.replica.state_sharing import FalseBlock, StateBlock, ask_block, ask_lent
from aftermath.replica.tier_memory import state_bytes
from aftermath.rules.announcements import NOTHING, Commitment
from aftermath.rules.seal import masked

logger = logging.getLogger(__name__)

_BLOCK_SECONDS = 10.0
_AT_ONCE = 4  # requests for blocks
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 15.0
_COPIES = 2  # of weights and optimizer state, that a replay and its comparison take
_NO_MEMORY = "this machine has too little memory for the replay"
_LENDER_PAUSE = 3.0  # seconds for the member itself to serve its state


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


@dataclass(frozen=True)
class ProvenBlocks:
    """Proven blocks of a member's private state before and after its share."""

    before: Mapping[int, StateBlock]
    after: Mapping[int, StateBlock]


@dataclass(frozen=True)
class Judgement:
    """What a member finds about a result. `verdict` is None if it abstains."""

    verdict: AuditVerdict | None
    reason: str
    is_hardware_fault: bool = False
    evidence: ProvenBlocks | None = None
    """What proves that the result is false, if an auditor found that."""


@dataclass(frozen=True)
class _Attempt:
    comparison: Comparison
    replay: Replay | None
    """None if the state before the share could not be restored."""


class Judge:
    """Judges results of one epoch for one member."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        workers: Workers,
        carried: CarriedOver,
        epoch: Epoch,
        weights: StartWeights,
        *,
        delay: float,
    ) -> None:
        """`delay`: whether members send noise instead of training (`LocalOptions.share_delay`)."""
        self._ports = ports
        self._role = role
        self._read = workers.read
        self._prepare = workers.decode
        self._data = carried.data
        self._epoch = epoch
        self._weights = weights
        self._dummy = bool(delay)
        self._device = epoch.start.replica.device
        self.spare_time = SpareTime(workers.audit, pauses=self._device.type == "cpu")
        self._trouble: dict[bytes, str] = {}

    def trouble(self, result: AuditedResult) -> str:
        """Return why the state of a result was not fetched yet, or an empty string."""
        return self._trouble.get(result.commitment.digest, "")

    async def probe(self, result: AuditedResult) -> None:
        """Fetch one block of the state after a share. Retry until cancelled."""
        commitment = result.commitment
        state_outline = await self._outline(commitment)
        index = int.from_bytes(self._secret(commitment)[8:16], "little") % state_outline.count
        await self._blocks(
            commitment.digest, commitment.sender, commitment.private.after, state_outline, [index]
        )

    async def _outline(self, commitment: Commitment) -> StateOutline:
        return await self._prepare(lambda: outline_of(self._role.schema, commitment.tier))

    def _secret(self, commitment: Commitment) -> bytes:
        """Return a seed that the audited member does not know."""
        return hashlib.sha256(b"audit" + self._role.p2p_secret + commitment.digest).digest()

    async def judge(self, result: AuditedResult, lender: bytes | None = None) -> Judgement:
        """Return this member's judgement. Slow; retries until cancelled to fetch the private state.

        `lender` is the p2p key of a member that lends the state's blocks.
        """
        commitment = result.commitment
        schema = self._role.schema
        shapes = schema.state.config.parameter_shapes(commitment.tier)
        shared = self._weights.of(commitment.height, shapes)
        payloads = result.payloads
        if why := why_not_judge(commitment.passes, schema, self._device):
            return Judgement(None, why)
        if shared is None:
            return Judgement(None, "this member does not have the weights of that round's start")
        if payloads is None:
            return Judgement(None, "this member does not have all payloads of the result")
        state_outline = await self._outline(commitment)
        waits = [self._from_member(result, state_outline)]
        if lender is not None:
            waits.append(self._from_lender(result, state_outline, lender))
        evidence, sequences = await both(first_of(*waits), self._sequences(result))
        before: Mapping[str, Tensor] = {}
        if evidence.before:
            like = await self._prepare(lambda: state_like(schema, commitment.tier))
            before = await self._prepare(lambda: known_state(like, evidence.before).tensors)
        claim = Claim(payloads, commitment.private.after, evidence.after)
        share = self._share(result, shared, before, sequences)
        first = await self._attempt(share, claim)
        if isinstance(first, Judgement) or first.comparison.verdict is AuditVerdict.MATCH:
            return _judgement(first)
        # Before it accuses, a member makes sure that its own machine computes the same again.
        second = await self._attempt(share, claim)
        if isinstance(second, Judgement):
            return second
        if not await self.spare_time.run(lambda _: _agree(first, second)):
            return Judgement(
                None, "two replays on this machine differ: its hardware is faulty", True
            )
        judgement = _judgement(second)
        return replace(judgement, evidence=evidence) if lender is None else judgement

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
            travelling=bool(self._epoch.rules.overlap) and commitment.private.since == last,
            dummy_seed=start if self._dummy else None,
        )

    async def _attempt(self, share: AuditedShare, claim: Claim) -> _Attempt | Judgement:
        """Replay a share in spare time, and compare. Return a judgement if that is impossible."""
        micro_batch = self._epoch.start.replica.at_once

        def attempt(cancelled: threading.Event) -> _Attempt | Judgement:
            # On a CPU the system would kill this member instead of refusing memory.
            if free_bytes(self._device) < _COPIES * state_bytes(share.schema, share.tier):
                return Judgement(None, _NO_MEMORY)
            try:
                found = replay(
                    share, device=self._device, micro_batch=micro_batch, cancelled=cancelled
                )
                if isinstance(found, NoResult):
                    return Judgement(None, f"the replay has no result: {found.reason}")
                return _Attempt(compare(found, claim), found)
            except BadState as error:
                reason = f"no encoder leaves the state before the share: {error.message}"
                return _Attempt(Comparison(AuditVerdict.MISMATCH, reason, None), None)
            except Cancelled:
                raise
            except Exception as error:
                if isinstance(error, OutOfMemory) or is_out_of_memory(error):
                    return Judgement(None, _NO_MEMORY)
                # The inputs are another member's, and no error in them may end this member.
                return Judgement(None, f"the replay failed: {type(error).__name__}: {error}")

        return await self.spare_time.run(attempt)

    # --- what a replay needs

    async def _from_member(
        self, result: AuditedResult, state_outline: StateOutline
    ) -> ProvenBlocks:
        """Fetch what a replay needs from the member itself. Retry until cancelled."""
        commitment = result.commitment
        schema = self._role.schema
        sample = drawn_residual_blocks(state_outline, self._secret(commitment))
        return await self._fetch(
            result,
            commitment.sender,
            state_outline,
            before=start_blocks(state_outline, schema, sample),
            after=blocks_to_fetch(state_outline, schema.results, sample),
        )

    async def _from_lender(
        self, result: AuditedResult, state_outline: StateOutline, lender: bytes
    ) -> ProvenBlocks:
        """Fetch from the auditor what it fetched itself. Retry until cancelled."""
        # Blocks are proven, so an auditor cannot forge them. The member itself comes first, because
        # there this member chooses the blocks of the residual.
        pauses = Backoff(_LENDER_PAUSE, _LONGEST_PAUSE)
        while True:
            await self._ports.clock.sleep(pauses.next())
            try:
                before, after = await self._lent(result, state_outline, lender)
                has_before = result.commitment.private.before != NOTHING
                if self._suffice(state_outline, before, after, has_before=has_before):
                    return await self._fetch(
                        result, lender, state_outline, before=before, after=after
                    )
            except (TransportError, FalseBlock):
                continue
            except Exception:
                # An auditor's false answer must not end the fetch from the member itself.
                logger.debug("a lender of private blocks was skipped", exc_info=True)

    async def _lent(
        self, result: AuditedResult, state_outline: StateOutline, lender: bytes
    ) -> tuple[list[int], list[int]]:
        """Return the indices of the blocks that an auditor lends of both states."""
        private = result.commitment.private
        transport = self._ports.transport
        after = await ask_lent(transport, lender, private.after, state_outline, _BLOCK_SECONDS)
        if private.before == NOTHING:
            return [], after
        before = await ask_lent(transport, lender, private.before, state_outline, _BLOCK_SECONDS)
        return before, after

    def _suffice(
        self,
        state_outline: StateOutline,
        before: Collection[int],
        after: Collection[int],
        *,
        has_before: bool,
    ) -> bool:
        """Return whether these blocks are enough for a replay and a comparison."""
        schema = self._role.schema
        sample = [index for index in after if state_outline.place(index).name.startswith(RESIDUAL)]
        wanted = set(start_blocks(state_outline, schema, sample)) if has_before else set()
        return (
            bool(sample)
            and wanted <= set(before)
            and set(blocks_to_fetch(state_outline, schema.results, sample)) <= set(after)
        )

    async def _fetch(
        self,
        result: AuditedResult,
        peer: bytes,
        state_outline: StateOutline,
        *,
        before: Collection[int],
        after: Collection[int],
    ) -> ProvenBlocks:
        """Fetch these blocks of both states from a peer. Retry until cancelled."""
        private = result.commitment.private
        digest = result.commitment.digest
        if private.before == NOTHING:
            before = ()
        return ProvenBlocks(
            await self._blocks(digest, peer, private.before, state_outline, before),
            await self._blocks(digest, peer, private.after, state_outline, after),
        )

    async def _blocks(
        self,
        digest: bytes,
        peer: bytes,
        root: bytes,
        state_outline: StateOutline,
        wanted: Collection[int],
    ) -> dict[int, StateBlock]:
        """Fetch blocks of a private state. Retry until cancelled."""
        found: dict[int, StateBlock] = {}
        turns = asyncio.Semaphore(_AT_ONCE)

        async def fetch(index: int) -> None:
            async with turns:
                found[index] = await ask_block(
                    self._ports.transport, peer, root, state_outline, index, _BLOCK_SECONDS
                )

        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while missing := [index for index in wanted if index not in found]:
            outcomes = await asyncio.gather(*map(fetch, missing), return_exceptions=True)
            for error in filter(None, outcomes):
                if not isinstance(error, TransportError | FalseBlock):
                    raise error
                self._trouble[digest] = str(error)
            if len(found) < len(wanted):
                await self._ports.clock.sleep(pauses.next())
        return found

    async def _sequences(self, result: AuditedResult) -> Tensor:
        """Read the sequences of a share. Retry while their source is not available."""
        indices = [index for span in result.plan.ranges(result.commitment.seat) for index in span]
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                return torch.from_numpy(await self._read(lambda: self._data.read(indices)))
            except SourceUnavailable:
                await self._ports.clock.sleep(pauses.next())


def _judgement(attempt: _Attempt | Judgement) -> Judgement:
    if isinstance(attempt, Judgement):
        return attempt
    return Judgement(attempt.comparison.verdict, attempt.comparison.reason)


def _agree(first: _Attempt, second: _Attempt) -> bool:
    """Return whether two attempts on one machine have the same verdict and equal replays.

    Some GPU kernels add in any order, so replays are equal within the bound of an audit.
    """
    if first.comparison.verdict is not second.comparison.verdict:
        return False
    if first.replay is None or second.replay is None:
        return first.replay is second.replay
    own = claim_of(second.replay.payloads, second.replay.state)
    return compare(first.replay, own).verdict is AuditVerdict.MATCH
