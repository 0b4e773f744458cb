"""The chain under simulation: the real programs in LiteSVM on virtual time, and each member's road to it.

Choices: every transaction takes `latency` seconds to arrive and every change is seen `latency` seconds later. Chain
time is the loop's time on top of a fixed start, in whole seconds, as a validator's Clock is. A road that is down
behaves as `chain.member` does: reads wait for it to come back and give up after minutes, writes give up after seconds,
and a reply may be lost after the transaction has landed.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from solders.account import Account
from solders.clock import Clock
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.rent import Rent
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError

from aftermath.chain.addresses import EVERYONE, SLOT_HASHES, authorization_address, run_addresses
from aftermath.chain.instructions import CoordinatorInstructions, witness_metadata
from aftermath.chain.programs import authorizer_program, coordinator_program
from aftermath.chain.spend import ChainSpend
from aftermath.programs import AUTHORIZER_SO, COORDINATOR_SO
from aftermath.run.accounts import Attestation, Members, Model, Round, Run
from aftermath.run.errors import ChainRefused, ChainUnavailable
from aftermath.run.views import (
    parse_members,
    parse_model,
    parse_run,
    parse_witness_round,
    witness_round_range,
)

START = 1_800_000_000  # unix time at virtual second 0
SLOTS_PER_SECOND = 2.5
FEE = 5000  # lamports per signature
LOOK_AGAIN = 0.25  # seconds between tries to reach a chain that is down
READ_PATIENCE, WRITE_PATIENCE = 600.0, 5.0  # seconds

T = TypeVar("T")


class SimChain:
    """The cluster."""

    def __init__(self, latency: float = 0.05) -> None:
        self.latency = latency
        self.down = False
        """Nobody reaches the chain."""
        self.observers: list[Callable[[], None]] = []
        """Called after every transaction that succeeded."""
        self.changed = asyncio.Event()
        self._views: dict[tuple[Pubkey, Callable[[bytes], Any]], tuple[bytes, Any]] = {}
        self._svm = LiteSVM()
        self._svm.set_rent(Rent(6960, 1.0, 50))
        self.coordinator, self.authorizer = coordinator_program(), authorizer_program()
        self._svm.add_program_from_file(self.coordinator.id, COORDINATOR_SO)
        self._svm.add_program_from_file(self.authorizer.id, AUTHORIZER_SO)

    def now(self) -> int:
        return START + int(asyncio.get_running_loop().time())

    def fund(self, key: Pubkey) -> None:
        self._svm.airdrop(key, 10**12)

    def send(self, instructions: Sequence[Instruction], signer: Keypair) -> None:
        """Execute at once. Raises ChainRefused with the program's error name."""
        self._tell_time()
        self._svm.expire_blockhash()
        message = Message.new_with_blockhash(list(instructions), signer.pubkey(), self._svm.latest_blockhash())
        result = self._svm.send_transaction(Transaction([signer], message, self._svm.latest_blockhash()))
        if isinstance(result, FailedTransactionMetadata):
            raise self._refusal(result)
        for observer in self.observers:
            observer()
        self.changed.set()
        self.changed = asyncio.Event()

    def view(self, key: Pubkey, parse: Callable[[bytes], T]) -> T:
        """An account, parsed again only when it has changed."""
        data = self.data(key)
        before = self._views.get((key, parse))
        if before is None or before[0] != data:
            before = self._views[key, parse] = data, parse(data)
        found: T = before[1]
        return found

    def data(self, key: Pubkey) -> bytes:
        account = self._svm.get_account(key)
        if account is None:
            raise ChainRefused("AccountNotFound", f"account {key} does not exist")
        return bytes(account.data)

    def _tell_time(self) -> None:
        slot = 1 + int(asyncio.get_running_loop().time() * SLOTS_PER_SECOND)
        self._svm.set_clock(Clock(slot, 0, 0, 0, self.now()))
        newest = struct.pack("<QQ", 1, slot - 1) + hashlib.sha256(struct.pack("<Q", slot - 1)).digest()
        owner = Pubkey.from_string("Sysvar1111111111111111111111111111111111111")
        self._svm.set_account(SLOT_HASHES, Account(10**9, newest.ljust(20_488, b"\0"), owner, False))

    def _refusal(self, result: FailedTransactionMetadata) -> ChainRefused:
        error = result.err()
        if isinstance(error, TransactionErrorInstructionError) and isinstance(error.err, InstructionErrorCustom):
            known = {**self.authorizer.errors, **self.coordinator.errors}.get(error.err.code)
            if known is not None:
                return ChainRefused(known.name, known.message)
        return ChainRefused("Failed", f"{error}: {result.meta().logs()}")


class SimMember:
    """One member's chain (`train.ports.Chain`)."""

    def __init__(self, chain: SimChain, keypair: Keypair, run_id: str) -> None:
        self._chain, self._key, self._run_id = chain, keypair, run_id
        self._ix = CoordinatorInstructions(chain.coordinator, keypair.pubkey())
        self._at = run_addresses(chain.coordinator.id, run_id)
        self._sent = 0
        self.down = False
        """Whether this member alone does not reach the chain."""
        self.replies_lost = 0
        """How many of the next transactions land without this member being told."""
        chain.fund(keypair.pubkey())

    @property
    def wallet(self) -> bytes:
        return bytes(self._key.pubkey())

    @property
    def spent(self) -> ChainSpend:
        return ChainSpend(self._sent, self._sent * FEE, 0)

    def now(self) -> int:
        return self._chain.now()

    # --- reading ------------------------------------------------------------------------------------------------

    async def _reach(self, patience: float) -> None:
        """Return once the chain can be reached. ChainUnavailable if it cannot be within `patience` seconds."""
        end = asyncio.get_running_loop().time() + patience
        while self.down or self._chain.down:
            if asyncio.get_running_loop().time() >= end:
                raise ChainUnavailable(f"no simulated RPC endpoint answered for {patience:.0f} s")
            await asyncio.sleep(LOOK_AGAIN)

    async def updates(self) -> AsyncIterator[Run]:
        last = -1
        while True:
            changed = self._chain.changed
            await self._reach(READ_PATIENCE)
            if (run := self._chain.view(self._at.run, parse_run)).seq != last:
                last = run.seq
                yield run
                continue
            await changed.wait()
            await asyncio.sleep(self._chain.latency)

    async def run(self, *, fresh: bool = False) -> Run:
        await self._reach(WRITE_PATIENCE if fresh else READ_PATIENCE)
        return self._chain.view(self._at.run, parse_run)

    async def model(self) -> Model:
        await self._reach(READ_PATIENCE)
        return self._chain.view(self._at.model, parse_model)

    async def members(self) -> Members:
        await self._reach(READ_PATIENCE)
        return self._chain.view(self._at.members, parse_members)

    async def attestations(self, round: Round) -> tuple[Attestation, ...]:
        run = await self.run()
        ring, stored = run.ring(round.height), run.round(round.height)
        if ring is None or stored is None or stored.seed != round.seed:
            raise ChainRefused("RoundNotStored", f"round {round.height} is no longer stored on chain")
        offset, length = witness_round_range(ring, stored.attestations)
        data = self._chain.data(self._at.witnesses)[offset : offset + length]
        return parse_witness_round(data, stored.attestations)

    # --- writing ------------------------------------------------------------------------------------------------

    async def _send(self, instruction: Instruction) -> None:
        await asyncio.sleep(self._chain.latency)
        await self._reach(WRITE_PATIENCE)
        self._chain.send([instruction], self._key)
        self._sent += 1
        await asyncio.sleep(self._chain.latency)
        if self.replies_lost:
            self.replies_lost -= 1
            raise ChainUnavailable("the reply of the simulated RPC was lost")

    async def join(self, *, p2p: bytes, tier: int, weight: int, schema_hash: bytes, stateless: bool) -> None:
        authority = Pubkey((await self.run()).join_authority)
        await self._send(
            self._ix.join_run(
                self._run_id,
                authorization=authorization_address(self._chain.authorizer.id, authority, EVERYONE),
                p2p=p2p,
                tier=tier,
                weight=weight,
                schema_hash=schema_hash,
                client_version="",
                stateless=stateless,
            )
        )

    async def leave(self) -> None:
        await self._send(self._ix.leave_run(self._run_id))

    async def tick(self) -> None:
        await self._send(self._ix.tick(self._run_id))

    async def warmup_witness(self, slot: int) -> None:
        await self._send(self._ix.warmup_witness(self._run_id, slot))

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
        metadata = witness_metadata(step, loss, tokens_per_sec, bytes_per_sec)
        await self._send(self._ix.witness(self._run_id, slot, height, participation, fingerprints, metadata))

    async def attest(self, slot: int, hashes: Mapping[int, bytes]) -> None:
        await self._send(self._ix.attest(self._run_id, slot, hashes))

    async def health_check(self, dropped: int) -> None:
        await self._send(self._ix.health_check(self._run_id, dropped))

    async def checkpoint(self, kind: int, repo: str, revision: str, hashes: Sequence[bytes]) -> None:
        await self._send(self._ix.checkpoint(self._run_id, kind=kind, repo=repo, revision=revision, hashes=hashes))
