"""Read runs of the coordinator program, and send its instructions with one method each.

`ix` builds instructions and `sender` packs and sends them, for commands that put several into one
transaction. The other methods do both for one instruction.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.signature import Signature

from aftermath.base.errors import AccountError
from aftermath.chain.accounts import fetch_many, fetch_program
from aftermath.chain.addresses import run_addresses
from aftermath.chain.dry_run import DrySender
from aftermath.chain.failures import BadReply
from aftermath.chain.instructions import GROWTH, MEMBERS, WITNESSES, CoordinatorInstructions, Table
from aftermath.chain.memberships import membership_of
from aftermath.chain.node_client import AccountData, NodeClient
from aftermath.chain.programs import authorizer_program, coordinator_program, error_tables
from aftermath.chain.reader import cross_check
from aftermath.chain.rpc import RpcPool
from aftermath.chain.sender import Sender
from aftermath.chain.views import (
    members_account,
    membership_account,
    model_account,
    parse_cases,
    parse_members,
    parse_model,
    parse_run,
    run_account,
    witnesses_account,
    witnesses_cases_range,
)
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import CoordinatorError, NoSuchRun
from aftermath.rules.audits import Case
from aftermath.rules.bitmap import seats
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run

TRANSITION_UNITS = 150_000
"""Compute units that closing a round or an epoch may add to an instruction: the program's limit.

They are needed because the run's state can advance between simulation and execution.
"""

READ_AT_ONCE = 50  # runs to read at once; each has two accounts


class CoordinatorClient:
    """One coordinator program on one cluster. Sending instructions needs a wallet.

    `program_id` defaults to the packaged program. A `dry` client sends nothing (see `dry_run`).
    """

    def __init__(
        self,
        pool: RpcPool,
        wallet: Wallet | None = None,
        *,
        program_id: Pubkey | None = None,
        max_priority_fee: int = 0,
        dry: bool = False,
    ) -> None:
        self.pool = pool
        self._wallet = wallet
        self._program = coordinator_program(program_id)
        self._max_priority_fee = max_priority_fee
        self._sender = DrySender if dry else Sender

    @property
    def program_id(self) -> Pubkey:
        return self._program.id

    @cached_property
    def ix(self) -> CoordinatorInstructions:
        """Instruction builders for this wallet. Raises CoordinatorError without a wallet."""
        return CoordinatorInstructions(self._program, self._signer().pubkey)

    @cached_property
    def sender(self) -> Sender:
        """Sends with this wallet; knows both programs' errors. Raises CoordinatorError without a
        wallet.
        """
        errors = error_tables(self._program, authorizer_program())
        return self._sender(
            self.pool, self._signer(), errors=errors, max_priority_fee=self._max_priority_fee
        )

    async def run(self, run_id: str) -> Run:
        """Return the run.

        Raises NoSuchRun if it does not exist, AccountError if it has another layout version, and
        CoordinatorError if the program does not exist or does not own the account.
        """
        return parse_run(
            (await self._account(run_id, run_addresses(self.program_id, run_id).run)).data
        )

    async def model(self, run_id: str) -> Model:
        """Return the run's model, even if its training spec is unreadable. Raises like `run`."""
        account = await self._account(run_id, run_addresses(self.program_id, run_id).model)
        return parse_model(account.data, any_spec=True)

    async def members(self, run_id: str) -> Members:
        """Return the run's members. Raises like `run`."""
        return parse_members(
            (await self._account(run_id, run_addresses(self.program_id, run_id).members)).data
        )

    async def cases(self, run_id: str) -> tuple[Case, ...]:
        """Return the cases about audited results in the running epoch. Raises like `run`."""
        offset, length = witnesses_cases_range()
        account = await self._account(run_id, run_addresses(self.program_id, run_id).witnesses)
        return parse_cases(account.data[offset : offset + length])

    async def snapshot(self, run_id: str, *, any_spec: bool = False) -> tuple[Run, Model, Members]:
        """Return run, model and members as of one slot. Errors as `run` and `parse_model`."""
        addresses = run_addresses(self.program_id, run_id)

        async def ask(node: NodeClient) -> list[AccountData | None]:
            slot, accounts = await node.accounts(
                [addresses.run, addresses.model, addresses.members]
            )
            if None in accounts:
                await self._check_program(node)
            if not any_spec:
                await self._check_spec(addresses.model, accounts[1], slot)
            return accounts

        run, model, members = [
            self._checked_account(run_id, account) for account in await self.pool.call(ask)
        ]
        parsed = parse_model(model.data, any_spec=any_spec)
        return parse_run(run.data), parsed, parse_members(members.data)

    async def list_runs(self) -> list[tuple[Run, Model, Members | None]]:
        """Return (run, model, members) of every run of this program, sorted by run id.

        Members is None if the creation was interrupted. Runs of other program versions are skipped.
        """
        layout = run_account()
        stored = await fetch_program(
            self.pool, self.program_id, prefix=layout.discriminator, size=layout.size
        )
        runs = []
        for _, account in stored:
            try:
                runs.append(parse_run(account.data))
            except AccountError:
                continue
        runs.sort(key=lambda run: run.run_id)
        result: list[tuple[Run, Model, Members | None]] = []
        for start in range(0, len(runs), READ_AT_ONCE):
            batch = runs[start : start + READ_AT_ONCE]
            addresses = [run_addresses(self.program_id, run.run_id) for run in batch]
            _, accounts = await fetch_many(
                self.pool,
                [key for address in addresses for key in (address.model, address.members)],
            )
            for run, model, members in zip(batch, accounts[::2], accounts[1::2], strict=True):
                if model is None:
                    continue
                try:
                    # any owner can write a training spec that this client cannot read
                    parsed_model = parse_model(model.data, any_spec=True)
                    result.append((run, parsed_model, _complete_members(members)))
                except AccountError:
                    continue
        return result

    def creation(
        self,
        run_id: str,
        *,
        main_authority: Pubkey | None = None,
        join_authority: Pubkey | None = None,
        client_version: str = "",
    ) -> list[Instruction]:
        """Return the instructions that create a run with all its accounts at full size."""
        first = self.ix.init_run(
            run_id,
            main_authority=main_authority,
            join_authority=join_authority,
            client_version=client_version,
        )
        sizes = {MEMBERS: members_account().size, WITNESSES: witnesses_account().size}
        grows = [
            self.ix.grow(run_id, account_number)
            for account_number, size in sizes.items()
            for _ in range(GROWTH, size, GROWTH)
        ]
        return [first, *grows]

    def sizes(self, run_id: str) -> dict[Pubkey, int]:
        """Return {address: size in bytes} of a run's accounts."""
        addresses = run_addresses(self.program_id, run_id)
        return {
            addresses.run: run_account().size,
            addresses.model: model_account().size,
            addresses.members: members_account().size,
            addresses.witnesses: witnesses_account().size,
        }

    async def create_run(
        self, run_id: str, *, join_authority: Pubkey | None = None
    ) -> list[Signature]:
        """Create a run owned by this wallet."""
        steps = self.creation(run_id, join_authority=join_authority)
        await self.sender.afford(steps, self.sizes(run_id))
        return await self.sender.send_packed(steps)

    async def update(
        self,
        run_id: str,
        *,
        metadata: Table | None = None,
        config: Table | None = None,
        model: Table | None = None,
        schema: Table | None = None,
        progress: Table | None = None,
        use_durable: bool = False,
    ) -> Signature:
        """Change a halted run (see `CoordinatorInstructions.update`)."""
        parts = {
            "metadata": metadata,
            "config": config,
            "model": model,
            "schema": schema,
            "progress": progress,
        }
        return await self.sender.send([self.ix.update(run_id, **parts, use_durable=use_durable)])

    async def set_paused(self, run_id: str, paused: bool) -> Signature:
        """Pause the run, or start, resume or reopen it."""
        return await self.sender.send([self.ix.set_paused(run_id, paused)])

    async def rewind(self, run_id: str, index: int, step: int) -> Signature:
        """Take a halted run back to a recorded checkpoint (`CoordinatorInstructions.rewind`)."""
        return await self.sender.send([self.ix.rewind(run_id, index, step)])

    async def kick(self, run_id: str, wallet: Pubkey, *, barred: bool) -> Signature:
        """Remove a wallet from the next epoch, and bar its later joins or lift that bar."""
        run = await self.run(run_id)
        membership = await membership_of(self.pool, self.program_id, run, wallet)
        step = self.ix.kick(
            run_id,
            run.created,
            wallet,
            barred=barred,
            sponsor=Pubkey(membership.sponsor) if membership else None,
        )
        if barred and membership is None:
            address = self.ix.membership(run_id, run.created, wallet)
            await self.sender.afford([step], {address: membership_account().size})
        return await self.sender.send([step])

    async def settle(self, run_id: str, wallet: Pubkey) -> Signature:
        """Write a seat's record into its membership."""
        run = await self.run(run_id)
        return await self.sender.send([self.ix.settle(run_id, run.created, wallet)])

    async def update_client_version(self, run_id: str, client_version: str) -> Signature:
        """Name the only client version that may join."""
        return await self.sender.send([self.ix.update_client_version(run_id, client_version)])

    async def set_future_epoch_rates(
        self, run_id: str, *, earning: int | None, slashing: int | None
    ) -> Signature:
        """Set the points of coming epochs."""
        return await self.sender.send(
            [self.ix.set_future_epoch_rates(run_id, earning=earning, slashing=slashing)]
        )

    async def close_run(self, run_id: str) -> list[Signature]:
        """Settle ejected members' bonds, and delete a halted run. This wallet gets the rent."""
        run, _, members = await self.snapshot(run_id, any_spec=True)
        ejected = [Pubkey(members.seats[seat].signer) for seat in seats(members.forfeited)]
        settled = [self.ix.settle(run_id, run.created, wallet) for wallet in ejected]
        return await self.sender.send_packed([*settled, self.ix.close_run(run_id)])

    async def tick(self, run_id: str) -> Signature:
        """Perform the transition that is due; Refused `NothingToTick` if none is."""
        return await self.transact(self.ix.tick(run_id))

    async def transact(self, *instructions: Instruction) -> Signature:
        """Send instructions whose last one may trigger a transition. Raises like `Sender.send`."""
        return await self.sender.send(list(instructions), headroom=TRANSITION_UNITS)

    async def _account(self, run_id: str, address: Pubkey) -> AccountData:
        """Return an account as of this client's last transaction or later."""
        min_slot = None if self._wallet is None else self.sender.slot or None

        async def ask(node: NodeClient) -> AccountData | None:
            _, account = await node.account(address, min_slot=min_slot)
            if account is None:
                await self._check_program(node)
            return account

        return self._checked_account(run_id, await self.pool.call(ask))

    async def _check_program(self, node: NodeClient) -> None:
        """Raise CoordinatorError if the program is not on the cluster, BadReply if only this node
        says so.
        """
        if not await self._is_program_missing(node):
            return
        if not await self.pool.uncontradicted(self._is_program_missing):
            raise BadReply("the RPC node does not have the program, but another node does")
        raise CoordinatorError(
            f"there is no program {self.program_id} on this cluster",
            "Check --rpc and --coordinator-program-id, or deploy it: aftermath-solana deploy",
        )

    async def _check_spec(self, address: Pubkey, account: AccountData | None, slot: int) -> None:
        """Raise BadReply if only one node sends a training spec that this client cannot read."""
        with suppress(AccountError):  # the caller parses the account, too
            if account is not None:
                model = parse_model(account.data, any_spec=True)
                if model.spec_error:
                    await cross_check(self.pool, address, model, slot)

    async def _is_program_missing(self, node: NodeClient) -> bool:
        _, program = await node.account(self.program_id, length=0)
        return program is None or not program.executable

    def _checked_account(self, run_id: str, account: AccountData | None) -> AccountData:
        if account is None:
            raise NoSuchRun(
                f"there is no run {run_id!r} on this cluster",
                "Check the run id, --rpc and --coordinator-program-id; list the runs: aftermath-solana list-runs",
            )
        if account.owner != self.program_id:
            raise CoordinatorError(
                f"the account of run {run_id!r} is owned by {account.owner}, not by {self.program_id}"
            )
        return account

    def _signer(self) -> Wallet:
        if self._wallet is None:
            raise CoordinatorError("this needs a wallet", "Pass -w FILE")
        return self._wallet


def _complete_members(account: AccountData | None) -> Members | None:
    if account is None or len(account.data) < members_account().size:
        return None
    return parse_members(account.data)
