"""Read accounts: whole, sliced, several at once, or by program."""

from __future__ import annotations

from collections.abc import Sequence

from solders.pubkey import Pubkey
from solders.rpc.filter import Memcmp

from aftermath.chain.node_client import AccountData, NodeClient
from aftermath.chain.rpc import RpcPool

LAMPORTS_PER_SOL = 1_000_000_000
_LIST_SECONDS = 30.0  # nodes scan all accounts of a program for this


async def fetch(
    pool: RpcPool,
    address: Pubkey,
    *,
    offset: int = 0,
    length: int | None = None,
    min_slot: int | None = None,
    patience: float | None = None,
) -> tuple[int, AccountData | None]:
    """Return (slot, account) as of `min_slot` or later. `length` reads that many bytes from
    `offset`.

    `patience`: seconds to keep trying. None uses the pool's.
    """

    async def ask(node: NodeClient) -> tuple[int, AccountData | None]:
        return await node.account(address, offset=offset, length=length, min_slot=min_slot)

    return await pool.call(ask, patience=patience)


async def fetch_many(
    pool: RpcPool,
    addresses: Sequence[Pubkey],
    *,
    min_slot: int | None = None,
    patience: float | None = None,
) -> tuple[int, list[AccountData | None]]:
    """Return (slot, accounts) of up to 100 addresses at one slot, as of `min_slot` or later.

    `patience`: seconds to keep trying. None uses the pool's.
    """
    return await pool.call(lambda node: node.accounts(addresses, min_slot), patience=patience)


async def fetch_program(
    pool: RpcPool,
    program: Pubkey,
    *,
    prefix: bytes,
    size: int,
    holding: tuple[int, bytes] | None = None,
    offset: int = 0,
    length: int | None = None,
) -> list[tuple[Pubkey, AccountData]]:
    """Return the accounts of `program` whose data have `size` bytes and begin with `prefix`.

    `holding` is an offset in the data and the bytes that must be there. `offset` and `length`
    select the slice of the data to return.
    """
    filters: list[int | Memcmp] = [size, Memcmp(0, prefix)]
    if holding is not None:
        filters.append(Memcmp(*holding))

    async def ask(node: NodeClient) -> list[tuple[Pubkey, AccountData]]:
        return await node.program_accounts(program, filters, offset=offset, length=length)

    return await pool.call(ask, attempt=_LIST_SECONDS)


async def balance(pool: RpcPool, address: Pubkey, min_slot: int | None = None) -> int:
    """Return the lamports of an account, 0 if it does not exist, as of `min_slot` or later."""
    return await pool.call(lambda node: node.lamports(address, min_slot))


async def rent(pool: RpcPool, size: int) -> int:
    """Return the lamports that an account of `size` bytes must hold."""

    async def ask(node: NodeClient) -> int:
        return (await node.get_minimum_balance_for_rent_exemption(size)).value

    return await pool.call(ask)
