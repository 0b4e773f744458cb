"""`python -m aftermath.localnet`: a local network as a process of its own, for tests and demos."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from solders.pubkey import Pubkey

from aftermath.localnet import EmbeddedEngine, Engine, LocalnetConfig, LocalnetError, ValidatorEngine, run_localnet

ENGINES: dict[str, type[EmbeddedEngine] | type[ValidatorEngine]] = {
    "embedded": EmbeddedEngine,
    "validator": ValidatorEngine,
}


def program(text: str) -> tuple[Pubkey, Path]:
    """ID=FILE"""
    key, separator, path = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=FILE")
    return _key(key), Path(path)


def airdrop(text: str) -> tuple[Pubkey, int]:
    """ADDRESS=LAMPORTS"""
    key, _, lamports = text.partition("=")
    if not lamports.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not ADDRESS=LAMPORTS")
    return _key(key), int(lamports)


def _key(text: str) -> Pubkey:
    try:
        return Pubkey.from_string(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a base58 public key") from None


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m aftermath.localnet", description="A Solana network on this machine."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--rpc-port", type=int, default=8899, help="the websocket uses the port after it; 0: any free")
    parser.add_argument("--ledger", type=Path, help="directory that survives restarts")
    parser.add_argument("--program", type=program, action="append", default=[], metavar="ID=FILE")
    parser.add_argument("--airdrop", type=airdrop, action="append", default=[], metavar="ADDRESS=LAMPORTS")
    parser.add_argument("--slot-ms", type=int, default=400)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="embedded")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    engine: Engine = ENGINES[given.engine]()
    try:
        config = LocalnetConfig(given.host, given.rpc_port, given.ledger, given.program, given.airdrop, given.slot_ms)
        run_localnet(config, engine)
    except LocalnetError as error:
        print(f"error: {error.message}" + (f"\nfix: {error.fix}" if error.fix else ""), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
