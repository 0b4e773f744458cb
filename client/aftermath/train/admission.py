"""Check whether a member can join, before PyTorch loads.

PyTorch takes seconds to load, so these checks run first. They follow the order of the coordinator's
checks. The coordinator checks again when the member joins.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from solders.pubkey import Pubkey

from aftermath import __version__
from aftermath.base.errors import Unsuitable
from aftermath.base.files import state_directory
from aftermath.chain.admission import check_funds, check_version
from aftermath.chain.member import SolanaMember
from aftermath.chain.options import public_key
from aftermath.chain.rpc import RpcPool
from aftermath.chain.views import require_readable
from aftermath.config.spec import ARCHITECTURES
from aftermath.coordinator.ports import View
from aftermath.p2p.iroh import check_interface, check_port
from aftermath.replica.options import indices_named
from aftermath.rules.model import Model
from aftermath.rules.optimizers import exchanged_shown
from aftermath.train.checkpoint_checks import check_directories, check_hub, check_put_links
from aftermath.train.kept_seats import SeatRecords, check_kept_seat
from aftermath.train.known_runs import KnownRuns
from aftermath.train.option_checks import check_choices
from aftermath.train.settings import TrainSettings


@dataclass(frozen=True)
class Admitted:
    """The run that a member may join. `cluster` is the genesis hash of its chain."""

    view: View
    cluster: str
    program: Pubkey


def check_options(settings: TrainSettings) -> None:
    """Check the settings that do not depend on the run, and test writing to the named directories.

    Raises UsageError, Unsuitable, or BindFailed for a port in use.
    """
    check_values(settings)
    check_port(settings.bind_p2p_interface, settings.bind_p2p_port)
    check_directories(settings)


def check_values(settings: TrainSettings) -> None:
    """Check the options' values. Unlike `check_options`, bind no port and write no file."""
    check_hub(settings)
    check_put_links(settings)
    check_choices(settings)
    check_interface(settings.bind_p2p_interface)
    indices_named(settings.device)


async def check_admission(settings: TrainSettings, pool: RpcPool, chain: SolanaMember) -> Admitted:
    """Check whether the run would admit this member, then close the connections.

    Raises CoordinatorError or Unsuitable if it would not.
    """
    async with pool, chain:
        view = await chain.view()
        genesis = await pool.genesis()
        known_runs = KnownRuns(
            state_directory() / "runs", cluster=genesis, program=str(chain.program_id)
        )
        known_runs.check(view.run, owner_key(settings.owner))
        if chain.keeps_seats:
            records = SeatRecords(cluster=genesis, program=str(chain.program_id))
            check_kept_seat(
                view,
                chain.wallet,
                records.read(view.run, chain.wallet),
                directory=settings.checkpoint_dir,
                tier=settings.matformer_tier,
            )
        await chain.authorization()
        check_version(settings.run_id, view.model.client_version, __version__)
        await check_funds(pool, Pubkey(chain.wallet), await chain.bond_due())
        check_model(view.model, settings.run_id)
        check_tier(settings.matformer_tier, view.model.tiers, settings.run_id)
        known_runs.remember(view.run)
        return Admitted(view, genesis, chain.program_id)


def owner_key(owner: str | None) -> str | None:
    """Return the key of the owner that an option names. Raises UsageError or WalletError."""
    return str(public_key(owner)) if owner is not None else None


def check_model(model: Model, run_id: str) -> None:
    """Raise Unsuitable if this client cannot train the run, by its accounts alone."""
    require_readable(model)
    if not model.configured:
        raise Unsuitable(
            f"run {run_id} is not configured yet",
            "Ask its owner to run "
            f"aftermath-solana update-config --run-id {shlex.quote(run_id)} --config-path FILE",
        )
    if model.architecture not in ARCHITECTURES:
        raise Unsuitable(
            f"run {run_id} trains an architecture that this client does not have (it has {', '.join(ARCHITECTURES)})"
        )
    if not model.optimizer.EXCHANGED:
        uses = model.optimizer.shown()
        raise Unsuitable(
            f"run {run_id} uses {uses}, and members exchange results with {exchanged_shown()}"
        )


def check_tier(tier: int, tiers: int, run_id: str) -> None:
    """Raise Unsuitable if a run of `tiers` tiers has no such tier."""
    if tier >= tiers:
        raise Unsuitable(
            f"--matformer-tier {tier}: run {run_id} has tiers 0 to {tiers - 1}",
            f"Choose a tier from 0 to {tiers - 1}; a higher tier is a smaller model",
        )
