"""What the commands about authorizations share: the instructions that grant, and how an authorization is shown."""

from __future__ import annotations

from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from aftermath.chain.addresses import EVERYONE
from aftermath.chain.authorizer import Authorization
from aftermath.cli.connection import SignedCluster
from aftermath.cli.present import CommandError


async def granting(chain: SignedCluster, grantee: Pubkey) -> list[Instruction]:
    """What is still to be sent so that the wallet lets `grantee` join its runs; nothing if it does already."""
    ix = chain.authorizer.ix(chain.wallet.pubkey)
    found = await chain.authorizer.fetch(chain.wallet.pubkey, grantee)
    if found is not None and found.active:
        return []
    return ([] if found else [ix.create(grantee)]) + [ix.grantor_update(grantee, True)]


GRANT = "the join authority grants one with aftermath-solana join-authorization-create"


def present(found: Authorization | None, grantor: Pubkey, grantee: Pubkey, fix: str = GRANT) -> Authorization:
    """The authorization, or the error that there is none."""
    if found is None:
        who = "everybody" if grantee == EVERYONE else str(grantee)
        raise CommandError(
            f"{grantor} has given no authorization to {who}",
            fix,
        )
    return found


def described(found: Authorization) -> dict[str, Any]:
    """An authorization as JSON."""
    return {
        "address": str(found.address),
        "join_authority": str(found.grantor),
        "authorizer": str(found.grantee),
        "everybody": found.grantee == EVERYONE,
        "scope": found.scope.decode("utf-8", "replace"),
        "active": found.active,
        "delegates": [str(key) for key in found.delegates],
        "grantor_update_at": found.grantor_update_at,
    }
