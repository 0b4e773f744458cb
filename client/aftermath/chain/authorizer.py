"""The authorizer program: who may join a run. Reads authorizations and builds and sends its four instructions.

Decided: an authorization is valid as the program itself judges it: active, of this grantor and scope, and either for
everyone (the default key as grantee), for the user, or with the user among the grantee's delegates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from aftermath.chain.accounts import AccountData, fetch_many
from aftermath.chain.addresses import EVERYONE, JOIN_SCOPE, authorization_address
from aftermath.chain.programs import AnchorProgram, authorizer_program
from aftermath.chain.rpc import RpcPool
from aftermath.coordinator.errors import CoordinatorError

DELEGATES_AT_ONCE = 20
"""Delegates that fit one transaction beside its other parts."""

BARE_BYTES, DELEGATE_BYTES = 90, 32
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

    def admits(self, grantor: Pubkey, user: Pubkey, scope: bytes = JOIN_SCOPE) -> bool:
        """Whether the program would let `user` act for `grantor` within `scope`."""
        named = self.grantee in (EVERYONE, user) or user in self.delegates
        return self.active and self.grantor == grantor and self.scope == scope and named


class AuthorizerInstructions:
    """Builders for one signing wallet, which is grantor or grantee as the instruction asks."""

    def __init__(self, program: AnchorProgram, user: Pubkey) -> None:
        self._program = program
        self.user = user

    def create(self, grantee: Pubkey, scope: bytes = JOIN_SCOPE) -> Instruction:
        """Create an inactive authorization of this wallet (the grantor) for `grantee` (`EVERYONE` for all)."""
        accounts = self._accounts(self.user, grantee, scope)
        return self._program.instruction("create", accounts, grantee=grantee, scope=scope)

    def grantor_update(self, grantee: Pubkey, active: bool, scope: bytes = JOIN_SCOPE) -> Instruction:
        """Switch this wallet's authorization on or off."""
        return self._program.instruction("grantor_update", self._accounts(self.user, grantee, scope), active=active)

    def grantee_update(
        self, grantor: Pubkey, *, clear: bool, added: Sequence[Pubkey], scope: bytes = JOIN_SCOPE
    ) -> Instruction:
        """As grantee, drop all delegates and/or add some."""
        accounts = self._accounts(grantor, self.user, scope)
        return self._program.instruction("grantee_update", accounts, delegates_clear=clear, delegates_added=list(added))

    def delegation(self, grantor: Pubkey, *, clear: bool, added: Sequence[Pubkey]) -> list[Instruction]:
        """`grantee_update` split so that each part fits a transaction."""
        parts = [added[i : i + DELEGATES_AT_ONCE] for i in range(0, len(added), DELEGATES_AT_ONCE)] or [added]
        return [self.grantee_update(grantor, clear=clear and i == 0, added=part) for i, part in enumerate(parts)]

    def close(self, grantee: Pubkey, *, spill: Pubkey | None = None, scope: bytes = JOIN_SCOPE) -> Instruction:
        """Delete this wallet's inactive authorization; the rent goes to `spill` or to this wallet."""
        accounts = self._accounts(self.user, grantee, scope)
        return self._program.instruction("close", {**accounts, "spill": spill or self.user})

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

    @property
    def program_id(self) -> Pubkey:
        return self._program.id

    def ix(self, user: Pubkey) -> AuthorizerInstructions:
        """Builders that `user` signs."""
        return AuthorizerInstructions(self._program, user)

    def size(self, grantor: Pubkey, grantee: Pubkey, delegates: int = 0) -> dict[Pubkey, int]:
        """Bytes of the authorization to join with that many delegates, by its address."""
        place = authorization_address(self._program.id, grantor, grantee)
        return {place: BARE_BYTES + len(JOIN_SCOPE) + DELEGATE_BYTES * delegates}

    async def fetch(self, grantor: Pubkey, grantee: Pubkey) -> Authorization | None:
        """The authorization to join runs that `grantor` gave `grantee`, None if there is none."""
        return (await self._fetch(grantor, [grantee]))[0]

    async def admitting(self, grantor: Pubkey, user: Pubkey, authorizer: Pubkey | None = None) -> Authorization | None:
        """An authorization that admits `user`: the one for `authorizer`, or else that for everyone or the user's
        own.
        """
        grantees = [EVERYONE, user] if authorizer is None else [authorizer]
        found = await self._fetch(grantor, grantees)
        return next((a for a in found if a is not None and a.admits(grantor, user)), None)

    async def _fetch(self, grantor: Pubkey, grantees: Sequence[Pubkey]) -> list[Authorization | None]:
        addresses = [authorization_address(self._program.id, grantor, grantee) for grantee in grantees]
        _, accounts = await fetch_many(self._pool, addresses)
        return [
            None if account is None else self._parse(address, account)
            for address, account in zip(addresses, accounts, strict=True)
        ]

    def _parse(self, address: Pubkey, account: AccountData) -> Authorization:
        if account.owner != self._program.id:
            raise CoordinatorError(f"the account {address} is owned by {account.owner}, not by {self._program.id}")
        found = self._program.account("Authorization", account.data)
        return Authorization(
            address=address,
            grantor=found.grantor,
            grantee=found.grantee,
            scope=bytes(found.scope),
            active=bool(found.active),
            delegates=tuple(found.delegates),
            grantor_update_at=int(found.grantor_update_at),
        )
