"""Read authorizations to join a run, and build the authorizer program's four instructions.

The checks are those of the program. An authorization must be active and have the right grantor and
scope. Its grantee is everyone (the default key), the user, or a key that names the user as a
delegate. Its scope is all runs of the grantor, or one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from aftermath.chain.addresses import EVERYONE, JOIN_SCOPE, authorization_address
from aftermath.chain.node_client import AccountData, NodeClient
from aftermath.chain.programs import AnchorProgram, authorizer_program
from aftermath.chain.rpc import RpcPool

DELEGATES_AT_ONCE = 20
"""Delegates that fit one transaction with its other parts."""

BARE_BYTES = 154
DELEGATE_BYTES = 32
"""Size of an authorization without scope and delegates, and what each delegate adds."""


@dataclass(frozen=True)
class Authorization:
    """A grantor's permission. `grantor_update_at` is in unix seconds of the chain."""

    address: Pubkey
    grantor: Pubkey
    grantee: Pubkey
    scope: bytes
    active: bool
    delegates: tuple[Pubkey, ...]
    grantor_update_at: int
    sponsor: Pubkey
    """The wallet that paid for the account and gets its rent back."""
    delegates_sponsor: Pubkey
    """The wallet that paid for the current delegates."""

    def admits(self, grantor: Pubkey, user: Pubkey, run: Pubkey) -> bool:
        """Return whether this admits `user` to `run`, whose join authority is `grantor`."""
        covers_user = self.grantee in (EVERYONE, user) or user in self.delegates
        return (
            self.active
            and self.grantor == grantor
            and self.scope in (JOIN_SCOPE, bytes(run))
            and covers_user
        )


class AuthorizerInstructions:
    """Builds authorizer instructions that one wallet signs, as grantor or as grantee."""

    def __init__(self, program: AnchorProgram, user: Pubkey) -> None:
        self._program = program
        self.user = user

    def create(self, grantee: Pubkey, scope: bytes = JOIN_SCOPE) -> Instruction:
        """Create an inactive authorization of this wallet (the grantor) for `grantee` (`EVERYONE`
        for all).
        """
        accounts = self._accounts(self.user, grantee, scope)
        return self._program.instruction("create", accounts, grantee=grantee, scope=scope)

    def grantor_update(
        self, grantee: Pubkey, active: bool, scope: bytes = JOIN_SCOPE
    ) -> Instruction:
        """Switch this wallet's authorization on or off."""
        return self._program.instruction(
            "grantor_update", self._accounts(self.user, grantee, scope), active=active
        )

    def delegation(
        self, authorization: Authorization, *, clear: bool, added: Sequence[Pubkey]
    ) -> list[Instruction]:
        """Drop all delegates of an authorization, add some, or both, in parts that fit a
        transaction. The signer is the grantee.
        """
        batches = [
            added[i : i + DELEGATES_AT_ONCE] for i in range(0, len(added), DELEGATES_AT_ONCE)
        ] or [added]
        if (
            clear
            and added
            and authorization.delegates
            and authorization.delegates_sponsor != self.user
        ):
            batches.insert(0, [])  # first clear the delegates that another wallet paid for
        # after that, this wallet has paid for the delegates
        own_sponsor = {"delegates_sponsor": self.user}
        return [
            self._program.instruction(
                "grantee_update",
                self._accounts_of(authorization) | (own_sponsor if any(batches[:i]) else {}),
                delegates_clear=clear and i == 0,
                delegates_added=list(batch),
            )
            for i, batch in enumerate(batches)
        ]

    def close(self, authorization: Authorization) -> Instruction:
        """Delete this wallet's inactive authorization; the rent goes back to those who paid it."""
        return self._program.instruction("close", self._accounts_of(authorization))

    def _accounts_of(self, authorization: Authorization) -> dict[str, Pubkey]:
        return self._accounts(authorization.grantor, authorization.grantee, authorization.scope) | {
            "sponsor": authorization.sponsor,
            "delegates_sponsor": authorization.delegates_sponsor,
        }

    def _accounts(self, grantor: Pubkey, grantee: Pubkey, scope: bytes) -> dict[str, Pubkey]:
        return {
            "payer": self.user,
            "grantor": grantor,
            "grantee": grantee,
            "authorization": authorization_address(self._program.id, grantor, grantee, scope),
            "system_program": SYSTEM_PROGRAM,
        }


class Authorizer:
    """Reads authorizations. `ix(user)` builds instructions; a `Sender` sends them."""

    def __init__(self, pool: RpcPool, program_id: Pubkey | None = None) -> None:
        self._pool = pool
        self._program = authorizer_program(program_id)

    def ix(self, user: Pubkey) -> AuthorizerInstructions:
        """Return the instruction builders for the signer `user`."""
        return AuthorizerInstructions(self._program, user)

    def size(
        self, grantor: Pubkey, grantee: Pubkey, delegates: int = 0, *, scope: bytes = JOIN_SCOPE
    ) -> dict[Pubkey, int]:
        """Return {address: size in bytes} of an authorization with that many delegates."""
        address = authorization_address(self._program.id, grantor, grantee, scope)
        return {address: BARE_BYTES + len(scope) + DELEGATE_BYTES * delegates}

    async def fetch(
        self,
        grantor: Pubkey,
        grantee: Pubkey,
        scope: bytes = JOIN_SCOPE,
        *,
        min_slot: int | None = None,
    ) -> Authorization | None:
        """Return the authorization that `grantor` gave `grantee`, as of `min_slot` or later.

        None if there is none.
        """
        return (await self._fetch(grantor, [(grantee, scope)], min_slot=min_slot))[0]

    async def admitting(
        self, grantor: Pubkey, user: Pubkey, run: Pubkey, authorizer: Pubkey | None = None
    ) -> Authorization | None:
        """Return an authorization that admits `user` to the run at this address, or None.

        With `authorizer` its grantee must be that key, otherwise everyone or the user. Its scope is
        all runs of the grantor, or this one.
        """
        grantees = [EVERYONE, user] if authorizer is None else [authorizer]
        candidates = [
            (grantee, scope) for scope in (JOIN_SCOPE, bytes(run)) for grantee in grantees
        ]
        authorizations = await self._fetch(grantor, candidates)
        return next(
            (a for a in authorizations if a is not None and a.admits(grantor, user, run)), None
        )

    async def _fetch(
        self,
        grantor: Pubkey,
        grantees_and_scopes: Sequence[tuple[Pubkey, bytes]],
        min_slot: int | None = None,
    ) -> list[Authorization | None]:
        """Return these authorizations, None for each that does not exist.

        Anyone can send lamports to such an address, so the account's owner is checked.
        """
        addresses = [
            authorization_address(self._program.id, grantor, grantee, scope)
            for grantee, scope in grantees_and_scopes
        ]

        async def ask(node: NodeClient) -> list[Authorization | None]:
            _, accounts = await node.accounts(addresses, min_slot)
            return [
                self._parse(address, account)
                if account is not None and account.owner == self._program.id
                else None
                for address, account in zip(addresses, accounts, strict=True)
            ]

        return await self._pool.call(ask)

    def _parse(self, address: Pubkey, account: AccountData) -> Authorization:
        account_data = self._program.account("Authorization", account.data)
        return Authorization(
            address=address,
            grantor=account_data.grantor,
            grantee=account_data.grantee,
            scope=bytes(account_data.scope),
            active=bool(account_data.active),
            delegates=tuple(account_data.delegates),
            grantor_update_at=int(account_data.grantor_update_at),
            sponsor=account_data.sponsor,
            delegates_sponsor=account_data.delegates_sponsor,
        )
