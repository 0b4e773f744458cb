"""What a member may ask of the server: some reads, its own transactions, and two more calls.

`announceWhereabouts` stores a peer key's addresses and returns the others'. `keepLastWill` stores a
transaction to send when the member is gone. The chain's money is worth nothing here, so an identity
gets what fees take (`accounts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from aftermath.chain.addresses import ED25519
from aftermath.localnet.errors import INVALID_REQUEST, JsonRpcError, invalid_params
from aftermath.localnet.node import EmbeddedNode
from aftermath.localnet.params import Params
from aftermath.localnet.rpc import Handler
from aftermath.localnet.transaction_methods import transaction_of
from aftermath.p2p.discovery import Whereabouts, believable
from aftermath.server.accounts import Accounts

READS = (
    "getAccountInfo",
    "getBalance",
    "getBlockHeight",
    "getGenesisHash",
    "getLatestBlockhash",
    "getMinimumBalanceForRentExemption",
    "getMultipleAccounts",
    "getSignatureStatuses",
)
MOST_SUBSCRIPTIONS = 16
"""Most subscriptions of one connection. A member has one, to its run."""


class RpcMethods:
    """The methods of one run's members. `run`: the address of its Run account."""

    def __init__(
        self, node: EmbeddedNode, program: Pubkey, run: Pubkey, accounts: Accounts
    ) -> None:
        self._node = node
        self._program = program
        self._run = run
        self._accounts = accounts

    def of_connection(
        self,
        identity: Pubkey,
        where: str,
        outbox: Any,
        announce: Callable[[Whereabouts], Any],
        keep: Callable[[bytes], None],
    ) -> dict[str, Handler]:
        """Return what a connection of this identity, from the address `where`, may call."""
        known = self._node.methods
        subscriptions = self._node.subscriptions.methods()

        async def send(params: Any) -> Any:
            self.admit(params, identity)
            return await self._accounts.send(params, identity, where)

        async def simulate(params: Any) -> Any:
            self.admit(params, identity)
            return await self._accounts.simulate(params, identity)

        def last_will(params: Any) -> bool:
            tx = self.admit(params, identity)
            if not all(tx.verify_with_results()):
                raise invalid_params("the transaction is not signed")
            keep(bytes(tx))
            return True

        def subscribe(params: Any) -> Any:
            if self._node.subscriptions.count(outbox) >= MOST_SUBSCRIPTIONS:
                raise JsonRpcError(
                    INVALID_REQUEST, f"a connection may hold {MOST_SUBSCRIPTIONS} subscriptions"
                )
            return subscriptions["accountSubscribe"](params, outbox)

        return {
            **{name: known[name] for name in READS},
            "getBalance": lambda params: self._accounts.balance(params, identity),
            "accountSubscribe": subscribe,
            "accountUnsubscribe": lambda params: subscriptions["accountUnsubscribe"](
                params, outbox
            ),
            "sendTransaction": send,
            "simulateTransaction": simulate,
            "announceWhereabouts": lambda params: announce(whereabouts_of(params)),
            "keepLastWill": last_will,
        }

    def admit(self, params: Any, identity: Pubkey) -> VersionedTransaction:
        """The transaction of a call. Raises RpcError unless it is this identity's own, about this
        run.
        """
        given = Params(params, 2)
        tx, _ = transaction_of(given.text(0, "transaction"), given.config(1))
        message = tx.message
        keys = message.account_keys
        if message.header.num_required_signatures != 1 or keys[0] != identity:
            raise JsonRpcError(
                INVALID_REQUEST,
                "a transaction here is signed by the identity of the connection and nobody else",
            )
        if isinstance(message, MessageV0) and message.address_table_lookups:
            raise JsonRpcError(INVALID_REQUEST, "a transaction here names its accounts itself")
        for instruction in message.instructions:
            program = keys[instruction.program_id_index]
            if program in (COMPUTE_BUDGET, ED25519):
                continue
            if program != self._program or self._run not in [
                keys[index] for index in instruction.accounts
            ]:
                raise JsonRpcError(
                    INVALID_REQUEST, "a transaction here is about this run and nothing else"
                )
        return tx


def whereabouts_of(params: Any) -> Whereabouts:
    """Where a member says that it is. Raises RpcError for anything but addresses."""
    try:
        found = msgspec.convert(Params(params, 1).config(0).whole(), Whereabouts)
        if not believable(found):
            raise ValueError
    except (msgspec.ValidationError, ValueError):
        raise invalid_params(
            "whereabouts are addresses, a list of IP:PORT, and a relay or none"
        ) from None
    return found


def shown(peer: bytes, at: Whereabouts | None) -> Mapping[str, Any]:
    """Where a peer is, as members are told; None: nowhere any more."""
    return {"peer": peer.hex(), "at": at}
