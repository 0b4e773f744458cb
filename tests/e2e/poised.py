"""`aftermath-solana ARGUMENTS`, imported ahead of time and started when a file appears.

Importing takes seconds; a member that has to join in the middle of a short epoch cannot afford
them. Arguments: the file to wait for, then the command line. Prints "poised" when it waits.
"""

import sys
import time
from pathlib import Path

import aftermath.train.session  # noqa: F401 - the slow part
from aftermath.cli.main import main

if __name__ == "__main__":
    go, *words = sys.argv[1:]
    print("poised", flush=True)
    while not Path(go).exists():
        time.sleep(0.02)
    sys.argv = ["aftermath-solana", *words]
    main()
