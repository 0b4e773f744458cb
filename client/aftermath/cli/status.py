"""`status`: a wallet on one page: its SOL, the runs that it owns or admits members to, and its seats."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions, WalletOptions
from aftermath.cli.present import Result, facts, listing, note, plain_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aftermath.rules.members import Members, Membership
    from aftermath.rules.model import Model
    from aftermath.rules.run import Run

RUNS = ("run", "state", "role", "epoch", "step", "of", "members")
SEATS = ("run", "state", "seat", "tier", "member", "points", "bond")
_COLUMNS = ("run_id", "state", "seat", "tier", "member", "points", "bond_lamports")
NO_SEAT = "no seat"
CLOSED = "closed"


@command("status", example="aftermath-solana status -w wallet.json")
async def status(cluster: ClusterOptions, options: WalletOptions) -> Result:
    """Show a wallet's SOL, its runs and its seats.

    Lists runs that the wallet owns or is join authority of. A membership without a seat holds a bond and rent. The
    output shows the command that takes them back, even for a closed run. The wallet signs nothing.
    """
    from aftermath.chain.addresses import run_addresses
    from aftermath.chain.memberships import memberships_of_wallet
    from aftermath.chain.refusals import sol
    from aftermath.chain.wallet import load_wallet
    from aftermath.cli.connection import connect

    wallet = load_wallet(options.wallet_private_key_path)
    async with connect(cluster) as chain:
        program, endpoint = chain.coordinator.program_id, chain.pool.endpoints[0].shown
        lamports = await chain.balance(wallet.pubkey)
        listed = await chain.coordinator.list_runs()
        held = {(one.run, one.created): one for one in await memberships_of_wallet(chain.pool, program, wallet.pubkey)}
    addresses = [bytes(run_addresses(program, run.run_id).run) for run, _, _ in listed]
    runs = [row for run, _, members in listed if (row := _owned(run, members, wallet.public)) is not None]
    seats: list[dict[str, Any]] = []
    for (run, model, members), address in zip(listed, addresses, strict=True):
        kept = held.pop((address, run.created), None)
        seats += _seated(run, model, members, kept, wallet.public)
    names = dict(zip(addresses, (run.run_id for run, _, _ in listed), strict=True))
    seats += [_without_run(one, names.get(one.run)) for one in held.values() if one.enrolled]
    data = {
        "wallet": str(wallet.pubkey),
        "source": wallet.source,
        "rpc": endpoint,
        "lamports": lamports,
        "runs": runs,
        "seats": seats,
    }
    for withdraw in dict.fromkeys(row["withdraw"] for row in seats if row["withdraw"] is not None):
        note(f"get back bond and rent: {withdraw}")  # not in the table, which would break the line
    about = {"wallet": wallet.pubkey, "source": wallet.source, "rpc": endpoint, "holds": sol(lamports)}
    return Result(data, _page(about, runs, seats))


def _owned(run: Run, members: Members | None, wallet: bytes) -> dict[str, Any] | None:
    """Return the row of a run that the wallet owns or admits members to, or None for any other run."""
    from aftermath.chain.dump import plain

    roles = {"owner": run.main_authority, "join authority": run.join_authority}
    mine = [role for role, key in roles.items() if key == wallet]
    if not mine:
        return None
    return {
        "run_id": run.run_id,
        "state": plain(run.state),
        "roles": mine,
        "epoch": run.epoch,
        "step": run.trained_steps,
        "total_steps": run.config.total_steps,
        "members": members.present if members else 0,
    }


def _seated(
    run: Run, model: Model, members: Members | None, held: Membership | None, wallet: bytes
) -> Iterator[dict[str, Any]]:
    """Yield the row of the wallet's seat in a run, or of its membership without one."""
    from aftermath.chain.dump import plain
    from aftermath.events.status import standing

    index = members.find(wallet) if members is not None else None
    row: dict[str, Any] = {"run_id": run.run_id, "state": plain(run.state), "seat": index, "tier": None}
    bond = held.bond if held is not None else 0
    if members is not None and index is not None:
        now = run.state_started_at  # the words about a member do not depend on the time
        mine = next(one for one in standing(run, model, members, now).members if one.seat == index)
        held_here = {"points": mine.points, "bond_lamports": bond, "withdraw": None}
        yield row | {"tier": mine.tier, "member": mine.standing} | held_here
    elif held is not None and (held.enrolled or held.barred):
        word = "barred" if held.barred else NO_SEAT
        withdraw = _withdraw(run.run_id) if held.enrolled else None
        yield row | {"member": word, "points": held.points, "bond_lamports": bond, "withdraw": withdraw}


def _without_run(held: Membership, run_id: str | None) -> dict[str, Any]:
    """Return the row of a membership whose run was closed. `run_id`: its name, if another run has it now."""
    from solders.pubkey import Pubkey

    run = run_id or str(Pubkey.from_bytes(held.run))
    return {
        "run_id": run,
        "state": CLOSED,
        "seat": None,
        "tier": None,
        "member": NO_SEAT,
        "points": held.points,
        "bond_lamports": held.bond,
        "withdraw": _withdraw(run),
    }


def _withdraw(run: str) -> str:
    """Return the command that takes back what a membership without a seat holds."""
    return f"aftermath-solana withdraw --run-id {shlex.quote(run)}"


def _page(about: dict[str, object], runs: Sequence[dict[str, Any]], seats: Sequence[dict[str, Any]]) -> RenderableType:
    from rich.console import Group

    from aftermath.chain.refusals import sol
    from aftermath.events.progress import state_words

    parts: list[RenderableType] = [facts(about)]
    rows = [[*(row | {"state": state_words(row["state"]), "roles": ", ".join(row["roles"])}).values()] for row in runs]
    parts += [plain_text(""), listing(RUNS, rows) if rows else plain_text("no runs of this wallet")]
    rows = []
    for row in seats:
        shown = row | {"state": state_words(row["state"]), "bond_lamports": sol(row["bond_lamports"])}
        rows.append([shown[name] for name in _COLUMNS])
    parts += [plain_text(""), listing(SEATS, rows) if rows else plain_text("no seats of this wallet")]
    return Group(*parts)
