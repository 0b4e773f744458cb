"""Reading one run: its view of one moment, and what witnesses have sent of a round.

Decided: Run comes from the watcher; Model and Members are read again only when the run's `model_seq` or `members_seq`
moved, together with Run, so that all of a view is as of one slot; attestations are read as a slice of Witnesses, as of
the slot of the newest Run or later. When the watcher takes back what it told, what is being read is read anew: else it
would be waited for until some node is as far.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from solders.pubkey import Pubkey

from aftermath.base.errors import AccountError
from aftermath.base.wait import first_of
from aftermath.chain.accounts import AccountData, Doubt, fetch_as, fetch_many
from aftermath.chain.addresses import run_addresses
from aftermath.chain.failures import BadReply
from aftermath.chain.nodes import FAILURES_BEFORE_LEAVING
from aftermath.chain.rpc import MAX_ENDPOINTS, RpcPool
from aftermath.chain.subscription import GIVE_UP_SECONDS, POLL_PATIENCE, RunWatcher, run_closed
from aftermath.chain.views import parse_members, parse_model, parse_witness_round, witness_round_range
from aftermath.coordinator.errors import Refused, Unavailable
from aftermath.coordinator.view import View
from aftermath.rules.run import Attestation, Round, Run

T = TypeVar("T")

# Of attestations that no node sends whole, before they are given up.
_READINGS = FAILURES_BEFORE_LEAVING * MAX_ENDPOINTS


class RunReader:
    """Reads the accounts of a run that `watcher` follows."""

    def __init__(self, pool: RpcPool, program_id: Pubkey, run_id: str, watcher: RunWatcher) -> None:
        self._pool, self._program_id, self._watcher = pool, program_id, watcher
        self._addresses = run_addresses(program_id, run_id)
        self.last: View | None = None
        """The newest view that was handed out."""

    async def view(self, patience: float | None = None) -> View:
        """The view of the newest known state; of one that is read now, if it can be within `patience` seconds."""
        return await self._unless_retracted(lambda: self._view(patience))

    async def _view(self, patience: float | None) -> View:
        run = self._watcher.latest if patience is None else await self._watcher.refresh(patience)
        retractions = self._watcher.retractions
        known = self.last
        if known is None or known.order < (retractions, run.seq):
            same = known is not None and _versions(known) == (retractions, run.members_seq, run.model_seq)
            waits = GIVE_UP_SECONDS if patience is None else patience
            view = replace(known, run=run) if known and same else await self._read_together(run, waits)
            view = replace(view, retractions=retractions)
            if self.last is None or self.last.order < view.order:
                self.last = view
        assert self.last is not None
        return self.last

    async def _unless_retracted(self, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What is read, anew whenever the watcher takes back meanwhile what it told."""
        while True:
            found: list[T] = []

            async def reading(found: list[T] = found) -> None:
                found.append(await read())

            await first_of(reading(), self._watcher.retracted(self._watcher.retractions))
            if found:
                return found[0]

    async def _read_together(self, wanted: Run, patience: float) -> View:
        """All three accounts as of one slot, in which the run is as `wanted` or newer."""
        gone = Doubt(self._pool)
        found: list[View] = []

        def legible(accounts: list[AccountData | None]) -> None:
            if any(account is None or account.owner != self._program_id for account in accounts):
                gone.absent()
                raise run_closed()
            run, members, model = (account.data for account in accounts if account is not None)
            found[:] = [View(self._watcher.parsed_answer(run), parse_members(members), parse_model(model))]
            if found[0].run.seq < wanted.seq:
                raise BadReply("the RPC node sent an older state of the run under a newer slot")

        places = [self._addresses.run, self._addresses.members, self._addresses.model]

        async def ask(least: int | None, seconds: float) -> tuple[int, list[AccountData | None]]:
            return await fetch_many(self._pool, places, min_slot=least, patience=seconds, legible=legible)

        while True:
            slot, accounts = await self._watcher.as_known(ask, patience)
            if await self._watcher.believed(found[0].run):
                break
        if accounts[0] is not None:
            self._watcher.saw(slot, accounts[0])
        return found[0]

    async def attestations(self, round: Round) -> tuple[Attestation, ...]:
        """What the witnesses of `round` have sent so far.

        Raises Refused: `RoundNotStored` when the chain no longer holds that round, `Unreadable` when nodes send
        something else for it again and again.
        """
        ring, stored = self._stored(round)
        if stored.attestations == 0:
            return ()
        offset, length = witness_round_range(ring, stored.attestations)
        torn = 0

        def attested(account: AccountData) -> tuple[int, tuple[Attestation, ...]]:
            nonlocal torn
            try:
                return account.slot, parse_witness_round(account.data, stored.attestations)
            except AccountError as error:
                torn += 1
                if torn < _READINGS:
                    raise  # for the pool: this node's failure
                why = f"no node sends the attestations of round {round.height} as they are"
                raise Refused("Unreadable", why) from error

        slot, attestations = await self._read(self._addresses.witnesses, attested, offset, length)
        if self._watcher.slot < slot:
            await self._caught_up(slot)
        self._stored(round)  # a read can take so long that a later round's attestations are in that place
        return attestations

    async def _caught_up(self, slot: int) -> None:
        try:
            await self._watcher.refresh(POLL_PATIENCE, min_slot=slot)
        except Unavailable:  # who said so may have lied
            await self._watcher.refresh(GIVE_UP_SECONDS)

    def _stored(self, round: Round) -> tuple[int, Round]:
        """Where the newest Run holds `round`, and its header there."""
        run = self._watcher.latest
        ring, stored = run.ring(round.height), run.round(round.height)
        if ring is None or stored is None or stored.seed != round.seed:
            raise Refused("RoundNotStored", f"round {round.height} is no longer stored")
        return ring, stored

    async def _read(
        self, address: Pubkey, parse: Callable[[AccountData], T], offset: int = 0, length: int | None = None
    ) -> T:
        """Without the chain there is nothing else to do, so this waits as long as the watcher does for it to come
        back.
        """

        gone = Doubt(self._pool)

        def read(account: AccountData | None) -> T:
            if account is None or account.owner != self._program_id:
                gone.absent()
                raise run_closed()
            return parse(account)

        async def ask(least: int | None, seconds: float) -> T:
            return await fetch_as(
                self._pool, address, read, offset=offset, length=length, min_slot=least, patience=seconds
            )

        return await self._unless_retracted(lambda: self._watcher.as_known(ask, GIVE_UP_SECONDS))


def _versions(view: View) -> tuple[int, int, int]:
    """What tells whether Members and Model are still those of another state of the run."""
    return view.retractions, view.run.members_seq, view.run.model_seq
