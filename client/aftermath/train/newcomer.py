"""Get the model's outline and the run's schema, which a member needs before it can join.

The checkpoints recorded on chain come first, because they need no peer. Unusable ones are skipped
with a warning, because any member of tier 0 can record one. If none is usable, the newcomer joins
without state, asks its peers, and leaves again. That is not possible while the run is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aftermath.base.allowed_locations import RunAccess
from aftermath.base.concurrency import Worker
from aftermath.base.errors import AftermathError
from aftermath.coordinator.errors import Refused, Unavailable
from aftermath.coordinator.ports import Clock, Coordinator, View
from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.model.outline import Outline
from aftermath.optim.schema import Schema
from aftermath.p2p.transport import Transport
from aftermath.replica.outline_sharing import ask_outline
from aftermath.rules import bitmap
from aftermath.rules.members import Members
from aftermath.rules.model import Checkpoint
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, ModelSource, RunState
from aftermath.train.admission import check_model
from aftermath.train.requirements import outline_of, schema_from

_PATIENCE = 60.0  # seconds for asking the members
_LOOK_AGAIN = 1.0  # seconds between two attempts
_LEAVING = 10.0  # timeout of leaving the run, in seconds


def others(run: Run, members: Members, wallet: bytes) -> list[bytes]:
    """Return the p2p keys of all active and waiting members except this wallet."""
    present = members.mask(MemberState.HEALTHY) | members.pending | run.finishers
    seats = [members.seats[seat] for seat in bitmap.seats(present)]
    return sorted({seat_.p2p for seat_ in seats if seat_.signer != wallet})


def may_ask(view: View, wallet: bytes) -> bool:
    """Return whether members can send the outline, and the model when this member joins.

    Members send no model for an epoch that starts from a checkpoint. Once an epoch is running, the
    next one starts from its members.
    """
    run = view.run
    from_members = (
        run.model_source is ModelSource.PEERS or run.state is RunState.WARMUP or run.active
    )
    return not run.halted and from_members and bool(others(run, view.members, wallet))


class Newcomer:
    """Gets a run's model outline and schema, from a checkpoint or from peers."""

    def __init__(
        self,
        run_id: str,
        tier: int,
        chain: Coordinator,
        transport: Transport,
        clock: Clock,
        events: Events,
        access: RunAccess,
    ) -> None:
        self._run_id = run_id
        self._tier = tier
        self._access = access
        self._chain = chain
        self._transport = transport
        self._clock = clock
        self._events = events

    async def outline(self, compute: Worker, *fallbacks: Checkpoint) -> tuple[Outline, Schema]:
        """Return the model's outline and the run's schema.

        Try the recorded checkpoints, then `fallbacks`, then the members. Raises what `outline_of`
        raises if all of them fail.
        """
        view = await self._chain.view()
        check_model(view.model, self._run_id)
        try:
            known = view.model, self._run_id, self._warn
            return await compute(lambda: outline_of(*known, *fallbacks, access=self._access))
        except AftermathError as error:
            if not may_ask(view, self._chain.wallet):
                raise
            self._warn(
                f"found no readable checkpoint; asking other members for the model: {error.message}"
            )
            if (answer := await self._from_members(view, compute)) is None:
                raise
            return answer

    def _warn(self, message: str) -> None:
        self._events.emit(event_types.Warning(message=message))

    async def _from_members(self, view: View, compute: Worker) -> tuple[Outline, Schema] | None:
        """Join, ask the members and leave. Return None if joining fails or nobody answers."""
        try:
            await self._chain.join(
                p2p=self._transport.node_id,
                tier=self._tier,
                weight=1,
                schema_hash=view.model.schema_hash,
                stateless=True,
            )
            return await self._ask(view, compute)
        except (Refused, Unavailable):
            return None
        finally:
            try:
                await asyncio.wait_for(self._chain.leave(), _LEAVING)
            except (Refused, Unavailable, TimeoutError):
                pass  # the other members drop it after a timeout

    async def _ask(self, view: View, compute: Worker) -> tuple[Outline, Schema] | None:
        def schema(config: Mapping[str, Any]) -> Schema:
            return schema_from(config, model, self._run_id, "the model config that a member sent")

        model = view.model
        ends = self._clock.monotonic() + _PATIENCE
        while self._clock.monotonic() < ends:
            peers = others(view.run, view.members, self._chain.wallet)
            self._transport.set_members(peers)
            if (answer := await ask_outline(self._transport, peers, schema, compute)) is not None:
                return answer
            await self._clock.sleep(_LOOK_AGAIN)
            view = await self._chain.view()
        return None
