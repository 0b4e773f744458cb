"""The console script `aftermath-centralized`."""

from __future__ import annotations

from aftermath.base.environment import sleep_soon
from aftermath.base.quiet_interrupts import QuietInterrupts
from aftermath.base.stdio import write_whole_output


def main() -> None:
    """Entry point of the console script."""
    with QuietInterrupts():
        sleep_soon()
        write_whole_output()
        from aftermath.server.index import CENTRALIZED

        CENTRALIZED.main()


if __name__ == "__main__":
    main()
