"""The console script `aftermath-centralized`."""

from __future__ import annotations

from aftermath.base.quiet import Quietly


def main() -> None:
    """Entry point of the console script."""
    with Quietly():
        from aftermath.central.index import CENTRALIZED

        CENTRALIZED.main()


if __name__ == "__main__":
    main()
