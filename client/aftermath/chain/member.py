"""One member's view of its run on Solana (`coordinator.ports.Coordinator`).

A call that changes the run returns when its effect can be read. Reads that a member needs in order
to continue (`chain.reader`) wait out an outage of minutes. Other calls give up after seconds, and
their callers decide whether to retry.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from aftermath.chain.addresses import run_addresses
from aftermath.chain.admission import VERSION_MISMATCH, check_version, not_admitted
from aftermath.chain.authorizer import Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.instructions import witness_metadata
from aftermath.chain.memberships import check_bond, membership_of, unpaid_bond
from aftermath.chain.newest_run import OUTAGE_SECONDS
from aftermath.chain.reader import RunReader
from aftermath.chain.rpc import RpcPool
from aftermath.chain.run_watcher import RunWatcher
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import Refusal, Refused, Unavailable
from aftermath.coordinator.ports import View
from aftermath.rules.announcements import signed_part
from aftermath.rules.audits import Case
from aftermath.rules.bitmap import contains
from aftermath.rules.eviction import evicted
from aftermath.rules.members import Membership
from aftermath.rules.run import Attestation, Round, RoundId

log = logging.getLogger(__name__)

_LEAVE_TRIES = 3  # another epoch may begin while the first transaction is on its way
CALL_PATIENCE = 5.0  # seconds without an answer after which a transaction or a fresh read gives up


class SolanaMember:
    """One member's access to the chain. The async context manager follows the run.

    `authorizer` is the grantee as whose delegate this wallet joins (`--authorizer`). Without it, an
    authorization for everybody or for this wallet must exist. `max_bond`: lamports that the run may
    lock while this wallet is its member.
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
        max_bond: int = 0,
    ) -> None:
        self._pool = pool
        self._run_id = run_id
        self._client_version = client_version
        self._authorizer = authorizer
        brisk = pool.patient(CALL_PATIENCE)
        self._coordinator = CoordinatorClient(
            brisk, wallet, program_id=program_id, max_priority_fee=max_priority_fee
        )
        self._authorizations = Authorizer(brisk)
        self._addresses = run_addresses(self._coordinator.program_id, run_id)
        self._watcher = RunWatcher(pool, self._addresses.run, self._coordinator.program_id)
        self._reader = RunReader(pool, self._coordinator.program_id, run_id, self._watcher)
        self._wallet = wallet
        self._max_bond = max_bond
        self._enrolled = False

    async def start(self) -> None:
        """Check the endpoints, find the run, and follow it. Raises Unavailable, NoSuchRun."""
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
    def display_name(self) -> str:
        """The service that stores the run, as messages name it."""
        return self._pool.keeper

    @property
    def keeps_seats(self) -> bool:
        """Return whether a seat outlasts its member's connection."""
        return self._pool.keeps_seats

    @property
    def wallet(self) -> bytes:
        """This member's public key."""
        return self._wallet.public

    @property
    def program_id(self) -> Pubkey:
        """The coordinator program the run belongs to."""
        return self._coordinator.program_id

    def costs(self) -> Mapping[str, int]:
        """Return how many transactions landed, their fees in lamports, and the size of the largest
        push in bytes.
        """
        spend = self._coordinator.sender.spend
        most = self._watcher.push_bytes_max
        return {
            "transactions": spend.transactions,
            "lamports": spend.lamports,
            "push_bytes_max": most,
        }

    def now(self) -> int:
        """Return chain time in unix seconds."""
        return self._watcher.clock.now()

    @property
    def silent(self) -> int:
        """Seconds since the last news of the run. 0 while there are answers."""
        silent = self._watcher.silent
        return round(silent) if silent > OUTAGE_SECONDS else 0

    @property
    def has_tick(self) -> bool:
        """Whether a command can advance an overdue run."""
        return self._pool.has_tick

    def last_outage_end(self) -> float:
        """Return the event loop's time at the end of the last outage, or -inf if there was none."""
        return self._watcher.newest.last_outage_end

    async def views(self) -> AsyncIterator[View]:
        """Yield the newest view at once and after every change."""
        async for _ in self._watcher.updates():
            yield await self.view()

    async def view(self, *, fresh: bool = False) -> View:
        """Return the view of the newest known state, or with `fresh` of one that is read now."""
        return await self._reader.view(CALL_PATIENCE if fresh else None)

    async def attestations(self, round: Round) -> tuple[Attestation, ...]:
        """Return what the witnesses of `round` have sent so far.

        Raises Refused: `RoundNotStored` when the chain no longer holds that round, `Unreadable`
        when nodes send something else for it again and again.
        """
        return await self._reader.attestations(round)

    async def authorization(self) -> Pubkey:
        """Return the account that admits this wallet to the run. Raises Refused `NotAuthorized` if
        there is none.
        """
        grantor = Pubkey(self._watcher.latest.join_authority)
        query = grantor, self._wallet.pubkey, self._addresses.run, self._authorizer
        authorization = await self._authorizations.admitting(*query)
        if authorization is None:
            raise not_admitted(self._run_id, self._wallet.pubkey, grantor, self._authorizer)
        return authorization.address

    async def join(
        self, *, p2p: bytes, tier: int, weight: int, schema_hash: bytes, stateless: bool
    ) -> None:
        """Ask for a seat in the next epoch.

        Raises Refused like `joining`, also if the run changed while the transaction was sent.
        """
        instructions = await self.joining(
            p2p=p2p, tier=tier, weight=weight, schema_hash=schema_hash, stateless=stateless
        )
        try:
            await self._send(*instructions)
            self._enrolled = True
        except Refused as refusal:
            if refusal.name == VERSION_MISMATCH:
                model = await self._coordinator.model(self._run_id)
                check_version(self._run_id, model.client_version, self._client_version)
            raise

    async def joining(
        self, *, p2p: bytes, tier: int, weight: int, schema_hash: bytes, stateless: bool
    ) -> list[Instruction]:
        """Return the instructions that `join` sends.

        Raises Refused `NotAuthorized` if nobody admitted this wallet.
        """
        # if the view is outdated, the program may refuse the join, and the member retries
        view = self._reader.last or await self.view(fresh=True)
        steps = [] if self._enrolled else await self._enrolment(view)
        join = self._coordinator.ix.join_run(
            self._run_id,
            view.run.created,
            authorization=await self.authorization(),
            p2p=p2p,
            tier=tier,
            weight=weight,
            schema_hash=schema_hash,
            client_version=self._client_version,
            stateless=stateless,
            evicted=self._evicted(view),
        )
        return [*steps, join]

    async def bond_due(self) -> int:
        """Return the lamports of the run's bond that this wallet still has to pay.

        Raises Refused if the bond is above what its user allows.
        """
        view = await self.view()
        return unpaid_bond(view.run, await self._membership(view))

    async def _membership(self, view: View) -> Membership | None:
        """Return this wallet's membership. Raises Refused if the run asks for more than the user
        allows.
        """
        pool = self._coordinator.pool
        program = self._coordinator.program_id
        membership = await membership_of(pool, program, view.run, self._wallet.pubkey)
        if membership is not None and self._forfeited(view):
            membership = replace(membership, bond=0)
        check_bond(view.run, membership, self._max_bond)
        return membership

    def _forfeited(self, view: View) -> bool:
        """Return whether this wallet was ejected but its membership does not record that yet."""
        seat = view.members.find(self.wallet)
        return seat is not None and contains(view.members.forfeited, seat)

    async def _enrolment(self, view: View) -> list[Instruction]:
        """Return the instructions that this wallet needs before its first join."""
        membership = await self._membership(view)
        run = view.run
        ix = self._coordinator.ix
        if membership is not None and membership.enrolled and not unpaid_bond(run, membership):
            return []
        settlement = (
            [ix.settle(self._run_id, run.created, self._wallet.pubkey)]
            if self._forfeited(view)
            else []
        )
        return [*settlement, ix.enroll(self._run_id, run.created, run.config.join_bond)]

    def _evicted(self, view: View) -> Pubkey | None:
        """Return the wallet whose seat this wallet would take, or None."""
        wallet = evicted(view.run, view.members, view.model, self.wallet, self.now())
        return Pubkey(wallet) if wallet else None

    async def leave(self) -> None:
        """Leave the run."""
        for tries_left in reversed(range(_LEAVE_TRIES)):
            try:
                await self._send(
                    self._coordinator.ix.leave_run(self._run_id, self._watcher.latest.round_id)
                )
                return
            except Refused as refusal:
                if refusal.reason is not Refusal.WRONG_STATE or not tries_left:
                    raise
            await self._watcher.refresh(CALL_PATIENCE)

    async def tick(self) -> None:
        """Perform the transition that is due. Raises Refused `NothingToTick` if none is."""
        await self._send(self._coordinator.ix.tick(self._run_id))

    async def warmup_witness(self, seat: int, at: RoundId) -> None:
        """Attest that this elected member has the model."""
        await self._send(self._coordinator.ix.warmup_witness(self._run_id, seat, at))

    async def witness(
        self,
        seat: int,
        at: RoundId,
        participation: int,
        fingerprints: bytes,
        *,
        step: int,
        loss: float,
        tokens_per_sec: float,
        bytes_per_sec: float,
    ) -> None:
        """Attest the results that the round `at` judges. Loss and speeds are for indexers."""
        metadata = witness_metadata(step, loss, tokens_per_sec, bytes_per_sec)
        ix = self._coordinator.ix.witness(
            self._run_id, seat, at, participation, fingerprints, metadata
        )
        await self._send(ix)

    async def attest(self, seat: int, at: RoundId, hashes: Mapping[int, bytes]) -> None:
        """Attest the hashes of this member's levels."""
        await self._send(self._coordinator.ix.attest(self._run_id, seat, at, hashes))

    async def health_check(self, dropped: int) -> None:
        """Drop the members (bit mask of seats) whose results a quorum of the witnesses did not
        record.
        """
        await self._send(self._coordinator.ix.health_check(self._run_id, dropped))

    async def cases(self) -> tuple[Case, ...]:
        """Return the cases about audited results in the running epoch."""
        return await self._reader.cases()

    async def verify(self, seat: int, at: RoundId, *, target: int, mismatch: bool) -> None:
        """Open a case about an audited result, or vote on it."""
        await self._send(
            self._coordinator.ix.verify(self._run_id, seat, at, target=target, mismatch=mismatch)
        )

    async def prove_equivocation(self, first: bytes, second: bytes) -> None:
        """Submit two announcements of one member that contradict each other."""
        signed = signed_part(first), signed_part(second)
        await self._send(
            self._coordinator.ix.check_signatures(signed),
            self._coordinator.ix.prove_equivocation(self._run_id),
        )

    async def checkpoint(
        self, kind: int, repo: str, revision: str, hashes: Sequence[bytes]
    ) -> None:
        """Name a durable checkpoint."""
        ix = self._coordinator.ix.checkpoint(
            self._run_id, kind=kind, repo=repo, revision=revision, hashes=hashes
        )
        await self._send(ix)

    async def _send(self, *instructions: Instruction) -> None:
        """Send the instructions, and wait until the newest Run is at least as new as their slot."""
        await self._coordinator.transact(*instructions)
        try:
            await self._watcher.refresh(
                patience=CALL_PATIENCE, min_slot=self._coordinator.sender.slot
            )
        except Unavailable as error:
            log.info("sent, but the effect is not visible yet: %s", error.message)
