"""The RPC methods of a member: reads, its own transactions, and two calls that no cluster has.

`announceWhereabouts` stores a member's addresses and returns those of its peers. `keepLastWill`
stores a signed withdraw transaction, which the server sends once the member is gone. Lamports have
no value on this chain, so the server funds the fees (`accounts`).
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
from aftermath.localnet.json_rpc import Handler, Params
from aftermath.localnet.node import EmbeddedNode
from aftermath.localnet.transaction_methods import transaction_of
from aftermath.p2p.discovery import Whereabouts, believable
from aftermath.server.account_funding import Accounts

READ_METHODS = (
    "getAccountInfo",
    "getBalance",
    "getBlockHeight",
    "getGenesisHash",
    "getLatestBlockhash",
    "getMinimumBalanceForRentExemption",
    "getMultipleAccounts",
    "getSignatureStatuses",
)
MAX_SUBSCRIPTIONS = 16
"""Maximum subscriptions per connection. A member needs one, to its run."""


class RpcMethods:
    """Builds the RPC methods for each member. `run` is the address of the Run account."""

    def __init__(
        self, node: EmbeddedNode, program: Pubkey, run: Pubkey, accounts: Accounts
    ) -> None:
        self._node = node
        self._program = program
        self._run = run
        self._accounts = accounts

    def methods_for(
        self,
        identity: Pubkey,
        address: str,
        outbox: Any,
        announce: Callable[[Whereabouts], Any],
        keep_withdraw_transaction: Callable[[bytes], None],
    ) -> dict[str, Handler]:
        """Return the methods of a connection by name, for an identity at a network address."""
        node_methods = self._node.methods
        subscriptions = self._node.subscriptions.methods()

        async def send(params: Any) -> Any:
            self.check_transaction(params, identity)
            return await self._accounts.send(params, identity, address)

        async def simulate(params: Any) -> Any:
            self.check_transaction(params, identity)
            return await self._accounts.simulate(params, identity)

        def set_withdraw_transaction(params: Any) -> bool:
            tx = self.check_transaction(params, identity)
            if not all(tx.verify_with_results()):
                raise invalid_params("the transaction is not signed")
            keep_withdraw_transaction(bytes(tx))
            return True

        def subscribe(params: Any) -> Any:
            if self._node.subscriptions.count(outbox) >= MAX_SUBSCRIPTIONS:
                raise JsonRpcError(
                    INVALID_REQUEST, f"a connection may hold {MAX_SUBSCRIPTIONS} subscriptions"
                )
            return subscriptions["accountSubscribe"](params, outbox)

        return {
            **{name: node_methods[name] for name in READ_METHODS},
            "getBalance": lambda params: self._accounts.balance(params, identity),
            "accountSubscribe": subscribe,
            "accountUnsubscribe": lambda params: subscriptions["accountUnsubscribe"](
                params, outbox
            ),
            "sendTransaction": send,
            "simulateTransaction": simulate,
            "announceWhereabouts": lambda params: announce(parse_whereabouts(params)),
            "keepLastWill": set_withdraw_transaction,
        }

    def check_transaction(self, params: Any, identity: Pubkey) -> VersionedTransaction:
        """Return a call's transaction. Raises JsonRpcError unless it is the identity's own.

        It must have one signer, the identity, and all its instructions must be about this run.
        """
        arguments = Params(params, 2)
        tx, _ = transaction_of(arguments.text(0, "transaction"), arguments.config(1))
        message = tx.message
        keys = message.account_keys
        if message.header.num_required_signatures != 1 or keys[0] != identity:
            raise JsonRpcError(
                INVALID_REQUEST,
                "a transaction must be signed by the identity of its connection only",
            )
        if isinstance(message, MessageV0) and message.address_table_lookups:
            raise JsonRpcError(INVALID_REQUEST, "a transaction must not use address lookup tables")
        for instruction in message.instructions:
            program = keys[instruction.program_id_index]
            if program in (COMPUTE_BUDGET, ED25519):
                continue
            if program != self._program or self._run not in [
                keys[index] for index in instruction.accounts
            ]:
                raise JsonRpcError(INVALID_REQUEST, "a transaction must be about this run only")
        return tx


def parse_whereabouts(params: Any) -> Whereabouts:
    """Return the addresses in a call's parameters. Raises JsonRpcError if they are not valid."""
    try:
        whereabouts = msgspec.convert(Params(params, 1).config(0).whole(), Whereabouts)
        if not believable(whereabouts):
            raise ValueError
    except (msgspec.ValidationError, ValueError):
        raise invalid_params(
            "whereabouts are a list of IP:PORT addresses and an optional relay"
        ) from None
    return whereabouts


def peer_entry(peer: bytes, at: Whereabouts | None) -> Mapping[str, Any]:
    """Return a peer's addresses as members receive them. `at` is None if it disconnected."""
    return {"peer": peer.hex(), "at": at}
