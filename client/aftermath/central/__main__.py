"""The console script `aftermath-centralized`."""

from __future__ import annotations

from aftermath.base.interrupt import quietly


def main() -> None:
    """Entry point of the console script."""
    with quietly():
        from aftermath.central.index import CENTRALIZED

        CENTRALIZED.main()


if __name__ == "__main__":
    main()
