"""`deploy`: put the programs on a cluster, through its RPC."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.options import SigningOptions
from aftermath.cli.present import CommandError, Result, listing, note

if TYPE_CHECKING:
    from solders.keypair import Keypair
    from solders.pubkey import Pubkey

    from aftermath.chain.dry_run import DryRunReport, DrySender, PlannedTransaction

KEYS = Path("keys")


class Which(StrEnum):
    """The programs to deploy."""

    COORDINATOR = "coordinator"
    AUTHORIZER = "authorizer"
    ALL = "all"


@command("deploy", example="aftermath-solana deploy --rpc devnet -w wallet.json")
async def deploy(
    options: SigningOptions,
    program: Annotated[Which, typer.Option(help="Program to deploy.")] = Which.ALL,
    program_keypair: Annotated[
        Path | None,
        typer.Option(
            help="Key file of the program's address. By default keys/PROGRAM-keypair.json."
        ),
    ] = None,
) -> Result:
    """Deploy or upgrade the programs on a cluster.

    Skips programs that are up to date, and continues an interrupted deployment. The wallet pays,
    and only it can upgrade the programs later.
    """
    from aftermath.chain.deploy import deploy_program, deployment_cost
    from aftermath.chain.dry_run import DrySender
    from aftermath.cli.connection import sign_in

    if program_keypair and program is Which.ALL:
        raise UsageError(
            "--program-keypair is the key of one program", "Name the program: --program coordinator"
        )
    names = (Which.AUTHORIZER, Which.COORDINATOR) if program is Which.ALL else (program,)
    keys = {
        name: program_key(name, program_keypair or KEYS / f"{name}-keypair.json") for name in names
    }
    deployed: list[dict[str, Any]] = []
    async with sign_in(options) as chain:
        costs = [
            await deployment_cost(chain.sender, shared_object(name), key)
            for name, key in keys.items()
        ]
        if any(costs):
            await chain.sender.ensure_funds(sum(costs))
        if isinstance(chain.sender, DrySender) and any(costs):
            raise await simulate_deployment(chain.sender, keys)
        for name, key in keys.items():
            deployment = await deploy_program(
                chain.sender, shared_object(name), key, progress=_progress(name)
            )
            deployed.append(
                {
                    "program": name.value,
                    "program_id": str(deployment.program_id),
                    "action": deployment.action,
                    "bytes": deployment.bytes,
                    "signature": str(deployment.signature) if deployment.signature else None,
                }
            )
        spend = chain.sender.spend
    data = {
        "programs": deployed,
        "transactions": spend.transactions,
        "fees_lamports": spend.lamports,
    }
    return Result(
        data,
        listing(
            ("program", "address", "action", "bytes"), [list(row.values())[:4] for row in deployed]
        ),
    )


async def simulate_deployment(sender: DrySender, keys: Mapping[Which, Keypair]) -> DryRunReport:
    """Simulate the missing transactions of these deployments, and return the report."""
    from aftermath.chain.deploy import deployment_steps

    steps: list[PlannedTransaction] = []
    sizes: dict[Pubkey, int] = {}
    for name, key in keys.items():
        new_steps, new_sizes = await deployment_steps(sender, shared_object(name), key)
        steps += new_steps
        sizes |= new_sizes
    await sender.creating(sizes)
    return await sender.dry_run(steps)


def shared_object(name: Which) -> Path:
    """Return the path of a packaged program."""
    from aftermath.programs import AUTHORIZER_SO, COORDINATOR_SO

    return COORDINATOR_SO if name is Which.COORDINATOR else AUTHORIZER_SO


def program_key(name: Which, path: Path) -> Keypair:
    """Load a program's keypair. Raise CommandError if the program was built for another address."""
    from aftermath.chain.wallet import program_keypair
    from aftermath.programs import AUTHORIZER_ID, COORDINATOR_ID

    if not path.is_file():
        raise CommandError(
            f"there is no key file {path.absolute()} for the address of the {name}",
            "Run this in the project's directory, or name the file: --program NAME --program-keypair FILE",
        )
    key = program_keypair(path)
    built_for = COORDINATOR_ID if name is Which.COORDINATOR else AUTHORIZER_ID
    if str(key.pubkey()) != built_for:
        raise CommandError(
            f"the {name} is built for the address {built_for}, but {path} is the key of {key.pubkey()}",
            f"Put that address into declare_id! of programs/{name}/src/lib.rs, then run make programs",
        )
    return key


def _progress(name: Which) -> Any:
    printed_tenths = -1

    def report(written: int, total: int) -> None:
        nonlocal printed_tenths
        percent = 100 * written // total
        if percent // 10 > printed_tenths:
            printed_tenths = percent // 10
            note(f"{name}: {percent} % of {total} bytes written")

    return report
