"""`localnet`: run a local Solana network with the programs on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.base.outputs import check_can_be_directory, check_names, empty_directory
from aftermath.cli.command import command
from aftermath.cli.present import Result, show

if TYPE_CHECKING:
    from aftermath.localnet import Network


# The database, and the files of formats 1 and 2.
EMBEDDED_FILES = (
    r"lock|ledger\.sqlite3(-wal|-journal)?|(snapshot|journal)-\d+|\.snapshot-\d+\.partial"
)
VALIDATOR_MARK = "genesis.bin"
VALIDATOR_FILES = (
    r"accounts(_.+)?|admin\.rpc|banking_trace|contact-info\.bin|faucet-keypair\.json|genesis\.(bin|tar\.bz2)"
    r"|ledger\.lock|rocksdb(_fifo)?|snapshots?(-.+)?|(stake|validator|vote)-account-keypair\.json"
    r"|validator-keypair\.json|tower-.+\.bin|validator(-\d+)?\.log|remote|incremental-snapshot-.+"
)


class EngineName(StrEnum):
    """What runs the network."""

    EMBEDDED = "embedded"
    VALIDATOR = "validator"


@dataclass(frozen=True)
class NetworkOptions:
    """Options of a local network: addresses, stored state and engine."""

    port: Annotated[
        int,
        typer.Option(
            "--port",
            "--rpc-port",
            min=0,
            max=65534,
            help="RPC port. The websocket takes the next one.",
        ),
    ] = 8899
    host: Annotated[
        str, typer.Option(help="Address to listen on. 0.0.0.0 lets other machines connect.")
    ] = "127.0.0.1"
    ledger: Annotated[
        Path | None,
        typer.Option(help="Directory for the network's state. By default nothing is kept."),
    ] = None
    reset: Annotated[bool, typer.Option("--reset", help="First delete the state in --ledger.")] = (
        False
    )
    engine: Annotated[
        EngineName,
        typer.Option(help="embedded needs no other program; validator runs solana-test-validator."),
    ] = EngineName.EMBEDDED
    slot_ms: Annotated[
        int,
        typer.Option("--slot-ms", min=13, max=10_000, help="Length of a slot in milliseconds."),
    ] = 400


@command("localnet", example="aftermath-solana localnet --ledger ~/.aftermath/ledger")
def localnet(
    options: NetworkOptions,
    json_output: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the addresses as one JSON document.", show_default=False
        ),
    ] = False,
) -> Result:
    """Run a local Solana network with the programs on it.

    Prints its addresses when it is ready, and runs until Ctrl-C. Gives wallets test SOL when they
    need some.
    """
    from solders.pubkey import Pubkey

    from aftermath.localnet import EmbeddedEngine, LocalnetConfig, ValidatorEngine, run_localnet
    from aftermath.programs import AUTHORIZER_ID, AUTHORIZER_SO, COORDINATOR_ID, COORDINATOR_SO

    if options.ledger is not None:
        check_can_be_directory(options.ledger.expanduser(), "Name the ledger's directory")
    if options.reset:
        clear(options.ledger)
    programs = ((COORDINATOR_ID, COORDINATOR_SO), (AUTHORIZER_ID, AUTHORIZER_SO))
    config = LocalnetConfig(
        host=options.host,
        rpc_port=options.port,
        ledger=options.ledger.expanduser() if options.ledger else None,
        programs=[(Pubkey.from_string(program_id), path) for program_id, path in programs],
        slot_ms=options.slot_ms,
    )
    engine = EmbeddedEngine() if options.engine is EngineName.EMBEDDED else ValidatorEngine()
    run_localnet(config, engine, lambda network: announce(network, options, as_json=json_output))
    return Result(None, None)


def announce(network: Network, options: NetworkOptions, *, as_json: bool) -> None:
    """Print the network's addresses once it is ready."""
    from aftermath.programs import AUTHORIZER_ID, COORDINATOR_ID

    data = {
        "rpc": network.rpc_url,
        "ws": network.ws_url,
        "engine": options.engine.value,
        "ledger": str(options.ledger) if options.ledger else None,
        "coordinator": COORDINATOR_ID,
        "authorizer": AUTHORIZER_ID,
    }
    show(Result(data, f"localnet ready rpc={network.rpc_url} ws={network.ws_url}"), as_json=as_json)


def clear(ledger: Path | None) -> None:
    """Delete the state in a ledger directory. Refuses one that is in use, or that holds anything a
    ledger does not.
    """
    from aftermath.localnet.ledger import Ledger

    if ledger is None:
        raise UsageError("--reset needs a ledger to delete", "Pass --ledger DIR")
    directory = ledger.expanduser()
    if not directory.exists():
        return
    of_validator = (directory / VALIDATOR_MARK).exists()
    names = VALIDATOR_FILES if of_validator else EMBEDDED_FILES
    check_names(directory, names, "a ledger")
    if not of_validator:
        Ledger(directory).close()  # raises if another localnet uses it
    empty_directory(directory, names, "a ledger")
    directory.rmdir()
