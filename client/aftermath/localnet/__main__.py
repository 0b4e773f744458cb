"""`python -m aftermath.localnet`: a local network as a process of its own, for tests and demos."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from solders.pubkey import Pubkey

from aftermath.localnet import (
    EmbeddedEngine,
    LocalnetConfig,
    LocalnetEngine,
    LocalnetError,
    ValidatorEngine,
    run_localnet,
)

ENGINES: dict[str, type[EmbeddedEngine] | type[ValidatorEngine]] = {
    "embedded": EmbeddedEngine,
    "validator": ValidatorEngine,
}
_EXAMPLES = """\
examples:
  python -m aftermath.localnet --rpc-port 0
      a network at any free port, which it prints, forgotten when it ends
  python -m aftermath.localnet --ledger runs/ledger --slot-ms 100
      a network that keeps its state, with slots of 0.1 s
"""


def program(text: str) -> tuple[Pubkey, Path]:
    """Parse ID=FILE."""
    key, separator, path = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=FILE")
    return _key(key), Path(path)


def airdrop(text: str) -> tuple[Pubkey, int]:
    """Parse ADDRESS=LAMPORTS."""
    key, _, lamports = text.partition("=")
    if not lamports.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not ADDRESS=LAMPORTS")
    return _key(key), int(lamports)


def _key(text: str) -> Pubkey:
    try:
        return Pubkey.from_string(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a base58 public key") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aftermath.localnet",
        description="Run a Solana network on this machine until it is interrupted.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="listen here (default: %(default)s)"
    )
    parser.add_argument(
        "--port",
        "--rpc-port",
        dest="rpc_port",
        type=int,
        default=8899,
        metavar="PORT",
        help="the websocket uses the port after it; 0: any free (default: %(default)d)",
    )
    parser.add_argument(
        "--ledger",
        type=Path,
        metavar="DIR",
        help="directory for the state, which then survives restarts (default: none)",
    )
    parser.add_argument(
        "--program",
        type=program,
        action="append",
        default=[],
        metavar="ID=FILE",
        help="a compiled program and its address; can be repeated",
    )
    parser.add_argument(
        "--airdrop",
        type=airdrop,
        action="append",
        default=[],
        metavar="ADDRESS=LAMPORTS",
        help="lamports of a wallet in the first slot; can be repeated",
    )
    parser.add_argument(
        "--slot-ms",
        type=int,
        default=400,
        metavar="MS",
        help="length of a slot in milliseconds (default: %(default)d)",
    )
    parser.add_argument(
        "--engine",
        choices=sorted(ENGINES),
        default="embedded",
        help="the embedded network, or the real validator (default: %(default)s)",
    )
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    engine: LocalnetEngine = ENGINES[arguments.engine]()
    try:
        config = LocalnetConfig(
            arguments.host,
            arguments.rpc_port,
            arguments.ledger,
            arguments.program,
            arguments.airdrop,
            arguments.slot_ms,
        )
        run_localnet(config, engine)
    except LocalnetError as error:
        print(
            f"error: {error.message}" + (f"\nfix: {error.fix}" if error.fix else ""),
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
