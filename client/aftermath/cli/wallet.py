"""Commands about one wallet: its identity, its runs and seats, and the end of a membership."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.options import (
    ClusterOptions,
    SigningOptions,
    WalletOptions,
    checked_run_id,
    shared,
)
from aftermath.cli.present import Result, facts, listing, note, plain_text
from aftermath.rules.limits import RUN_ID_BYTES

if TYPE_CHECKING:
    from rich.console import RenderableType
    from solders.pubkey import Pubkey

    from aftermath.cli.connection import Cluster
    from aftermath.rules.members import Members, Membership
    from aftermath.rules.model import Model
    from aftermath.rules.run import Run


@dataclass(frozen=True)
class IdentityOptions(WalletOptions):
    """The wallet, and the file of the peer identity if it has one of its own."""

    identity_secret_key_path: Annotated[
        Path | None,
        shared(
            "--identity-secret-key-path",
            "-i",
            text="File with a 32-byte p2p secret key. By default the key is derived from the wallet and the run.",
        ),
    ] = None


@command("show-identity", example="aftermath-solana show-identity -w wallet.json --run-id demo")
def show_identity(
    options: IdentityOptions,
    run_id: Annotated[
        str | None,
        shared(
            "--run-id",
            text="Also show the wallet's peer identity in this run.",
            check=checked_run_id,
            stored="run",
        ),
    ] = None,
    create: Annotated[
        bool,
        typer.Option("--create", help="First create the wallet's key file, readable only by you."),
    ] = False,
) -> Result:
    """Show a wallet's public key and the identity that peers see.

    Never prints secrets. --create makes a wallet without any other tool.
    """
    from aftermath.chain.wallet import create_wallet, identity_public, identity_secret, load_wallet

    path = options.wallet_private_key_path
    if create and path is None:
        raise UsageError("--create needs a path", "Name the new key file: -w wallet.json")
    wallet = create_wallet(path) if create and path else load_wallet(path)
    data = {"wallet": str(wallet.pubkey), "source": wallet.source}
    if run_id or options.identity_secret_key_path:
        secret = identity_secret(run_id or "", wallet, options.identity_secret_key_path)
        data["p2p"] = identity_public(secret).hex()
    return Result(data, facts(data), case="created" if create else "")


RUNS = ("run", "state", "role", "epoch", "step", "of", "members")
SEATS = ("run", "state", "seat", "tier", "member", "points", "bond")
_COLUMNS = ("run_id", "state", "seat", "tier", "member", "points", "bond_lamports")
NO_SEAT = "no seat"
CLOSED = "closed"


@command("status", example="aftermath-solana status -w wallet.json")
async def status(cluster: ClusterOptions, options: WalletOptions) -> Result:
    """Show a wallet's SOL, runs and seats.

    Lists the runs that the wallet owns or admits members to. For a membership without a seat it
    shows the command that takes back bond and rent. The wallet signs nothing.
    """
    from aftermath.chain.addresses import run_addresses
    from aftermath.chain.memberships import memberships_of_wallet
    from aftermath.chain.refusals import sol
    from aftermath.chain.wallet import load_wallet
    from aftermath.cli.connection import connect

    wallet = load_wallet(options.wallet_private_key_path)
    async with connect(cluster) as chain:
        program = chain.coordinator.program_id
        endpoint = chain.pool.endpoints[0].shown
        lamports = await chain.balance(wallet.pubkey)
        runs_on_chain = await chain.coordinator.list_runs()
        memberships = {
            (item.run, item.created): item
            for item in await memberships_of_wallet(chain.pool, program, wallet.pubkey)
        }
    addresses = [bytes(run_addresses(program, run.run_id).run) for run, _, _ in runs_on_chain]
    runs = [
        row
        for run, _, members in runs_on_chain
        if (row := _owned(run, members, wallet.public)) is not None
    ]
    seats: list[dict[str, Any]] = []
    for (run, model, members), address in zip(runs_on_chain, addresses, strict=True):
        membership = memberships.pop((address, run.created), None)
        seats += _seated(run, model, members, membership, wallet.public)
    names = dict(zip(addresses, (run.run_id for run, _, _ in runs_on_chain), strict=True))
    seats += [
        _without_run(item, names.get(item.run)) for item in memberships.values() if item.enrolled
    ]
    data = {
        "wallet": str(wallet.pubkey),
        "source": wallet.source,
        "rpc": endpoint,
        "lamports": lamports,
        "runs": runs,
        "seats": seats,
    }
    for withdraw in dict.fromkeys(row["withdraw"] for row in seats if row["withdraw"] is not None):
        # not in the table, which would wrap the command
        note(f"get back bond and rent: {withdraw}")
    wallet_rows = {
        "wallet": wallet.pubkey,
        "source": wallet.source,
        "rpc": endpoint,
        "holds": sol(lamports),
    }
    return Result(data, _page(wallet_rows, runs, seats))


def _owned(run: Run, members: Members | None, wallet: bytes) -> dict[str, Any] | None:
    """Return the row of a run that the wallet owns or admits members to, or None."""
    from aftermath.chain.dump import plain

    roles = {"owner": run.main_authority, "join authority": run.join_authority}
    own_roles = [role for role, key in roles.items() if key == wallet]
    if not own_roles:
        return None
    return {
        "run_id": run.run_id,
        "state": plain(run.state),
        "roles": own_roles,
        "epoch": run.epoch,
        "step": run.trained_steps,
        "total_steps": run.config.total_steps,
        "members": members.present if members else 0,
    }


def _seated(
    run: Run, model: Model, members: Members | None, membership: Membership | None, wallet: bytes
) -> Iterator[dict[str, Any]]:
    """Yield the row of the wallet's seat in a run, or of its membership without one."""
    from aftermath.chain.dump import plain
    from aftermath.events.status import status_of

    index = members.find(wallet) if members is not None else None
    row: dict[str, Any] = {
        "run_id": run.run_id,
        "state": plain(run.state),
        "seat": index,
        "tier": None,
    }
    bond = membership.bond if membership is not None else 0
    if members is not None and index is not None:
        # any time will do, because the text about a member does not depend on it
        now = run.state_started_at
        own_member = next(
            member for member in status_of(run, model, members, now).members if member.seat == index
        )
        seat_values = {"points": own_member.points, "bond_lamports": bond, "withdraw": None}
        yield row | {"tier": own_member.tier, "member": own_member.standing} | seat_values
    elif membership is not None and (membership.enrolled or membership.barred):
        word = "barred" if membership.barred else NO_SEAT
        withdraw = _withdraw(run.run_id) if membership.enrolled else None
        yield row | {
            "member": word,
            "points": membership.points,
            "bond_lamports": bond,
            "withdraw": withdraw,
        }


def _without_run(membership: Membership, run_id: str | None) -> dict[str, Any]:
    """Return the row of a membership whose run was closed. `run_id`: its name, if another run has
    it now.
    """
    from solders.pubkey import Pubkey

    run = run_id or str(Pubkey.from_bytes(membership.run))
    return {
        "run_id": run,
        "state": CLOSED,
        "seat": None,
        "tier": None,
        "member": NO_SEAT,
        "points": membership.points,
        "bond_lamports": membership.bond,
        "withdraw": _withdraw(run),
    }


def _withdraw(run: str) -> str:
    """Return the command that takes back what a membership without a seat holds."""
    return f"aftermath-solana withdraw --run-id {shlex.quote(run)}"


def _page(
    wallet_rows: dict[str, object], runs: Sequence[dict[str, Any]], seats: Sequence[dict[str, Any]]
) -> RenderableType:
    from rich.console import Group

    from aftermath.chain.refusals import sol
    from aftermath.events.progress import state_text

    blocks: list[RenderableType] = [facts(wallet_rows)]
    rows = [
        [
            *(
                row | {"state": state_text(row["state"].upper()), "roles": ", ".join(row["roles"])}
            ).values()
        ]
        for row in runs
    ]
    blocks += [
        plain_text(""),
        listing(RUNS, rows) if rows else plain_text("this wallet owns no runs"),
    ]
    rows = []
    for row in seats:
        cells = row | {
            "state": state_text(row["state"].upper()),
            "bond_lamports": sol(row["bond_lamports"]),
        }
        rows.append([cells[name] for name in _COLUMNS])
    blocks += [
        plain_text(""),
        listing(SEATS, rows) if rows else plain_text("this wallet has no seats"),
    ]
    return Group(*blocks)


def _checked(run: str | None) -> str | None:
    """Return a run's id or address unchanged. Raise UsageError if it can be neither."""
    return run if run is not None and _address(run) is not None else checked_run_id(run)


def _address(run: str) -> Pubkey | None:
    """Parse an address. Return None if it is not one. A run id is too short to be an address."""
    from solders.pubkey import Pubkey

    if len(run) <= RUN_ID_BYTES:
        return None
    try:
        return Pubkey.from_string(run)
    except ValueError:
        return None


RunOrAddress = Annotated[
    str,
    shared(
        "--run-id",
        text="The run's name, at most 32 bytes, or the address of a closed run, which status shows.",
        check=_checked,
        stored="run",
    ),
]


@command("withdraw", example="aftermath-solana withdraw --run-id demo -w wallet.json")
async def withdraw(options: SigningOptions, run_id: RunOrAddress) -> Result:
    """End a wallet's membership of a run and take back its bond and rent.

    The wallet must have left, and its last epoch must have ended, because others may prove until
    then that its results were false. Its points end with the membership. An ejected member loses
    its bond. This also works for a closed run.
    """
    from aftermath.chain.memberships import memberships_of
    from aftermath.chain.refusals import sol
    from aftermath.cli.connection import sign_in
    from aftermath.coordinator.errors import Refused

    async with sign_in(options) as chain:
        program = chain.coordinator.program_id
        wallet = chain.wallet.pubkey
        run, name = await _run_address(chain, run_id)
        memberships = [
            membership
            for membership in await memberships_of(chain.pool, program, run, wallet)
            if membership.enrolled
        ]
        if not memberships:
            raise Refused(
                # the program's own error name; without an account there is nothing to send
                "NotEnrolled",
                f"{wallet} has no membership in run {run_id}",
                "Pass the run that the wallet joined (--run-id) and its key (-w FILE); see its runs: aftermath-solana "
                "status",
            )
        balance_before = await chain.balance(wallet)
        # one by one, because a membership that is still bound must not block the others
        steps = [[chain.coordinator.ix.withdraw(membership, name)] for membership in memberships]
        signatures = [str(signature) for signature in await chain.sender.send_each(steps)]
        returned = await chain.balance(wallet) - balance_before
    lost = sum(map(_lost_bond, memberships))
    data = {
        "run_id": run_id,
        "wallet": str(wallet),
        "lamports_returned": returned,
        "signatures": signatures,
    }
    text = f"{wallet} is no longer a member of run {run_id}; {sol(returned)} came back"
    return Result(data, text + (f", and a bond of {sol(lost)} is lost" if lost else ""))


async def _run_address(chain: Cluster, run: str) -> tuple[Pubkey, str | None]:
    """Return the address of a run, and its id, or None if only the address of a closed run is
    known.
    """
    from aftermath.chain.addresses import run_addresses

    program = chain.coordinator.program_id
    address = _address(run)
    if address is None:
        return run_addresses(program, run).run, run
    run_ids = (listed_run.run_id for listed_run, _, _ in await chain.coordinator.list_runs())
    return address, next(
        (name for name in run_ids if run_addresses(program, name).run == address), None
    )


def _lost_bond(membership: Membership) -> int:
    return membership.forfeited
