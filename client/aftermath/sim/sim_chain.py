"""The simulated chain: the real programs in LiteSVM behind real JSON-RPC, and each member's client.

A member's client is the real one (`chain.member`) over a simulated connection (`faulty_rpc`). The
owner's transactions, which only set up the run, execute directly and at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from solders.account import Account
from solders.compute_budget import set_compute_unit_limit
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from aftermath.chain.failures import TransactionFailed
from aftermath.chain.member import SolanaMember
from aftermath.chain.programs import authorizer_program, coordinator_program, error_tables
from aftermath.chain.refusals import refused
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import Refused
from aftermath.localnet.bank import Executed
from aftermath.localnet.runtime import SYSTEM_ID
from aftermath.programs import AUTHORIZER_SO, COORDINATOR_SO
from aftermath.sim.faulty_rpc import FaultyRpc
from aftermath.sim.sim_node import SimNode

PATIENCE = 20.0  # seconds, as in `train`
_MOST_UNITS = 1_400_000
_RICH = 10**12  # lamports

T = TypeVar("T")


class SimChain:
    """The simulated cluster."""

    def __init__(self, latency: float = 0.02) -> None:
        self.latency = latency
        self.observers: list[Callable[[], None]] = []
        """Called after every transaction that succeeded."""
        self.coordinator = coordinator_program()
        self.authorizer = authorizer_program()
        programs = [(self.coordinator.id, COORDINATOR_SO), (self.authorizer.id, AUTHORIZER_SO)]
        self.node = SimNode(programs)
        self.node.bank.listeners.append(self)
        self.rpcs: list[FaultyRpc] = []
        self.last_signer = b""
        """The payer of the newest transaction."""
        self._errors = error_tables(self.coordinator, self.authorizer)
        self._down = False
        self._sent = 0
        self._views: dict[tuple[Pubkey, Callable[[bytes], Any]], Any] = {}

    @property
    def down(self) -> bool:
        """Whether no member can reach the chain."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        self._down = down
        for member_rpc in self.rpcs:
            member_rpc.broken()

    def fund(self, key: Pubkey) -> None:
        self.node.bank.store([(key, Account(_RICH, b"", SYSTEM_ID, False))])

    def send(self, instructions: Sequence[Instruction], signer: Keypair) -> None:
        """Execute instructions at once. Raises Refused with the program's error name."""
        bank = self.node.bank
        bank.tick()
        self._sent += 1
        # make two equal transactions different
        limited = [set_compute_unit_limit(_MOST_UNITS - self._sent), *instructions]
        message = Message.new_with_blockhash(limited, signer.pubkey(), bank.slots.latest)
        transaction = VersionedTransaction(message, [signer])
        outcome = bank.simulate(transaction)
        if outcome.error is not None:
            raise refused(
                TransactionFailed(outcome.error, outcome.meta.logs()), limited, self._errors
            )
        executed = bank.execute(transaction, bytes(transaction))
        assert isinstance(executed, Executed)
        bank.publish(executed)

    def view(self, key: Pubkey, parse: Callable[[bytes], T]) -> T:
        """Return an account, parsed again only when it changed."""
        if (key, parse) not in self._views:
            self._views[key, parse] = parse(self.data(key))
        cached_view: T = self._views[key, parse]
        return cached_view

    def data(self, key: Pubkey) -> bytes:
        account = self.node.bank.account(key)
        if account is None:
            raise Refused("AccountNotFound", f"account {key} does not exist")
        return bytes(account.data)

    def on_slot(self, slot: int, parent: int) -> None:
        """Do nothing: slots do not matter to this `localnet.bank.Listener`."""

    def on_transaction(self, executed: Executed) -> None:
        changed = {key for key, _ in executed.outcome.after}
        self._views = {
            cache_key: cached_view
            for cache_key, cached_view in self._views.items()
            if cache_key[0] not in changed
        }
        self.last_signer = bytes(executed.outcome.keys[0])
        if executed.landed.error is None:
            for observer in self.observers:
                observer()


class SimMemberChain(SolanaMember):
    """One member's chain: the real client over a simulated connection."""

    def __init__(self, chain: SimChain, keypair: Keypair, run_id: str, nodes: int = 1) -> None:
        seed = int.from_bytes(hashlib.sha256(bytes(keypair.pubkey())).digest()[:8])
        self.rpc = FaultyRpc(chain, seed, nodes)
        self.pool = RpcPool(self.rpc.endpoints, patience=PATIENCE, seed=seed, wire=self.rpc)
        chain.rpcs.append(self.rpc)
        chain.fund(keypair.pubkey())
        super().__init__(self.pool, Wallet(keypair), run_id, client_version="")

    @property
    def down(self) -> bool:
        """Whether this member cannot reach the chain, although the chain is up."""
        return self.rpc.down

    @down.setter
    def down(self, down: bool) -> None:
        self.rpc.down = down

    @property
    def replies_lost(self) -> int:
        """Number of next transactions that land although this member gets no reply."""
        return self.rpc.replies_lost

    @replies_lost.setter
    def replies_lost(self, count: int) -> None:
        self.rpc.replies_lost = count
