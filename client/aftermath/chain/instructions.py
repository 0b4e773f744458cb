"""Build the coordinator's instructions. Nothing here uses the network."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from aftermath.base.bounded import U32_MAX
from aftermath.chain.addresses import (
    ED25519,
    INCINERATOR,
    INSTRUCTIONS,
    SLOT_HASHES,
    membership_address,
    run_addresses,
)
from aftermath.chain.programs import AnchorProgram
from aftermath.rules.announcements import Signed
from aftermath.rules.members import Membership
from aftermath.rules.run import RoundId

_ED25519_ENTRY = struct.Struct("<7H")
_ITSELF = 0xFFFF

GROWTH = 10_240
"""Bytes that one `grow` adds, and the size that init_run gives the two large accounts."""

SPEC_PART = 800
"""Maximum bytes of a training spec in one instruction. With its accounts it fits a transaction."""

MEMBERS = 0
WITNESSES = 1
"""Numbers by which `grow` names an account."""

Table = Mapping[str, Any]


class CoordinatorInstructions:
    """Builds the instructions of one program for one signing wallet.

    Raises CoordinatorError for arguments that the program cannot read.
    """

    def __init__(self, program: AnchorProgram, user: Pubkey) -> None:
        self._program = program
        self.user = user

    def init_run(
        self,
        run_id: str,
        *,
        main_authority: Pubkey | None = None,
        join_authority: Pubkey | None = None,
        client_version: str = "",
    ) -> Instruction:
        """Create the run's four accounts, to `grow` next. Authorities default to the payer."""
        accounts = self._accounts(run_id, payer=self.user, system_program=SYSTEM_PROGRAM)
        return self._program.instruction(
            "init_run",
            accounts,
            run_id=run_id,
            main_authority=main_authority or self.user,
            join_authority=join_authority or self.user,
            client_version=client_version,
        )

    def grow(self, run_id: str, account_number: int) -> Instruction:
        """Add up to 10,240 bytes to Members (0) or Witnesses (1)."""
        accounts = self._accounts(run_id, payer=self.user, system_program=SYSTEM_PROGRAM)
        return self._program.instruction("grow", accounts, which=account_number)

    def update(
        self,
        run_id: str,
        *,
        metadata: Table | None = None,
        config: Table | None = None,
        model: Table | None = None,
        schema: Table | None = None,
        progress: Table | None = None,
        use_durable: bool = False,
    ) -> Instruction:
        """Change a halted run. Parts that are None keep their values."""
        changes = {
            "metadata": metadata,
            "config": config,
            "model": model,
            "schema": schema,
            "progress": progress,
        }
        return self._by_owner("update", run_id, params={**changes, "use_durable": use_durable})

    def write_spec(self, run_id: str, spec: bytes) -> list[Instruction]:
        """Write a training spec in parts. The run has none until `update` names its hash."""
        return [
            self._by_owner("write_spec", run_id, offset=start, part=spec[start : start + SPEC_PART])
            for start in range(0, len(spec), SPEC_PART)
        ]

    def set_paused(self, run_id: str, paused: bool) -> Instruction:
        """Pause (after the running epoch), or start, resume and reopen."""
        return self._by_owner("set_paused", run_id, paused=paused)

    def rewind(self, run_id: str, index: int, step: int) -> Instruction:
        """Take a halted run back to the checkpoint `Model.recorded[index]`.

        The checkpoint must be of this `step`.
        """
        return self._by_owner("rewind", run_id, index=index, step=step)

    def kick(
        self,
        run_id: str,
        created: int,
        wallet: Pubkey,
        *,
        barred: bool,
        sponsor: Pubkey | None = None,
    ) -> Instruction:
        """Remove a wallet from the next epoch, signed by the main or join authority.

        A `barred` wallet may not join again. `created`: slot in which the run was created.
        `sponsor`: the wallet that paid for the membership, if there is one.
        """
        accounts = self._accounts(
            run_id,
            authority=self.user,
            membership=self.membership(run_id, created, wallet),
            sponsor=sponsor or self.user,
            system_program=SYSTEM_PROGRAM,
        )
        return self._program.instruction("kick", accounts, wallet=wallet, barred=barred)

    def update_client_version(self, run_id: str, client_version: str) -> Instruction:
        """Name the only client version that may join; empty for any."""
        return self._by_owner("update_client_version", run_id, client_version=client_version)

    def set_future_epoch_rates(
        self, run_id: str, *, earning: int | None, slashing: int | None
    ) -> Instruction:
        """Set the points of epochs that start later. None keeps a rate."""
        return self._by_owner("set_future_epoch_rates", run_id, earning=earning, slashing=slashing)

    def close_run(self, run_id: str) -> Instruction:
        """Delete a halted run's accounts; the rent goes to the signing wallet."""
        accounts = self._accounts(run_id, authority=self.user, spill=self.user)
        return self._program.instruction("close_run", accounts)

    def membership(self, run_id: str, created: int, wallet: Pubkey) -> Pubkey:
        """Return the address of a wallet's membership in the run created at slot `created`."""
        return membership_address(
            self._program.id, run_addresses(self._program.id, run_id).run, created, wallet
        )

    def enroll(self, run_id: str, created: int, max_bond: int) -> Instruction:
        """Pay the rent of this wallet's membership and the run's bond, which must not be above
        `most` lamports.
        """
        accounts = self._accounts(
            run_id,
            user=self.user,
            membership=self.membership(run_id, created, self.user),
            system_program=SYSTEM_PROGRAM,
        )
        return self._program.instruction("enroll", accounts, max_bond=max_bond)

    def settle(self, run_id: str, created: int, wallet: Pubkey) -> Instruction:
        """Copy a member's seat into its membership, and destroy a forfeited bond."""
        membership = self.membership(run_id, created, wallet)
        return self._program.instruction(
            "settle", self._accounts(run_id, membership=membership, incinerator=INCINERATOR)
        )

    def withdraw(self, membership: Membership, run_id: str | None) -> Instruction:
        """End this wallet's membership and take back its bond and rent.

        `run_id` is None if only the address of a closed run is known. The program then reads no
        other account of the run.
        """
        run = Pubkey(membership.run)
        if run_id is not None:
            members = run_addresses(self._program.id, run_id).members
        else:  # any address without an account will do
            members = Pubkey.find_program_address([b"members", membership.run], self._program.id)[0]
        accounts = {
            "user": self.user,
            "run": run,
            "members": members,
            "membership": membership_address(
                self._program.id, run, membership.created, Pubkey(membership.wallet)
            ),
            "sponsor": Pubkey(membership.sponsor),
            "incinerator": INCINERATOR,
        }
        return self._program.instruction("withdraw", accounts)

    def join_run(
        self,
        run_id: str,
        created: int,
        *,
        authorization: Pubkey,
        p2p: bytes,
        tier: int,
        weight: int,
        schema_hash: bytes,
        client_version: str,
        stateless: bool,
        evicted: Pubkey | None = None,
    ) -> Instruction:
        """Ask for a seat in the next epoch.

        `stateless`: this member does not hold the last epoch's model. `evicted`: the wallet whose
        seat it takes (`rules.eviction`).
        """
        params = {
            "p2p": p2p,
            "tier": tier,
            "weight": weight,
            "schema_hash": schema_hash,
            "client_version": client_version,
            "stateless": stateless,
        }
        accounts = {
            "authorization": authorization,
            "membership": self.membership(run_id, created, self.user),
            "evicted": self.membership(run_id, created, evicted or self.user),
        }
        return self._permissionless("join_run", run_id, accounts, params=params)

    def leave_run(self, run_id: str, at: RoundId) -> Instruction:
        """Give up the seat in this and the next epoch. `at`: any round that the run stores."""
        return self._permissionless("leave_run", run_id, at=at._asdict())

    def tick(self, run_id: str) -> Instruction:
        """Perform the transition that is due."""
        return self._permissionless("tick", run_id)

    def warmup_witness(self, run_id: str, seat: int, at: RoundId) -> Instruction:
        """Attest that this elected member has the model."""
        return self._permissionless("warmup_witness", run_id, seat=seat, at=at._asdict())

    def witness(
        self,
        run_id: str,
        seat: int,
        at: RoundId,
        participation: int,
        fingerprints: bytes,
        metadata: Table,
    ) -> Instruction:
        """Attest whose results of the judged round this witness holds.

        `participation`: a bit mask of seats.
        """
        return self._permissionless(
            "witness",
            run_id,
            seat=seat,
            at=at._asdict(),
            participation=participation.to_bytes(32, "little"),
            fingerprints=fingerprints,
            metadata=metadata,
        )

    def verify(
        self, run_id: str, seat: int, at: RoundId, target: int, mismatch: bool
    ) -> Instruction:
        """Vote on whether the target's result of the round `at` differs from one's own replay."""
        return self._permissionless(
            "verify", run_id, seat=seat, at=at._asdict(), target=target, mismatch=mismatch
        )

    def attest(
        self, run_id: str, seat: int, at: RoundId, hashes: Mapping[int, bytes]
    ) -> Instruction:
        """Attest the hashes, by level, of this member's levels at the end of an epoch."""
        mask = sum(1 << level for level in hashes)
        ascending = [hashes[level] for level in sorted(hashes)]
        return self._permissionless(
            "attest", run_id, seat=seat, at=at._asdict(), mask=mask, hashes=ascending
        )

    def health_check(self, run_id: str, dropped: int) -> Instruction:
        """Drop the members (bit mask of seats) whose results a quorum of the witnesses did not
        record.
        """
        return self._permissionless("health_check", run_id, dropped=dropped.to_bytes(32, "little"))

    def prove_equivocation(self, run_id: str) -> Instruction:
        """Eject the signer of both statements in the preceding `check_signatures` instruction."""
        return self._permissionless("prove_equivocation", run_id, {"instructions": INSTRUCTIONS})

    def check_signatures(self, signed: Sequence[Signed]) -> Instruction:
        """Build an Ed25519 check of signatures that carries keys and messages in its own data.

        Layout, from the runtime's `sdk/ed25519-program`: a count byte, a zero byte, then per
        signature seven u16: the offsets of signature, key and message, each followed by an
        instruction index, with the message's size after its offset. The data they point to follows.
        """
        table = b""
        payload = b""
        start = 2 + _ED25519_ENTRY.size * len(signed)
        for statement in signed:
            at = start + len(payload)
            key = at + len(statement.signature)
            message = at + len(statement.signature) + len(statement.key)
            table += _ED25519_ENTRY.pack(
                at, _ITSELF, key, _ITSELF, message, len(statement.statement), _ITSELF
            )
            payload += statement.signature + statement.key + statement.statement
        return Instruction(ED25519, bytes([len(signed), 0]) + table + payload, [])

    def checkpoint(
        self, run_id: str, *, kind: int, repo: str, revision: str, hashes: Sequence[bytes]
    ) -> Instruction:
        """Name a durable checkpoint that carries the attested level hashes."""
        params = {"kind": kind, "repo": repo, "revision": revision, "hashes": list(hashes)}
        return self._permissionless("checkpoint", run_id, params=params)

    def inspect(self, run_id: str, kind: int, ring: int) -> Instruction:
        """Read the positions or data intervals of a stored round, as return data."""
        return self._program.instruction("inspect", self._accounts(run_id), which=kind, ring=ring)

    def _permissionless(
        self, name: str, run_id: str, more: Mapping[str, Pubkey] | None = None, **arguments: Any
    ) -> Instruction:
        accounts = self._accounts(run_id, user=self.user, slot_hashes=SLOT_HASHES, **(more or {}))
        return self._program.instruction(name, accounts, **arguments)

    def _by_owner(self, name: str, run_id: str, **arguments: Any) -> Instruction:
        return self._program.instruction(
            name, self._accounts(run_id, authority=self.user), **arguments
        )

    def _accounts(self, run_id: str, **further_accounts: Pubkey) -> dict[str, Pubkey]:
        addresses = run_addresses(self._program.id, run_id)
        four = {
            "run": addresses.run,
            "model": addresses.model,
            "members": addresses.members,
            "witnesses": addresses.witnesses,
        }
        return {**four, **further_accounts}


def witness_metadata(
    step: int, loss: float, tokens_per_sec: float, bytes_per_sec: float
) -> dict[str, int]:
    """Return the figures that an attestation carries for indexers. Loss is in milli-nats."""
    return {
        "step": step,
        "loss_milli": _u32(loss * 1000),
        "tokens_per_sec": _u32(tokens_per_sec),
        "bytes_per_sec": _u32(bytes_per_sec),
    }


def _u32(value: float) -> int:
    """Round to the nearest u32. NaN and infinity give the largest u32."""
    if not math.isfinite(value):
        return U32_MAX
    return min(max(round(value), 0), U32_MAX)
