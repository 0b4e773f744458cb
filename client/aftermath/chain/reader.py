"""Read a run's view at one moment, and the attestations of a round.

Run comes from the watcher. Model and Members are read again only when the run's `model_seq` or
`members_seq` changed, together with Run, so that a view is of one slot. Attestations are a slice of
Witnesses, at the slot of the newest Run or later.
"""

from __future__ import annotations

from dataclasses import replace

from solders.pubkey import Pubkey

from aftermath.base.errors import AccountError
from aftermath.chain.addresses import run_addresses
from aftermath.chain.failures import BadReply
from aftermath.chain.node_client import AccountData, NodeClient
from aftermath.chain.nodes import FAILURES_BEFORE_LEAVING
from aftermath.chain.rpc import MAX_ENDPOINTS, RpcPool
from aftermath.chain.run_watcher import GIVE_UP_SECONDS, RunWatcher
from aftermath.chain.views import (
    parse_cases,
    parse_members,
    parse_model,
    parse_witness_round,
    require_readable,
    witness_round_range,
    witnesses_cases_range,
)
from aftermath.coordinator.errors import Refused
from aftermath.coordinator.ports import View
from aftermath.rules.audits import Case
from aftermath.rules.model import Model
from aftermath.rules.run import Attestation, Round, Run

# Tries to read attestations that no node sends whole.
_READINGS = FAILURES_BEFORE_LEAVING * MAX_ENDPOINTS


async def cross_check(pool: RpcPool, address: Pubkey, model: Model, slot: int) -> None:
    """Raise BadReply if another node sends a training spec that differs from `model`'s.

    A node sends the spec and its hash in one account, so it can forge both. A spec that would end
    members is accepted only if no other node contradicts it.

    Reads the account at `address` as of `slot` or later.
    """

    async def agrees(node: NodeClient) -> bool:
        _, account = await node.account(address, min_slot=slot or None)
        return account is None or same_spec(parse_model(account.data, any_spec=True), model)

    if not await pool.uncontradicted(agrees):
        raise BadReply("the RPC node sent another training spec than another node")


def same_spec(first: Model, second: Model) -> bool:
    """Return whether members train by the same spec and sequence length in both."""
    return (first.spec_hash, first.max_seq_len) == (second.spec_hash, second.max_seq_len)


class RunReader:
    """Reads the accounts of a run that `watcher` follows.

    A member cannot continue without the chain, so a read waits as long as the watcher does for it.
    """

    def __init__(self, pool: RpcPool, program_id: Pubkey, run_id: str, watcher: RunWatcher) -> None:
        self._pool = pool
        self._watcher = watcher
        self._addresses = run_addresses(program_id, run_id)
        self.last: View | None = None
        """The newest view that was handed out."""

    async def view(self, patience: float | None = None) -> View:
        """Return the view of the newest known state, or with `patience` of a state that is read
        now, within these seconds.

        Raises Unsuitable if this client cannot read the training spec of a run that is not halted.
        """
        run = self._watcher.latest if patience is None else await self._watcher.refresh(patience)
        last = self.last
        if last is None or last.run.seq < run.seq:
            if last is not None and _is_still_of(last, run):
                view = replace(last, run=run)
            else:
                view = await self._read_together(
                    run, GIVE_UP_SECONDS if patience is None else patience
                )
            if self.last is None or self.last.run.seq < view.run.seq:
                self.last = view
        assert self.last is not None
        return self.last

    async def _read_together(self, newest: Run, patience: float) -> View:
        """Return all three accounts as of one slot, in which the run is as `newest` or newer."""

        async def ask(node: NodeClient) -> View:
            run, accounts = await self._watcher.source.read(
                node, [self._addresses.members, self._addresses.model]
            )
            if run.seq < newest.seq:
                raise BadReply("the RPC node sent an older state of the run under a newer slot")
            members, model = accounts
            if members is None or model is None:
                raise BadReply("the RPC node does not know an account of the run")
            return View(run, parse_members(members.data), await self._believed(model, run))

        return await self._pool.call(ask, patience=patience)

    async def _believed(self, account: AccountData, run: Run) -> Model:
        """Return the model in an account that a node sent.

        An unreadable or changed spec can end a member, so it is accepted only if no other node
        contradicts it. The owner may still replace the spec of a halted run, so an unreadable one
        ends a member only after the run resumes. Raises Unsuitable.
        """
        model = parse_model(account.data, any_spec=True)
        last = self.last
        if model.spec_error or (last is not None and not same_spec(last.model, model)):
            slot = self._watcher.newest.slot
            await cross_check(self._pool, self._addresses.model, model, slot)
        if not run.halted:
            require_readable(model)
        return model

    async def attestations(self, round: Round) -> tuple[Attestation, ...]:
        """Return what the witnesses of `round` have sent so far.

        Raises Refused: `RoundNotStored` when the chain no longer holds that round, `Unreadable`
        when nodes send something else for it again and again.
        """
        ring, stored = self._stored(round)
        if stored.attestations == 0:
            return ()
        offset, length = witness_round_range(ring, stored.attestations)
        torn = 0

        async def ask(node: NodeClient) -> tuple[int, tuple[Attestation, ...]]:
            nonlocal torn
            min_slot = self._watcher.newest.slot or None
            slot, account = await node.account(
                self._addresses.witnesses, offset=offset, length=length, min_slot=min_slot
            )
            if account is None:
                await self._watcher.source.read(node)  # raises if the run was closed
                raise BadReply("the RPC node does not know an account of the run")
            try:
                return slot, parse_witness_round(account.data, stored.attestations)
            except AccountError as error:
                torn += 1
                if torn < _READINGS:
                    raise  # the pool counts it as this node's failure
                reason = f"no node sends valid attestations of round {round.height}"
                raise Refused("Unreadable", reason) from error

        slot, attestations = await self._pool.call(ask, patience=GIVE_UP_SECONDS)
        if self._watcher.newest.slot < slot:
            await self._watcher.refresh(GIVE_UP_SECONDS, min_slot=slot)
        # a read can take so long that a later round has overwritten these attestations
        self._stored(round)
        return attestations

    async def cases(self) -> tuple[Case, ...]:
        """Return the cases about audited results as of the newest Run or later."""
        offset, length = witnesses_cases_range()

        async def ask(node: NodeClient) -> tuple[Case, ...]:
            min_slot = self._watcher.newest.slot or None
            _, account = await node.account(
                self._addresses.witnesses, offset=offset, length=length, min_slot=min_slot
            )
            if account is None:
                await self._watcher.source.read(node)  # raises if the run was closed
                raise BadReply("the RPC node does not know an account of the run")
            return parse_cases(account.data)

        return await self._pool.call(ask, patience=GIVE_UP_SECONDS)

    def _stored(self, round: Round) -> tuple[int, Round]:
        """Return where the newest Run holds `round`, and its header there."""
        run = self._watcher.latest
        ring = run.ring(round.height)
        stored = run.round(round.height)
        if ring is None or stored is None or stored.seed != round.seed:
            raise Refused("RoundNotStored", f"round {round.height} is no longer stored")
        return ring, stored


def _is_still_of(view: View, run: Run) -> bool:
    """Return whether the view's members and model are still those of a newer state of the run."""
    # an unreadable spec is read again once the run is no longer halted
    is_read = run.halted or not view.model.spec_error
    return is_read and _versions(view.run) == _versions(run)


def _versions(run: Run) -> tuple[int, int]:
    """Return numbers that differ between two states if Members or Model changed in between."""
    return run.members_seq, run.model_seq
