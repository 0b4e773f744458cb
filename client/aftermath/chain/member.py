"""One member's view of its run: the object that the training pipeline receives as its chain.

Decided: a call that changes the run returns when its effect can be read; Run comes from the watcher; Model and
Members are read again only when the run's `model_seq` or `members_seq` moved, and attestations are read as a slice
of Witnesses; every such read is as of the slot of the newest Run, or later. Those reads wait out an outage of minutes;
everything else gives up after seconds, because its caller knows whether it is still worth trying.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TypeVar

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from aftermath.chain.accounts import Absence, AccountData, fetch_as
from aftermath.chain.addresses import run_addresses
from aftermath.chain.admission import VERSION_MISMATCH, check_version
from aftermath.chain.authorizer import Authorizer
from aftermath.chain.coordinator import Coordinator
from aftermath.chain.instructions import witness_metadata
from aftermath.chain.rpc import FAILURES_BEFORE_LEAVING, MAX_ENDPOINTS, RpcPool
from aftermath.chain.spend import ChainSpend
from aftermath.chain.subscription import GIVE_UP_SECONDS, RunWatcher
from aftermath.chain.wallet import Wallet
from aftermath.run.accounts import Attestation, Members, Model, Round, Run
from aftermath.run.errors import AccountError, ChainError, ChainRefused, ChainUnavailable
from aftermath.run.views import parse_members, parse_model, parse_witness_round, witness_round_range

T = TypeVar("T")

log = logging.getLogger(__name__)

# Of attestations that no node sends whole, before they are given up.
_READINGS = FAILURES_BEFORE_LEAVING * MAX_ENDPOINTS
CALL_PATIENCE = 5.0  # seconds without an answer after which a transaction or a fresh read gives up


class SolanaMember:
    """The chain of one member; use it as an async context manager (it follows the run in the background).

    `authorizer` is the grantee through whom this wallet may join (`--authorizer`); without it the permissionless
    authorization and then the wallet's own are looked for.
    """

    def __init__(
        self,
        pool: RpcPool,
        wallet: Wallet,
        run_id: str,
        *,
        client_version: str,
        authorizer: Pubkey | None = None,
        program_id: Pubkey | None = None,
        max_priority_fee: int = 0,
    ) -> None:
        self._pool = pool
        self._run_id = run_id
        self._client_version = client_version
        self._authorizer = authorizer
        brisk = pool.patient(CALL_PATIENCE)
        self._coordinator = Coordinator(brisk, wallet, program_id=program_id, max_priority_fee=max_priority_fee)
        self._authorizations = Authorizer(brisk)
        self._addresses = run_addresses(self._coordinator.program_id, run_id)
        self._watcher = RunWatcher(pool, self._addresses.run, self._coordinator.program_id)
        self._model: tuple[int, Model] | None = None
        self._members: tuple[int, Members] | None = None
        self._reading = asyncio.Lock()
        self._wallet = wallet

    async def start(self) -> None:
        """Check the endpoints, find the run, and follow it. Raises ChainUnavailable, or ChainError when there is no
        such run.
        """
        await self._pool.check()
        await self._coordinator.run(self._run_id)
        await self._watcher.start()

    async def close(self) -> None:
        """Stop following the run. The pool stays open."""
        await self._watcher.close()

    async def __aenter__(self) -> SolanaMember:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def wallet(self) -> bytes:
        """This member's public key."""
        return self._wallet.public

    @property
    def program_id(self) -> Pubkey:
        """The coordinator program the run belongs to."""
        return self._coordinator.program_id

    @property
    def spent(self) -> ChainSpend:
        """Transactions and fees so far."""
        spend = self._coordinator.sender.spend
        return ChainSpend(spend.transactions, spend.lamports, self._watcher.push_bytes_max)

    def now(self) -> int:
        """Chain time in unix seconds."""
        return self._watcher.clock.now()

    def back(self) -> float:
        """When, on the event loop's clock, the chain was last reached again after an outage; -inf for never."""
        return self._watcher.back

    def updates(self) -> AsyncIterator[Run]:
        """The newest state at once and after every change."""
        return self._watcher.updates()

    async def run(self, *, fresh: bool = False) -> Run:
        """The newest known state, or with `fresh` one that is read now."""
        return await self._watcher.refresh(CALL_PATIENCE) if fresh else self._watcher.latest

    async def model(self) -> Model:
        """The run's model as of the newest Run."""
        async with self._reading:
            key = self._watcher.latest.model_seq
            if self._model is None or self._model[0] != key:
                self._model = key, await self._read(self._addresses.model, lambda account: parse_model(account.data))
            return self._model[1]

    async def members(self) -> Members:
        """The run's members as of the newest Run."""
        async with self._reading:
            key = self._watcher.latest.members_seq
            if self._members is None or self._members[0] != key:
                members = await self._read(self._addresses.members, lambda account: parse_members(account.data))
                self._members = key, members
            return self._members[1]

    async def attestations(self, round: Round) -> tuple[Attestation, ...]:
        """What the witnesses of `round` have sent so far.

        Raises ChainRefused: `RoundNotStored` when the chain no longer holds that round, `Unreadable` when nodes send
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
                why = f"no node sends the attestations of round {round.height} as they are on chain"
                raise ChainRefused("Unreadable", why) from error

        slot, attestations = await self._read(self._addresses.witnesses, attested, offset, length)
        if self._watcher.slot < slot:
            await self._watcher.refresh(GIVE_UP_SECONDS, min_slot=slot)
        self._stored(round)  # a read can take so long that a later round's attestations are in that place
        return attestations

    def _stored(self, round: Round) -> tuple[int, Round]:
        """Where the newest Run holds `round`, and its header there."""
        run = self._watcher.latest
        ring, stored = run.ring(round.height), run.round(round.height)
        if ring is None or stored is None or stored.seed != round.seed:
            raise ChainRefused("RoundNotStored", f"round {round.height} is no longer stored on chain")
        return ring, stored

    async def authorization(self) -> Pubkey:
        """The account that admits this wallet to the run. Raises ChainRefused `NotAuthorized` when nobody did."""
        grantor = Pubkey(self._watcher.latest.join_authority)
        authorization = await self._authorizations.admitting(grantor, self._wallet.pubkey, self._authorizer)
        if authorization is None:
            other = "name another" if self._authorizer else "name one"
            raise ChainRefused(
                "NotAuthorized",
                f"wallet {self._wallet.pubkey} is not admitted to run {self._run_id!r}",
                f"ask the run's join authority {grantor} for an authorization, or {other} with --authorizer",
            )
        return authorization.address

    async def join(self, *, p2p: bytes, tier: int, weight: int, schema_hash: bytes, stateless: bool) -> None:
        """Ask for a place in the next epoch. Raises ChainRefused, `NotAuthorized` when nobody admitted this wallet."""
        step = self._coordinator.ix.join_run(
            self._run_id,
            authorization=await self.authorization(),
            p2p=p2p,
            tier=tier,
            weight=weight,
            schema_hash=schema_hash,
            client_version=self._client_version,
            stateless=stateless,
        )
        try:
            await self._send(step)
        except ChainRefused as refusal:
            if refusal.name == VERSION_MISMATCH:
                model = await self._coordinator.model(self._run_id)
                check_version(self._run_id, model.client_version, self._client_version)
            raise

    async def leave(self) -> None:
        """Give up the place in the run."""
        await self._send(self._coordinator.ix.leave_run(self._run_id))

    async def tick(self) -> None:
        """Perform the transition that is due; ChainRefused `NothingToTick` if none is."""
        await self._send(self._coordinator.ix.tick(self._run_id))

    async def warmup_witness(self, slot: int) -> None:
        """Say that this elected member has the model."""
        await self._send(self._coordinator.ix.warmup_witness(self._run_id, slot))

    async def witness(
        self,
        slot: int,
        height: int,
        participation: int,
        fingerprints: bytes,
        *,
        step: int,
        loss: float,
        tokens_per_sec: float,
        bytes_per_sec: float,
    ) -> None:
        """Attest the results of the round that is judged; loss and speeds travel along for indexers."""
        metadata = witness_metadata(step, loss, tokens_per_sec, bytes_per_sec)
        ix = self._coordinator.ix.witness(self._run_id, slot, height, participation, fingerprints, metadata)
        await self._send(ix)

    async def attest(self, slot: int, hashes: Mapping[int, bytes]) -> None:
        """State the hashes of the levels this member holds."""
        await self._send(self._coordinator.ix.attest(self._run_id, slot, hashes))

    async def health_check(self, dropped: int) -> None:
        """Drop the members (bit mask) that the witnesses did not see."""
        await self._send(self._coordinator.ix.health_check(self._run_id, dropped))

    async def checkpoint(self, kind: int, repo: str, revision: str, hashes: Sequence[bytes]) -> None:
        """Name a durable checkpoint."""
        ix = self._coordinator.ix.checkpoint(self._run_id, kind=kind, repo=repo, revision=revision, hashes=hashes)
        await self._send(ix)

    async def _send(self, instruction: Instruction) -> None:
        """Send, and see the effect: afterwards the newest Run is as of the transaction's slot, or later."""
        await self._coordinator.transact(instruction)
        try:
            await self._watcher.refresh(patience=CALL_PATIENCE, min_slot=self._coordinator.sender.slot)
        except ChainUnavailable as error:
            log.info("sent, but the effect is not visible yet: %s", error.message)

    async def _read(
        self, address: Pubkey, parse: Callable[[AccountData], T], offset: int = 0, length: int | None = None
    ) -> T:
        """Without the chain there is nothing else to do, so this waits as long as the watcher does for it to come
        back.
        """

        absence = Absence(self._pool)

        def read(account: AccountData | None) -> T:
            if account is None or account.owner != self._coordinator.program_id:
                absence.reported()
                raise ChainError(f"an account of run {self._run_id!r} is gone: the run was closed")
            return parse(account)

        slot = self._watcher.slot or None
        return await fetch_as(
            self._pool, address, read, offset=offset, length=length, min_slot=slot, patience=GIVE_UP_SECONDS
        )
