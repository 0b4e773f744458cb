"""Check that several RPC nodes send the same training spec of a run.

A node sends the spec and its hash in one account, so it can forge both. A spec that would end
members is accepted only if no other node contradicts it.
"""

from __future__ import annotations

from solders.pubkey import Pubkey

from aftermath.chain.failures import BadReply
from aftermath.chain.node_client import NodeClient
from aftermath.chain.rpc import RpcPool
from aftermath.chain.views import parse_model
from aftermath.rules.model import Model


async def cross_check(pool: RpcPool, address: Pubkey, model: Model, slot: int) -> None:
    """Raise BadReply if another node sends a training spec that differs from `model`'s.

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
