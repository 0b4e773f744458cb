"""The console script `aftermath-solana`, and `python -m aftermath` where that is not in the path."""

from __future__ import annotations

from aftermath.base.openmp import sleep_soon
from aftermath.base.quiet import Quietly


def main() -> None:
    """Entry point of the console script."""
    with Quietly():
        sleep_soon()
        from aftermath.cli.main import SOLANA

        SOLANA.main()


if __name__ == "__main__":
    main()
